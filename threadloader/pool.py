"""The pool: named threads that take jobs from the oldest work first.

A *work* is something that can be cut into jobs: the pool asks the oldest one for its next job
until it has none left, so that all threads stand behind the batch that is delivered next.  The
pool knows nothing about what a job does.

The threads are daemons that the pool joins itself: when asked to, and for at most two seconds
when the interpreter exits.  Ordinary threads would be joined there without a limit, so that one
sample stuck in a read would keep the process for ever; daemons that nobody joins would be cut
off inside native code, and torch aborts the process then.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque
from queue import SimpleQueue
from threading import Lock, RLock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from threadloader.dropping import when_dropped
from threadloader.errors import ClosedError
from threadloader.stopping import Stop, stopped_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["Errand", "Job", "Pool", "Work", "begin_exit", "end_thread_at_exit"]

_STOPPED = "the threads have ended; iter(loader) starts new ones"
_EXITING = "no threads can be started any more: the interpreter exits"
EXIT_SECONDS = 2.0  # how long the interpreter's exit waits for running jobs; unmeasured, a choice

W = TypeVar("W")  # what a thread gets for its lifetime, and hands to each job
W_contra = TypeVar("W_contra", contravariant=True)


class Job(Protocol[W_contra]):
    """One piece of work.  It must not raise."""

    def __call__(self, worker: W_contra, /) -> None:
        """Do it, in the thread that ``worker`` describes."""


class Work(Protocol[W_contra]):
    """Something that hands out jobs until it has none left."""

    def claim(self) -> Job[W_contra] | None:
        """Return the next job, or None for ever after the last.

        Called with the pool's lock held: it must be quick and run no user code.
        """

    def jobs(self) -> int:
        """Estimate how many jobs are left, at least 1; that many threads are woken."""


class Errand(Generic[W]):
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


# Every crew whose threads may be running: the process-wide hook of the interpreter's exit.
_teams_lock = RLock()  # a finalizer of the user's may run inside, and start a pool
_teams: weakref.WeakKeyDictionary[_Crew[Any], tuple[Thread, ...]] = weakref.WeakKeyDictionary()


def _forget_teams() -> None:
    """Start afresh in a forked child: there are no threads, and the lock may be held."""
    global _teams, _teams_lock  # of the process, and this is a new one
    _teams, _teams_lock = weakref.WeakKeyDictionary(), RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_teams)

_leaving = False  # whether the interpreter exits; only ever set, with _teams_lock held


def begin_exit() -> None:
    """Let no thread start any more: nobody would wait for it."""
    global _leaving  # noqa: PLW0603  # there is one interpreter to leave
    with _teams_lock:
        _leaving = True


@atexit.register
def _leave() -> None:
    """Stop all threads of all pools, and wait for them within one limit."""
    begin_exit()
    with _teams_lock:
        teams = dict(_teams)
    for crew in teams:
        crew.stop()
    deadline = time.monotonic() + EXIT_SECONDS
    for threads in teams.values():
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def end_thread_at_exit() -> None:
    """End the calling thread without a word if the interpreter exits.

    What consumes batches then, outside the main thread, is a daemon thread that the user left
    to its fate: there is nobody to tell, and a traceback on the screen would look like a bug.

    Raises:
        SystemExit: Ends the thread; `threading` prints nothing for it.
    """
    if _leaving and current_thread() is not main_thread():
        raise SystemExit


class _Crew(Generic[W]):
    """What a pool and its threads share; it references neither.

    Idle threads wait for a token, not on a condition: a finalizer has to wake them, it can run
    at any moment, also inside one of our own locks, and `SimpleQueue.put` is the one call of the
    standard library that is promised to be safe there.

    Invariants, whenever ``_lock`` is not held:
        1. Works are in the order in which they were put.
        2. ``_idle`` plus the tokens True on their way is the number of threads that wait or are
           about to, less those that a token False has just woken: no wake-up is lost, and one
           too many costs a look at the queue.

    Threads:
        put: the planner or a reader.
        take: worker only.
        stop, wake: shared, also from finalizers; they take no lock.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # True: the waker took it off _idle
        self.stopping = False  # only ever set; read and written whole, on both builds
        self.ended = Stop()  # for jobs that wait, for the next try of a remote read say
        self._lock = Lock()
        # All below: guarded by _lock.
        self._works: deque[Work[W]] = deque()
        self._idle = 0

    def put(self, work: Work[W]) -> None:
        with self._lock:
            if self.stopping:
                raise ClosedError(_STOPPED)
            self._works.append(work)
            self._wake(work.jobs())

    def take(self) -> Job[W] | None:
        """Return the next job of the oldest work, waiting for one; None to end the thread."""
        while True:
            # Works are dropped after the lock is released: with their last reference goes what
            # they hold, and with that may run finalizers of the user's.
            dropped: list[Work[W]] = []
            with self._lock:
                if self.stopping:
                    dropped += self._works
                    self._works.clear()
                    return None
                job = self._claim(dropped)
                if job is not None:
                    return job
                self._idle += 1
            dropped.clear()
            if not self._tokens.get():
                with self._lock:
                    self._idle -= 1

    def stop(self) -> None:
        self.stopping = True
        self.ended.set()
        for _ in range(self._size):
            self._tokens.put(False)

    def wake(self) -> None:
        self._tokens.put(False)

    def _claim(self, dropped: list[Work[W]]) -> Job[W] | None:
        """Return the oldest job; move works that have none.  Call with ``_lock`` held."""
        while self._works:
            job = self._works[0].claim()
            if job is not None:
                # What `put` woke was an estimate, which samples may have made too low since.
                if self._idle > 0 and (len(self._works) > 1 or self._works[0].jobs() > 1):
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


