"""How many threads of a pool run jobs at once: as many as make samples come fastest.

Where there is an interpreter lock, threads may be slower together than one alone.  Each operator of
torch's releases the lock, and then waits until it has it again; two threads that do so by turns
wake each other every few microseconds (bench: cifar).  Nothing tells beforehand which data that is.
So it is tried: half the threads, and later twice as many, for as long as that is faster.
"""

from __future__ import annotations

import sys
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Concurrency", "gil_is_enabled"]

# Chosen so that a try costs little, and is rarely wrong.
TIMED_SECONDS = 0.1  # wall time of jobs, of all threads together, that make a measurement
TIMED_JOBS = 16  # and how many of them, at the least
# The same where a try is a mistake, and the rate below which it is, of that before.
MISTAKE_SECONDS, MISTAKE_JOBS, MISTAKE = 0.01, 4, 0.75
# Wall time of jobs, of their CPU time, from which on fewer threads are tried; but without the time
# in which they are ready and others have the cores, where the system counts that.
WAITING = 1.25
LONGEST_JOB = 0.02  # CPU seconds; threads whose jobs take longer lose nothing by changing places
FEWER_ENOUGH = 0.98  # rate with half the threads, of that with all, from which on they are enough
MORE_NEEDED = 1.05  # rate with twice the threads, of that without, from which on they are needed
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds until the next try; each that fails doubles them


def gil_is_enabled() -> bool:
    """Whether the GIL is on now.

    Ask after the last import: on a free-threaded build an extension module that does not declare
    support switches it on for the whole process.
    """
    if sys.version_info >= (3, 13):
        return sys._is_gil_enabled()  # the documented way to ask
    return True


class _Timing(NamedTuple):
    """What some jobs took."""

    jobs: int = 0
    samples: int = 0
    wall: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of the threads that ran them
    delay: float = 0.0  # seconds in which these waited for a core, if `Concurrency.asks_delay`

    def plus(self, samples: int, wall: float, cpu: float, delay: float) -> _Timing:
        """Return the timing with one job more."""
        jobs, made = self.jobs + 1, self.samples + samples
        return _Timing(jobs, made, self.wall + wall, self.cpu + cpu, self.delay + delay)

    @property
    def waits(self) -> bool:
        """Whether the jobs took far longer than their CPU time, but for waiting for a core."""
        return self.wall - self.delay > WAITING * self.cpu


class _Try(NamedTuple):
    """A number of threads that is tried, and what it is compared with."""

    limit: int  # before it
    rate: float  # samples a second, then


class Concurrency:
    """The number of threads that may run jobs at once; a loader keeps it from epoch to epoch.

    Jobs are what they are whatever it says: it decides when they run, not what is in a batch.

    Args:
        clock: Returns seconds.

    Invariants, whenever ``_deciding`` is not held:
        1. The limit is what is tried, or, without a try, what was found last.

    Threads:
        limit, due, asks_delay: any; read and written whole, on both builds.
        measured: worker.  Racing updates lose one measurement of many, which is harmless.
        stalled: worker, with the pool's lock held.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.limit = sys.maxsize
        self.due = 0.0  # on the clock; before that no job needs to be measured
        self.asks_delay = False  # whether the time in which a job waits for a core is asked for
        self._clock = clock
        self._timing = _Timing()
        self._to_ignore = 1  # jobs that began while another limit was left, or that are the first
        # Held by the thread that decides; the others go on.
        self._deciding = Lock()
        # All below: guarded by _deciding, but that `stalled` writes it too.  What it decided may be
        # lost then, until the next stall.
        self._try: _Try | None = None
        self._fewer = True  # whether fewer threads are tried next
        self._pause = FIRST_PAUSE

    def __reduce__(self) -> tuple[type[Concurrency], tuple[()]]:
        """Return a fresh one for a copy: another loader finds its own number."""
        return Concurrency, ()

    def measured(
        self, limit: int, threads: int, samples: int, wall: float, cpu: float, delay: float = 0.0
    ) -> None:
        """Take a job that ended into account.

        Args:
            limit: When it began.
            threads: Of the pool.
            samples: That it made.
            wall: Seconds that it took.
            cpu: Seconds of its thread.
            delay: Seconds in which its thread waited for a core, if ``asks_delay``.
        """
        if limit != self.limit:
            return
        if self._to_ignore > 0:
            self._to_ignore -= 1
            return
        self._timing = timing = self._timing.plus(samples, wall, cpu, delay)
        enough = timing.jobs >= TIMED_JOBS and timing.wall >= TIMED_SECONDS
        if not enough and not self._is_mistake(timing, threads):
            return
        if self._deciding.acquire(blocking=False):
            try:
                self._decide(timing, threads)
            finally:
                self._deciding.release()

    def stalled(self, threads: int) -> None:
        """Let all threads run jobs: for a while no job was taken, so those that run may wait."""
        self._try = None
        self._postpone()
        self._set(sys.maxsize, threads)

    def _is_mistake(self, timing: _Timing, threads: int) -> bool:
        """Whether it is plain after a few jobs that what is tried is slower."""
        tried = self._try  # unlocked: read whole
        if tried is None or timing.jobs < MISTAKE_JOBS or timing.wall < MISTAKE_SECONDS:
            return False
        running = min(self.limit, threads)
        return running * timing.samples < MISTAKE * tried.rate * timing.wall

    def _decide(self, timing: _Timing, threads: int) -> None:
        """Set the limit by what was measured under the present one.  Call with the lock held."""
        if timing is not self._timing:
            return  # another thread has decided by the same jobs
        running = min(self.limit, threads)
        rate = running * timing.samples / timing.wall
        tried, self._try = self._try, None
        if tried is not None:
            needed = FEWER_ENOUGH if self._fewer else MORE_NEEDED
            if rate < needed * tried.rate:
                self._fewer = not self._fewer
                self._postpone()
                self._set(tried.limit, threads)
                return
            self._pause = FIRST_PAUSE
        asked, self.asks_delay = self.asks_delay, timing.waits
        if timing.waits and not asked:  # it may be a core that they wait for
            self._to_ignore, self._timing = 1, _Timing()
            return
        limit = self._next(timing, running, threads)
        if limit == running:
            self.due = self._clock() + FIRST_PAUSE
            self._timing = _Timing()
        else:
            self._try = _Try(self.limit, rate)
            self._fewer = limit < running
            self._set(limit, threads)

    def _next(self, timing: _Timing, running: int, threads: int) -> int:
        """Return the number of threads to try next; the present one for none."""
        waits = timing.waits and timing.cpu < LONGEST_JOB * timing.jobs
        if waits and running > 1 and (self._fewer or running == threads):
            return -(-running // 2)
        return min(2 * running, threads)

    def _set(self, limit: int, threads: int) -> None:
        """Set the limit, and forget what was measured."""
        self.limit = limit
        self._to_ignore = threads
        self._timing = _Timing()

    def _postpone(self) -> None:
        """Try nothing for a while, which is twice as long as the last time."""
        self.due = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
