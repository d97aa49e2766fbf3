"""What a pool and its threads share: the queue of works, the idle threads, and the stop flag.

A *work* is something that can be cut into jobs.  The threads take jobs of the oldest work until it
has none left, so that all of them stand behind the batch that is delivered next.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from threadloader._threads.stopping import Stop
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Thread
    from typing import Any

    from threadloader._threads.concurrency import Concurrency

__all__ = ["STOPPED", "Job", "SingleJob", "ThreadGroup", "Work", "join"]

STANDBY_SECONDS = 0.05  # far more than a job takes of which fewer threads run at once
# The same while a first job runs alone.  It may load what all others find loaded, a table of
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

    Where fewer threads may run jobs at once than there are, a thread that comes back takes the next
    job itself, so the others sleep on.  One of them, the standby, looks after a while whether any
    job was taken since: samples may wait for one another, and then all threads must run.

    The first job may run alone: what it imports, loads or opens, the others find there.

    Args:
        size: Threads to begin with.
        exit_seconds: See `Pool`.
        concurrency: Says how many threads may run jobs at once; None for all.
        most: Threads that there may be; None for no more than to begin with.
        alone_seconds: For how long at most no other job is begun before the first one has ended; 0
            for not at all.

    Invariants, whenever ``_lock`` is not held:
        1. Works are in the order in which they were put.
        2. ``_idle`` plus the tokens True on their way is the number of threads that wait or are
           about to, less the threads that a token False has just woken.  So no wake-up is lost,
           and one too many costs a look at the queue.
        3. ``_running`` is the number of threads that took a job and have not come back.
        4. While a job runs that was taken under a limit, there is a standby, or a thread on its way
           to be one, if any thread is idle.

    Threads:
        put: the planner or a reader.
        take, grow, grown, cannot_grow: worker only.
        stop, wake: shared, also from finalizers; they take no lock.
        threads, gone, size: shared; a list that is appended to and copied, atomic on both builds.
    """

    def __init__(
        self,
        size: int,
        exit_seconds: float,
        concurrency: Concurrency | None = None,
        most: int | None = None,
        *,
        alone_seconds: float = 0.0,
    ) -> None:
        self.exit_seconds = exit_seconds
        self._most = size if most is None else most
        self._concurrency = concurrency
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # True: the waker took it off _idle
        self.stopping = False  # only ever set; read and written whole, on both builds
        self.ended = Stop()  # wakes jobs that wait, for the next try of a remote read say
        self.threads: list[Thread] = []  # each from before its start on
        self.start_seconds = 0.0  # that their start took the one who gave the first work
        # Starts more threads, up to the limit; None where there are all.  Set once, by the pool.
        self.start_more: Callable[[], None] | None = None
        self._lock = Lock()
        # All below: guarded by _lock.
        self._works: deque[Work[W]] = deque()
        self._idle = 0
        self._running = 0
        self._size = size
        self._limit = size  # as it was last seen
        self._taken = 0  # jobs so far
        self._has_standby = False
        self._alone_seconds = alone_seconds
        self._alone = int(alone_seconds > 0)  # jobs that are to run alone yet

    def put(self, work: Work[W]) -> None:
        """See `Pool.put`."""
        with self._lock:
            if self.stopping:
                raise ClosedError(STOPPED)
            self._works.append(work)
            if self._idle > 0:
                room = self._room()
                if room > 0:  # to estimate the jobs takes longer than all else here
                    self._wake(min(room, work.jobs()))
                elif not self._has_standby:  # another pool has lowered the limit
                    self._wake(1)

    def take(self, *, ran: bool = False) -> Job[W] | None:
        """Return the next job of the oldest work, waiting for one; None to end the thread.

        Args:
            ran: Whether the thread has run the job that it took last.
        """
        taken: int | None = None  # as the standby: the jobs taken when it began to wait
        woken: bool | None = True  # by a token; None if the standby has waited long enough
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
                if taken is not None:
                    self._has_standby = False
                    if woken is None and taken == self._taken:
                        job = self._claim(dropped)
                        if job is not None:
                            self._lift()
                            return job
                room = self._room()  # once: it may grow meanwhile, and then wakes the others only
                job = self._claim(dropped) if room > 0 else None
                if job is not None:
                    return job
                taken = None if room > 0 else self._stand_by()
                seconds = self._alone_seconds if self._alone else STANDBY_SECONDS
                self._idle += 1
            dropped.clear()
            woken = self._wait(None if taken is None else seconds)
            if not woken:
                with self._lock:
                    self._idle -= 1

    def stay_alone(self) -> None:
        """Let the thread that runs the first job run one more before others begin."""
        with self._lock:
            self._alone += self._alone == 1

    def stop(self) -> None:
        """See `Pool.stop`."""
        self.stopping = True
        self.start_more = None
        self.ended.set()
        # A thread that is noted later sees that it was stopped.
        for _ in range(len(self.threads)):
            self._tokens.put(False)

    def wake(self) -> None:
        """See `Pool.wake`."""
        self._tokens.put(False)

    def grown(self) -> None:
        """Count a thread that was started later."""
        with self._lock:
            self._size += 1
            if self._works:
                self._room()

    @property
    def size(self) -> int:
        """The number of threads; stale as soon as it is read."""
        return self._size

    @property
    def is_to_grow(self) -> bool:
        """Whether more threads may run jobs than there are, and more can be started."""
        concurrency = self._concurrency
        if self.start_more is None or concurrency is None:
            return False
        # Its own bound, as well: of an epoch that began later more may be allowed.
        return min(concurrency.running(), self._most) > self._size and not self.stopping

    def cannot_grow(self, error: Exception) -> None:
        """Start no more threads, and let nobody wait for more.

        Args:
            error: The reason.
        """
        self.start_more = None
        if self._concurrency is not None and not self.stopping:
            self._concurrency.cannot_exceed(self._size, f"no more can be started: {error!r}")

    def grow(self) -> None:
        """Start more threads, if more may run jobs than there are."""
        start_more = self.start_more  # once: it is dropped when the group is stopped
        if start_more is not None and self.is_to_grow:
            start_more()

    @property
    def gone(self) -> bool:
        """Whether the group was stopped, and no thread is left."""
        return self.stopping and not any(thread.is_alive() for thread in self.threads.copy())

    def _room(self) -> int:
        """Return how many more threads may run jobs; wake all if there may be more than before.

        Call with ``_lock`` held.
        """
        if self._alone:
            return 1 - self._running
        if self._concurrency is None:
            return self._size - self._running
        limit = min(self._size, self._concurrency.limit)
        if limit > self._limit:  # raised: what `put` did not wake for
            self._wake(self._idle)
        self._limit = limit
        return limit - self._running

    def _lift(self) -> None:
        """Let all threads run jobs, as those that run may wait.  Call with ``_lock`` held."""
        self._begin_all()
        if self._concurrency is not None:
            self._concurrency.stalled(self._size)
            self._room()  # wakes the others

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
            self._wake(self._idle)

    def _stand_by(self) -> int | None:
        """Become the standby, if there is none and a job runs.  Call with ``_lock`` held.

        Returns:
            The jobs taken so far; None if the thread may sleep until it is woken.
        """
        if self._has_standby or not self._running:
            return None
        self._has_standby = True
        return self._taken

    def _wait(self, seconds: float | None) -> bool | None:
        """Return the next token; None if the standby has waited long enough.

        Args:
            seconds: That the standby waits; None for any other thread.
        """
        if seconds is None:
            return self._tokens.get()
        try:
            return self._tokens.get(timeout=seconds)
        except Empty:
            return None

    def _claim(self, dropped: list[Work[W]]) -> Job[W] | None:
        """Return the oldest job; move works that have none.  Call with ``_lock`` held."""
        while self._works:
            job = self._works[0].claim()
            if job is not None:
                self._running += 1
                self._taken += 1
                if self._idle > 0:
                    if self._room() <= 0:
                        if not self._has_standby:
                            self._wake(1)  # to be it
                    # `put` woke as many threads as it estimated: samples may be slower since.
                    elif len(self._works) > 1 or self._works[0].jobs() > 1:
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