class Pool(Generic[W]):
    """A fixed number of threads, started on the first `put`.

    Args:
        size: Threads, at least 1.
        name: Prefix of the threads' names, which become ``<name>-<role>-<n>``.
        enter: Makes the context in which thread ``n`` runs; its value is given to each job.
        first: The number of the first thread.
        role: What its threads are called.

    Threads:
        put, start: one thread at a time, the planner or a reader.
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
    ) -> None:
        self._role = role
        self.size = size
        self._first = first
        self._name = name
        self._enter = enter
        self._crew: _Crew[W] = _Crew(size)
        self._threads: list[Thread] = []
        # Dropping the pool only signals: a finalizer must not wait for anybody.
        when_dropped(self, self._crew.stop)

    def put(self, work: Work[W]) -> None:
        """Queue ``work`` behind all that was put before.

        Raises:
            ClosedError: The pool was stopped, or the interpreter exits.
            RuntimeError: A thread can't be started.
        """
        self.start()
        self._crew.put(work)

    def stop(self) -> None:
        """Let every thread end after its running job.  Idempotent; does not wait."""
        self._crew.stop()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called; stale as soon as it is read."""
        return self._crew.stopping

    @property
    def threads(self) -> tuple[Thread, ...]:
        """The threads that were started."""
        return tuple(self._threads)

    def wake(self) -> None:
        """Let an idle thread look at the queue again, to drop works that were cancelled."""
        self._crew.wake()

    def start(self) -> None:
        """Start the threads now; otherwise the first `put` does.  Idempotent.

        Raises:
            ClosedError: The interpreter exits.
            RuntimeError: A thread can't be started.
        """
        if not self._threads:
            self._start()

    def join(self) -> None:
        """Wait until every thread has ended; call `stop` first."""
        for thread in self._threads:
            if thread is not current_thread():
                thread.join()

    def _start(self) -> None:
        # All threads exist before any has a job: on an ordinary build the first to run a long
        # sample would hold the GIL, and each further start would wait for it in turn.
        with _teams_lock:
            if _leaving:
                raise ClosedError(_EXITING)
            try:
                for number in range(self._first, self._first + self.size):
                    thread = Thread(
                        target=_run,
                        args=(self._crew, self._enter, number),
                        name=f"{self._name}-{self._role}-{number}",
                        daemon=True,
                    )
                    thread.start()
                    self._threads.append(thread)
            except BaseException:  # no more threads to be had, or Ctrl-C: better none than some
                self.stop()
                raise
            finally:
                _teams[self._crew] = tuple(self._threads)


def _run(crew: _Crew[W], enter: Callable[[int], AbstractContextManager[W]], number: int) -> None:
    """Run jobs until there are none; the body of each thread."""
    with stopped_by(crew.ended), enter(number) as worker:
        del enter  # errors keep the frames that led to them, this one included
        while (job := crew.take()) is not None:
            job(worker)
            del job  # an idle thread keeps no batch alive
