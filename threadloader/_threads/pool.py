"""The pool: named threads that take jobs from the oldest work first.

A *work* is something that can be cut into jobs.  The threads take jobs of the oldest work until it
has none left, so that all of them stand behind the batch that is delivered next.  The pool knows
nothing about what a job does.

The threads refer to a `ThreadGroup`, and never to the `Pool`, which can so be dropped.  They are
daemons that the pool joins itself: when asked to, and for at most two seconds when the interpreter
exits.  Ordinary threads would be joined there without a limit, so that one sample stuck in a read
would keep the process for ever; daemons that nobody joins would be cut off inside native code, and
torch aborts the process then.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from mmap import mmap
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from threadloader._lifetime import (
    DROPPED,
    Phase,
    at_exit,
    in_forked_child,
    is_exiting,
    when_dropped,
)
from threadloader._threads.starting import Joinable, start_all
from threadloader._threads.waiting import Stop, stopped_by
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from threading import Thread


_EXITING = "no threads can be started any more: the interpreter exits"
NEEDED = 16 << 20  # bytes of address space that a thread begins with; its libraries' data is there
EXIT_SECONDS = 2.0  # how long the interpreter's exit waits for running jobs; unmeasured, a choice
STOPPED = "the threads have ended; iter(loader) starts new ones"

W = TypeVar("W")  # the value that a thread gets for its lifetime, and hands to each job
W_contra = TypeVar("W_contra", contravariant=True)


class Job(Protocol[W_contra]):
    """One piece of work.  It must not raise."""

    def __call__(self, worker: W_contra, /) -> None:
        """Do the job, in the thread that ``worker`` describes."""


class Work(Protocol[W_contra]):
    """Something that hands out jobs until it has none left."""

    def claim(self) -> Job[W_contra] | None:
        """Return the next job, or None for ever after the last.

        Called with the pool's lock held: it must be quick and run no user code.
        """

    def jobs(self) -> int:
        """Estimate how many jobs are left, at least 1; that many threads are woken."""


class SingleJob(Generic[W]):
    """Work that is one job, for the thread whose turn it is.

    Args:
        job: The job.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job[W]) -> None:
        self._job: Job[W] | None = job

    def claim(self) -> Job[W] | None:
        """Return the job, and then None."""
        job, self._job = self._job, None
        return job

    def jobs(self) -> int:
        """Return 1."""
        return 1


