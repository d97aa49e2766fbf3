"""What a pool and its threads share: the queue of works, the idle threads, and the stop flag.

A *work* is something that can be cut into jobs.  The threads take jobs of the oldest work until it
has none left, so that all of them stand behind the batch that is delivered next.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from threadloader._threads.waiting import Stop
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import Thread
    from typing import Any


# How long a first job runs alone, at the most.  It may load what all others find loaded, a table of
# gigabytes say; but it may also wait for others, and then all must run.  A choice, unmeasured.
FIRST_SECONDS = 30.0
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
        take, stay_alone: worker only.
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
        self._alone = int(alone_seconds > 0)  # jobs that are to run alone yet

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

    def stay_alone(self) -> None:
        """Let the thread that runs the first job run one more before others begin."""
        with self._lock:
            self._alone += self._alone == 1

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
        if ran and self._alone == 1:
            self._begin_all()
        elif ran and self._alone:
            self._alone -= 1

    def _begin_all(self) -> None:
        """Let jobs run beside the first one.  Call with ``_lock`` held."""
        if self._alone:
            self._alone = 0
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
