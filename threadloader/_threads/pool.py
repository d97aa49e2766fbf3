"""The pool: named threads that take jobs from the oldest work first.

The pool knows nothing about what a job does; see `thread_group` for how jobs are handed out.

The threads are daemons that the pool joins itself: when asked to, and for at most two seconds
when the interpreter exits.  Ordinary threads would be joined there without a limit, so that one
sample stuck in a read would keep the process for ever; daemons that nobody joins would be cut
off inside native code, and torch aborts the process then.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from mmap import mmap
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from threadloader._lifetime.dropping import DROPPED, when_dropped
from threadloader._lifetime.exit_and_fork import Phase, at_exit, in_forked_child, is_exiting
from threadloader._threads.starting import Joinable, insist, start_all
from threadloader._threads.thread_group import STOPPED, Job, ThreadGroup, Work, join
from threadloader._threads.waiting import stopped_by
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from threading import Thread


_EXITING = "no threads can be started any more: the interpreter exits"
NEEDED = 16 << 20  # bytes of address space that a thread begins with; its libraries' data is there
EXIT_SECONDS = 2.0  # how long the interpreter's exit waits for running jobs; unmeasured, a choice

W = TypeVar("W")  # the value that a thread gets for its lifetime, and hands to each job

# Every thread that may be running, by its group and number, for the interpreter's exit.  No lock is
# held while a thread starts: before `Thread.start` returns, the new thread may run finalizers of
# the user's, and one that begins an epoch would wait for that lock.  So threads are noted before
# they start, and by single calls, which are atomic on both builds: the dict is changed and copied,
# never iterated.
_running: dict[tuple[ThreadGroup[Any], int], Thread] = {}


@in_forked_child
def _forget_running() -> None:
    """Start afresh in a forked child: it has no threads, but for one that forked it.

    That one takes no further job.  Its sample should end the child, by ``os._exit`` or an error: if
    the sample returns, the job goes on, and waits for ever where it meets a lock that another
    thread held at the fork.
    """
    global _running  # noqa: PLW0603  # of the process, and this is a new one
    _running = {}


@at_exit(Phase.END_THREADS)
def _end_threads() -> None:
    """Stop all threads of all pools, and wait for them, all within their limits."""
    # `is_exiting()` is true by now; see `Pool._start`.
    running = _running.copy()
    for group in {group for group, _ in running}:
        group.stop()
    started = time.monotonic()
    for (group, _), thread in running.items():
        if thread.is_alive():  # one that comes to life only now sees that it has nothing to do
            deadline = started + group.exit_seconds
            thread.join(max(0.0, deadline - time.monotonic()))


class Pool(Generic[W]):
    """Threads, started on the first `put`.

    Args:
        size: Threads to begin with, at least 1.
        name: Prefix of the threads' names, which become ``<name>-<role>-<n>``.
        enter: Makes the context in which thread ``n`` runs; its value is given to each job.
        first: The number of the first thread.
        role: Of its threads, as their names say.
        failed: Called with the number and the error of a thread that ends by an error (its context
            can't be entered, say) or that can't be started; then the others are stopped.
        exit_seconds: How long the interpreter's exit waits for running jobs.
        alone_seconds: See `ThreadGroup`.
        first_job: Runs the first job of each thread, with the value of its context; returns whether
            the first one of all is to be followed by one more that runs alone.  None for the job
            itself.

    Threads:
        put: the planner or a reader.
        resize: consumer.
        start: shared; a second caller goes on while the first starts the threads.
        join: shared, after `stop`.
        stop, wake, stopped, threads: shared.
    """

    def __init__(
        self,
        size: int,
        name: str,
        enter: Callable[[int], AbstractContextManager[W]],
        *,
        first: int = 0,
        role: str = "worker",
        failed: Callable[[int, BaseException], None] | None = None,
        exit_seconds: float = EXIT_SECONDS,
        alone_seconds: float = 0.0,
        first_job: Callable[[Job[W], W], bool] | None = None,
    ) -> None:
        self._size = size
        self._first = first
        self._failed = _raise if failed is None else failed
        self.thread_group: ThreadGroup[W] = ThreadGroup(exit_seconds, alone_seconds)
        # Nothing in it refers to the pool.
        self._make: Callable[[int], Thread] = partial(
            _thread, self.thread_group, f"{name}-{role}", enter, self._failed, first_job
        )
        self._to_start = [True]  # popped by who starts the threads, which is atomic on both builds
        # Dropping the pool only signals: a finalizer must not wait for anybody.
        self._stop = when_dropped(self, self.thread_group.stop)

    def put(self, work: Work[W]) -> None:
        """Queue ``work`` behind all that was put before.

        Raises:
            ClosedError: The pool was stopped, or the interpreter exits.
            RuntimeError: A thread can't be started.
        """
        if self._to_start:
            began = time.perf_counter()
            self._start()
            self.thread_group.start_seconds = time.perf_counter() - began
        self.thread_group.put(work)

    def resize(self, threads: int) -> None:
        """Let so many threads run jobs, at least 1; start those that there are not yet.

        Raises:
            ClosedError: The pool was stopped, or the interpreter exits.
            RuntimeError: A thread can't be started; those that there are go on.
        """
        begun = self._size
        if begun < threads:
            self._size = threads
            if not self._to_start:
                try:
                    self._start_threads(begun)
                finally:
                    self._size = len(self.threads)
        self.thread_group.run_at_most(threads)

    def stop(self) -> None:
        """Let every thread end after its running job.  Idempotent; does not wait."""
        self._stop()  # which dropping the pool will not do again

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called; stale as soon as it is read."""
        return self.thread_group.stopping

    @property
    def threads(self) -> tuple[Thread, ...]:
        """The threads that were started."""
        return tuple(self.thread_group.threads.copy())

    def find_lost(self) -> None:
        """Tell who waits for threads of those that have ended before they could run."""
        for thread in self.threads:
            died = getattr(thread, "died", None)
            if died is not None and thread.never_ran:  # type: ignore[attr-defined]
                insist(died, RuntimeError("a thread could not begin, as for want of memory"))

    def wake(self) -> None:
        """Let an idle thread look at the queue again, to drop works that were cancelled."""
        self.thread_group.wake()

    def start(self) -> None:
        """Start the threads now; otherwise the first `put` does.  Idempotent.

        Raises:
            ClosedError: The interpreter exits.
            RuntimeError: A thread can't be started.
        """
        if self._to_start:
            self._start()

    def join(self) -> None:
        """Wait until every thread has ended; call `stop` first.  In one of them, return at once."""
        join([self.thread_group])

    def _start(self) -> None:
        # All threads exist before any has a job: on an ordinary build the first to run a long
        # sample would hold the GIL, and each further start would wait for it in turn.
        try:
            self._to_start.pop()
        except IndexError:
            return  # another thread starts them
        try:
            self._start_threads(0)
        except BaseException as error:
            # The system gives no more threads, or Ctrl-C: better none than some.
            self.stop()
            if self._failed is not _raise:  # other epochs may wait for these threads
                reported = error if isinstance(error, Exception) else ClosedError(STOPPED)
                self._failed(self._first + len(self.threads), reported)
            raise

    def _start_threads(self, begun: int) -> None:
        """Start the threads that there are not yet.

        Args:
            begun: How many there are.
        """
        group = self.thread_group
        numbers = range(self._first + begun, self._first + self._size)
        threads = list(map(self._make, numbers))
        # First they are noted, and then `_check` looks whether the interpreter exits.  The exit
        # sets its flag first, and then looks who runs.  So one of the two sees the other.
        for number, thread in zip(numbers, threads, strict=True):
            group.threads.append(thread)
            _running[group, number] = thread
        try:
            start_all(threads, partial(_check, group))
        except BaseException:
            # Forget those that will never run; one that is about to sees whether it was stopped.
            for number, thread in zip(numbers, threads, strict=True):
                if thread.ident is None:
                    _running.pop((group, number), None)
                    group.threads.remove(thread)
            raise


def _thread(
    group: ThreadGroup[W],
    name: str,
    enter: Callable[[int], AbstractContextManager[W]],
    failed: Callable[[int, BaseException], None],
    first_job: Callable[[Job[W], W], bool] | None,
    number: int,
) -> Thread:
    """Return a thread, which is not started."""
    died = partial(_died, group, failed, number)
    args = group, enter, number, died, first_job
    thread = Joinable(target=_run, args=args, name=f"{name}-{number}", daemon=True)
    thread.died = died
    return thread


def _check(group: ThreadGroup[Any]) -> None:
    """Refuse to start a thread that nobody would wait for."""
    if is_exiting() or group.stopping:
        raise ClosedError(_EXITING if is_exiting() else STOPPED)


def _run(
    group: ThreadGroup[W],
    enter: Callable[[int], AbstractContextManager[W]],
    number: int,
    died: Callable[[BaseException], None],
    first_job: Callable[[Job[W], W], bool] | None,
) -> None:
    """Run jobs until there are none; the body of each thread."""
    running = _running  # a child that a job forks has another
    try:
        # Whoever stops a group, or ends the interpreter, waits for the threads that are alive then;
        # any other thread comes here later, and must do nothing.
        if group.stopping or is_exiting():
            return
        with ExitStack() as life:
            worker: Any = None
            try:
                mmap(-1, NEEDED).close()  # or an error, where native code would end the process
                life.enter_context(stopped_by(group.ended))
                worker = life.enter_context(enter(number))
                enter = DROPPED  # errors keep the frames that led to them, this one included
                ran = False
                while running is _running and (job := group.take(ran=ran)) is not None:
                    if ran or first_job is None:
                        job(worker)
                    elif first_job(job, worker):
                        group.stay_alone()
                    ran = True
                    del job  # an idle thread keeps no batch alive
            except BaseException as error:  # noqa: BLE001  # handed to the waiting consumer
                BaseException.with_traceback(
                    error, error.__traceback__ and error.__traceback__.tb_next
                )
                insist(died, error)
    finally:
        worker = first_job = DROPPED  # the same
        _running.pop((group, number), None)


def _died(
    group: ThreadGroup[Any],
    failed: Callable[[int, BaseException], None],
    number: int,
    error: BaseException,
) -> None:
    """Tell who waits for a thread that it ends by an error, and let the others end."""
    try:
        failed(number, error)
    finally:
        group.stop()


def _raise(_: int, error: BaseException) -> None:
    """Let a thread end by its error."""
    raise error