class ThreadGroup(Generic[W]):
    """The threads of a pool, and the queue of works that they take jobs from.

    It references neither the pool nor, once they have ended, what the threads ran with.

    Idle threads wait for a token, not on a condition: a finalizer has to wake them.  It can run at
    any moment, also inside one of our own locks, and `SimpleQueue.put` is the one call of the
    standard library that is promised to be safe there.

    Fewer threads may run jobs at once than there are: a thread that comes back takes the next job
    itself, and the others sleep on.  The first job may run alone: what it imports, loads or opens,
    the others find there.

    Args:
        exit_seconds: See `Pool`.
        alone_seconds: For how long at most no other job is begun before the first one has ended; 0
            for not at all.

    Invariants, whenever ``_lock`` is not held:
        1. Works are in the order in which they were put.
        2. ``_idle`` plus the tokens True on their way is the number of threads that wait or are
           about to, less the threads that a token False has just woken.  So no wake-up is lost,
           and one too many costs a look at the queue.
        3. ``_running`` is the number of threads that took a job and have not come back.

    Threads:
        put: the planner or a reader.
        run_at_most: consumer.
        take: worker only.
        begin_all: shared.
        stop, wake: shared, also from finalizers; they take no lock.
        threads, gone: shared; a list that is appended to and copied, atomic on both builds.
    """

    def __init__(self, exit_seconds: float, alone_seconds: float = 0.0) -> None:
        self.exit_seconds = exit_seconds
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # True: the waker took it off _idle
        self.stopping = False  # only ever set; read and written whole, on both builds
        self.ended = Stop()  # wakes jobs that wait, for the next try of a remote read say
        self.threads: list[Thread] = []  # each from before its start on
        self.start_seconds = 0.0  # that their start took the one who gave the first work
        self._lock = Lock()
        # All below: guarded by _lock.
        self._works: deque[Work[W]] = deque()
        self._idle = 0
        self._running = 0
        self._limit = sys.maxsize  # threads that may run jobs at once
        self._alone_seconds = alone_seconds
        self._alone = alone_seconds > 0  # whether the first job has not ended

    def put(self, work: Work[W]) -> None:
        """See `Pool.put`."""
        with self._lock:
            if self.stopping:
                raise ClosedError(STOPPED)
            self._works.append(work)
            if self._idle > 0 and (room := self._room()) > 0:
                # To estimate the jobs takes longer than all else here.
                self._wake(min(room, work.jobs()))

    def run_at_most(self, threads: int) -> None:
        """Let so many threads run jobs at once, at least 1."""
        with self._lock:
            self._limit = threads
            self._wake(self._room())

    def take(self, *, ran: bool = False) -> Job[W] | None:
        """Return the next job of the oldest work, waiting for one; None to end the thread.

        Args:
            ran: Whether the thread has run the job that it took last.
        """
        while True:
            # Works are dropped after the lock is released: the last reference to one may run
            # finalizers of the user's.
            dropped: list[Work[W]] = []
            with self._lock:
                self._came_back(ran=ran)
                ran = False
                if self.stopping:
                    dropped += self._works
                    self._works.clear()
                    return None
                job = self._claim(dropped) if self._room() > 0 else None
                if job is not None:
                    return job
                seconds = self._alone_seconds if self._alone and self._running else None
                self._idle += 1
            dropped.clear()
            woken: bool | None = None
            with suppress(Empty):
                woken = self._tokens.get(timeout=seconds)
            if not woken:
                with self._lock:
                    self._idle -= 1
                    if woken is None:  # the first job takes long: it may wait for others
                        self._begin_all()

    def begin_all(self) -> None:
        """Let jobs run beside the first one, or without one."""
        with self._lock:
            self._begin_all()

    def stop(self) -> None:
        """See `Pool.stop`."""
        self.stopping = True
        self.ended.set()
        # A thread that is noted later sees that it was stopped.
        for _ in range(len(self.threads)):
            self._tokens.put(False)

    def wake(self) -> None:
        """See `Pool.wake`."""
        self._tokens.put(False)

    @property
    def gone(self) -> bool:
        """Whether the group was stopped, and no thread is left."""
        return self.stopping and not any(thread.is_alive() for thread in self.threads.copy())

    def _room(self) -> int:
        """Return how many more threads may run jobs.  Call with ``_lock`` held."""
        return (1 if self._alone else self._limit) - self._running

    def _came_back(self, *, ran: bool) -> None:
        """Count a thread as one that runs no job.  Call with ``_lock`` held."""
        self._running -= ran
        if ran:
            self._begin_all()

    def _begin_all(self) -> None:
        """Let jobs run beside the first one.  Call with ``_lock`` held."""
        if self._alone:
            self._alone = False
            self._wake(self._room())

    def _claim(self, dropped: list[Work[W]]) -> Job[W] | None:
        """Return the oldest job; move works that have none.  Call with ``_lock`` held."""
        while self._works:
            job = self._works[0].claim()
            if job is not None:
                self._running += 1
                # `put` woke as many threads as it estimated: samples may be slower since.
                more = len(self._works) > 1 or (self._idle > 0 and self._works[0].jobs() > 1)
                # Or one looks, after a while, whether the first job still runs alone.
                if self._alone or (more and self._room() > 0):
                    self._wake(1)
                return job
            dropped.append(self._works.popleft())
        return None

    def _wake(self, threads: int) -> None:
        """Wake up to that many idle threads.  Call with ``_lock`` held."""
        for _ in range(min(self._idle, threads)):
            # In this order, an interrupt in between costs a token too many, and none too few.
            self._tokens.put(True)
            self._idle -= 1


def join(groups: Iterable[ThreadGroup[Any]]) -> None:
    """Wait until all threads of groups that were stopped have ended.

    Called in one of these threads, it returns at once: two that wait for each other never end.
    """
    threads = [thread for group in groups for thread in group.threads.copy() if thread.is_alive()]
    here = get_ident()  # not `current_thread`, which does not know a thread that begins or ends
    if any(thread.ident == here for thread in threads):
        return
    for thread in threads:
        thread.join()


# Every thread that may be running, by its group and number, for the interpreter's exit.  No lock is
# held while a thread starts: before `Thread.start` returns, the new thread may run finalizers of
# the user's, and one that begins an epoch would wait for that lock.  So threads are noted before
# they start, and by single calls, which are atomic on both builds: the dict is changed and copied,
# never iterated.
_running: dict[tuple[ThreadGroup[Any], int], Thread] = {}


@in_forked_child
def _forget_running() -> None:
    """Start afresh in a forked child: it has no threads, but for one that forked it.

    That one ends the child after its job.  Its sample should do so, by ``os._exit``: if it returns
    or fails, the job goes on, and waits for ever where it meets a lock that another thread held at
    the fork.
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
        numbers: Of the threads to begin with, at least one.
        name: Prefix of the threads' names, which become ``<name>-<n>``.
        enter: Makes the context in which thread ``n`` runs; its value is given to each job.
        failed: Called with the number and the error of a thread that ends by an error (its context
            can't be entered, say) or that can't be started; then the others are stopped.
        exit_seconds: How long the interpreter's exit waits for running jobs.
        alone_seconds: See `ThreadGroup`.
        late: Whether each thread makes its context when it has its first job, and not before.

    Threads:
        put: the planner or a reader.
        resize: consumer.
        start: shared; a second caller goes on while the first starts the threads.
        join: shared, after `stop`.
        stop, wake, stopped, threads: shared.
    """

    def __init__(
        self,
        numbers: range,
        name: str,
        enter: Callable[[int], AbstractContextManager[W]],
        *,
        failed: Callable[[int, BaseException], None] | None = None,
        exit_seconds: float = EXIT_SECONDS,
        alone_seconds: float = 0.0,
        late: bool = False,
    ) -> None:
        self._numbers = numbers
        self._failed = _raise if failed is None else failed
        self.thread_group: ThreadGroup[W] = ThreadGroup(exit_seconds, alone_seconds)
        # Nothing in it refers to the pool.
        self._make: Callable[[int], Thread] = partial(
            _thread, self.thread_group, name, enter, self._failed, late
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
        first, begun = self._numbers.start, len(self._numbers)
        if begun < threads:
            self._numbers = range(first, first + threads)
            if not self._to_start:
                try:
                    self._start_threads(begun)
                finally:
                    self._numbers = range(first, first + len(self.threads))
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
        """Tell who waits for threads of those that have ended, and could not say so."""
        for thread in self.threads:
            died = getattr(thread, "died", None)
            if died is not None and thread.lost:  # type: ignore[attr-defined]
                died(RuntimeError("a thread has ended, as for want of memory"))

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
                self._failed(self._numbers.start + len(self.threads), reported)
            raise

    def _start_threads(self, begun: int) -> None:
        """Start the threads that there are not yet.

        Args:
            begun: How many there are.
        """
        group = self.thread_group
        numbers = self._numbers[begun:]
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
    late: bool,
    number: int,
) -> Thread:
    """Return a thread, which is not started."""
    args = group, enter, number, late
    thread = Joinable(target=_run, args=args, name=f"{name}-{number}", daemon=True)
    thread.died = partial(_died, group, failed, number)
    return thread


def _check(group: ThreadGroup[Any]) -> None:
    """Refuse to start a thread that nobody would wait for."""
    if is_exiting() or group.stopping:
        raise ClosedError(_EXITING if is_exiting() else STOPPED)


def _run(
    group: ThreadGroup[W],
    enter: Callable[[int], AbstractContextManager[W]],
    number: int,
    late: bool,
) -> None:
    """Run jobs until there are none; the body of each thread."""
    running = _running  # a child that a job forks has another
    try:
        # Whoever stops a group, or ends the interpreter, waits for the threads that are alive then;
        # any other thread comes here later, and must do nothing.
        if group.stopping or is_exiting():
            return
        with ExitStack() as life:
            mmap(-1, NEEDED).close()  # or an error, where native code would end the process
            life.enter_context(stopped_by(group.ended))
            job = group.take() if late else None
            if late and job is None:
                return
            worker = life.enter_context(enter(number))
            enter = DROPPED  # errors keep the frames that led to them, this one included
            ran = False
            while (job := job or group.take(ran=ran)) is not None:
                try:
                    job(worker)
                finally:
                    if running is not _running:
                        os._exit(0)  # the job has forked, and what follows needs locks
                ran, job = True, None  # an idle thread keeps no batch alive
    finally:
        worker = job = DROPPED  # the same
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
