"""How many threads of a pool run jobs at once: as many as make samples come fastest.

Where there is an interpreter lock, threads may be slower together than one alone.  Each operator of
torch's releases the lock, and then waits until it has it again; two threads that do so by turns
wake each other every few microseconds (bench: cifar).  Reads of a network go faster with a hundred
threads than with as many as cores.  Nothing tells beforehand which data that is.  So it is tried.

`Concurrency` measures; `advise` decides.
"""

from __future__ import annotations

import math
import sys
from threading import Lock
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, NamedTuple

from threadloader._threads.advice import (
    FIRST_PAUSE,
    MISTAKE,
    SHORT,
    Found,
    Range,
    Sample,
    Timing,
    advise,
    needs_fewer,
)
from threadloader._threads.inline_choice import InlineChoice
from threadloader._threads.run_delay import run_delay

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Concurrency", "gil_is_enabled"]

# Chosen so that a try costs little, and is rarely wrong.
TIMED_SECONDS = 0.1  # wall time of jobs, of all threads together, that make a measurement
TIMED_JOBS = 16  # and how many of them, at the least
LEAST_ELAPSED = (
    0.08  # seconds in which they end, of more threads than cores: many end theirs together
)
MISTAKE_SECONDS, MISTAKE_JOBS = 0.01, 4  # the same where a try is a mistake
MOST_IGNORED = 1 << 10  # jobs, after a change
# Seconds of a new thread's first sample, of those that others take later, and beyond them, from
# which on it has opened or loaded something; and how many threads in a row: one may be delayed.
DEAR, DEAR_SECONDS, DEAR_THREADS = 10.0, 0.05, 2
ONLY_WAITS = 0.8  # share of its time that the consumer waits, from which on it does nothing else


def gil_is_enabled() -> bool:
    """Whether the GIL is on now.

    Ask after the last import: on a free-threaded build an extension module that does not declare
    support switches it on for the whole process.
    """
    if sys.version_info >= (3, 13):
        return sys._is_gil_enabled()  # the documented way to ask
    return True


class _Since(NamedTuple):
    """When jobs began to be measured."""

    now: float  # on the clock
    waited: float  # seconds that the consumer had waited until then, in all
    used: float  # CPU seconds of the process until then


class Concurrency:
    """The number of threads that may run jobs at once; a loader keeps it from epoch to epoch.

    Jobs are what they are whatever it says: it decides when they run, not what is in a batch.

    Args:
        clock: Returns seconds.
        process_cpu: Returns the CPU seconds of the process.

    Invariants, whenever ``_deciding`` is not held:
        1. The limit is what was found last.

    Threads:
        limit, due, asks_delay, consumer_only_waits: any; read and written whole, on both builds.
        running, exceeds_cores, gains_nothing: any; read and written whole, on both builds.
        serve: planner.
        expect, begin_again, waited, is_settled: consumer.
        changed_to: set by a worker, set back by the consumer; a racing change is not told.
        begin_wait, end_wait: consumer.  Racing updates lose one wait of many, which is harmless.
        begin_job, end_job, measured: worker.  Racing updates lose one measurement of many, which is
            harmless.
        stalled: worker, with the pool's lock held.
        bound, cannot_exceed, grown: worker.  Racing updates of ``grown`` lose one thread of many.
    """

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        process_cpu: Callable[[], float] = process_time,
    ) -> None:
        self.limit = sys.maxsize
        self.due = 0.0  # on the clock; before that no job needs to be measured
        self.asks_delay = False  # whether the time in which a job waits for a core is asked for
        # Whether a consumer that makes batches itself, or waits for one thread, does nothing else.
        self.consumer_only_waits = False
        self.range = Range(sys.maxsize, sys.maxsize, has_gil=True)
        self.inline_choice = InlineChoice()
        # Seconds of a sample since the data has changed, until the consumer knows; 0 if it does.
        self.changed_to = 0.0
        self._clock, self._process_cpu = clock, process_cpu
        self._waited = 0.0  # seconds, in all
        self._waits_since: float | None = None  # on the clock; None if the consumer has its batch
        self._timing = Timing()
        self._since = _Since(0.0, 0.0, 0.0)  # when its first job could begin
        # Jobs that began while another limit was left, or before it was asked for what they take.
        self._to_ignore = 1
        # Held by the thread that decides; the others go on.
        self._deciding = Lock()
        # All below: guarded by _deciding, but that `serve`, `stalled` and `cannot_exceed` write it
        # too.  What was decided may be lost then, until the next measurement.
        self._found, self._found_at = Found(sys.maxsize), clock()
        self._dear = 0  # new threads in a row whose first sample took long
        self._is_new = True  # whether nothing was measured, nor expected
        self._said = sys.maxsize  # the limit that was logged last, or the first

    def __reduce__(self) -> tuple[type[Concurrency], tuple[()]]:
        """Return a fresh one for a copy: another loader finds its own number."""
        return Concurrency, ()

    def serve(self, may: Range) -> None:
        """Say how many threads there may be: those of an epoch that begins.

        What was found before stays, if it is among them.
        """
        if may == self.range:
            return
        self.range = may
        begin = sys.maxsize if may.is_fixed else may.threads
        found = begin if self.limit == sys.maxsize else min(self.limit, may.most)
        self._is_new = self.limit == sys.maxsize
        self._set(Found(found))
        self._said = found

    @property
    def exceeds_cores(self) -> bool:
        """Whether more threads run than there are cores, as their samples wait."""
        return self.range.threads < self.limit <= self.range.most

    @property
    def is_settled(self) -> bool:
        """Whether no other number is being tried, and no more threads run than there are cores."""
        return self._found.tried is None and not self.exceeds_cores

    @property
    def waited(self) -> float:
        """The seconds that the consumer has waited until now, in all."""
        since = self._waits_since
        return self._waited + (0.0 if since is None else self._clock() - since)

    def running(self) -> int:
        """Return how many threads may run jobs."""
        return min(self.limit, self.range.most)

    def gains_nothing(self, seconds: float) -> bool:
        """Whether a thread beside a consumer that only waits for it would gain nothing.

        So it is where there is a GIL, and samples are short: then they hold it, as a rule.

        Args:
            seconds: That a sample takes.
        """
        return self.range.has_gil and seconds < SHORT

    def expect(self, seconds: float) -> None:
        """Begin with one thread where samples are short and there is a GIL, which they then hold.

        Whether more are faster is found later, as ever.

        Args:
            seconds: That a sample takes.
        """
        if self._is_new and not self.range.is_fixed and self.gains_nothing(seconds):
            self._set(self._found._replace(limit=1, due=FIRST_PAUSE))
            self._said = 1
        elif self._is_new and 0.0 < seconds < math.inf:
            # The first samples may have loaded what all others find loaded.
            self._set(self._found._replace(usual=Sample(seconds, 0.0)))
        self._is_new = False

    def begin_again(self) -> None:
        """Forget what jobs took before the calling thread made batches for a while."""
        self._set(self._found._replace(left=0.0, due=0.0))

    def bound(self, names: list[str]) -> None:
        """Run at most two threads a core, if each opens something of its own.

        Args:
            names: Of the attributes that it opens; none for no bound.
        """
        most = 2 * self.range.threads
        if names and self.range.most > most:
            self.cannot_exceed(most, f"each opens {names[0]!r} for itself; threads= allows more")

    def grown(self, threads: int, seconds: float, usual: float) -> None:
        """Take the first sample of a thread beyond the cores into account.

        Args:
            threads: That there are.
            seconds: That it took.
            usual: That others take.
        """
        dear = seconds > max(DEAR * usual, usual + DEAR_SECONDS)
        self._dear = self._dear + 1 if dear else 0
        if self._dear >= DEAR_THREADS:
            self._dear = 0
            took = f"the first sample of each takes {seconds:.3f} s, and others {usual:.3f} s"
            self.cannot_exceed(threads, took)

    def cannot_exceed(self, threads: int, reason: str) -> None:
        """Run no more than so many threads in an epoch.

        Args:
            threads: At the most.
            reason: Why.
        """
        may = self.range
        self.range = may._replace(threads=min(may.threads, threads), most=min(may.most, threads))
        found = self._found.postponed()
        self._set(found._replace(limit=min(self.limit, threads), tried=None, usual=None))
        self._said = self.limit
        _log("%s threads run at most: %s", threads, reason)

    def begin_wait(self) -> None:
        """Note that the consumer begins to wait for a batch."""
        self._waits_since = self._clock()

    def end_wait(self) -> float:
        """Note that the consumer has its batch; return the seconds that it has waited."""
        since, self._waits_since = self._waits_since, None
        seconds = 0.0 if since is None else self._clock() - since
        self._waited += seconds
        return seconds

    def begin_job(self) -> tuple[int, float, float]:
        """Return what `end_job` needs: the limit, and the thread's CPU time and delay until now."""
        return self.limit, thread_time(), run_delay() if self.asks_delay else 0.0

    def end_job(self, begun: tuple[int, float, float], wall: float) -> None:
        """Take a job without samples into account: what is done with those of a whole batch.

        Args:
            begun: What `begin_job` returned.
            wall: Seconds that it took.
        """
        limit, cpu, delay = begun
        delay = run_delay() - delay if delay else 0.0
        self.measured(limit, 0, wall, thread_time() - cpu, delay)

    def measured(
        self, limit: int, samples: int, wall: float, cpu: float, delay: float = 0.0
    ) -> None:
        """Take a job that ended into account.

        Args:
            limit: When it began.
            samples: That it made.
            wall: Seconds that it took.
            cpu: Seconds of its thread.
            delay: Seconds in which its thread waited for a core, if ``asks_delay``.
        """
        if limit != self.limit or self._clock() < self.due:
            return
        if self._to_ignore > 0:
            self._to_ignore -= 1
            if self._to_ignore <= 0:
                self._since, self._timing = self._now(), Timing()
            return
        self._timing = timing = self._timing.plus(samples, wall, cpu, delay)
        if not self._is_enough(timing):
            return
        if self._deciding.acquire(blocking=False):
            said = self._said
            try:
                found = self._decide(timing, limit)
            finally:
                self._deciding.release()
            if found is not None and found.tried is None:
                before, after = min(said, self.range.most), self.running()
                if after != before:
                    _log("%s threads run, not %s: %s", after, before, found.reason)

    def stalled(self, threads: int) -> None:
        """Let all threads run jobs: for a while no job was taken, so those that run may wait.

        Args:
            threads: That there are.
        """
        limit = sys.maxsize if self.range.is_fixed else max(self.limit, threads)
        self._set(self._found.postponed()._replace(limit=limit, tried=None, usual=None))

    def _is_enough(self, timing: Timing) -> bool:
        """Whether jobs tell how fast they come; sooner if a few say that all is different."""
        running, found = self.running(), self._found
        if not timing.samples:
            return False
        if timing.wall >= TIMED_SECONDS and timing.jobs >= max(TIMED_JOBS, 2 * running):
            long = self._clock() - self._since.now >= LEAST_ELAPSED
            return long or running <= self.range.threads
        if found.tried is None:
            return timing.jobs == TIMED_JOBS and needs_fewer(found, timing, self.range)
        if timing.wall < MISTAKE_SECONDS or timing.jobs < MISTAKE_JOBS:
            return False
        return running * timing.samples < MISTAKE * found.tried.rate * timing.wall

    def _decide(self, timing: Timing, limit: int) -> Found | None:
        """Set the limit by what was measured under the present one; return what was found.

        Call with the lock held.
        """
        if timing is not self._timing or limit != self.limit:
            return None  # another thread has decided, by the same jobs or by others
        since, now = self._since, self._now()
        timing = timing._replace(
            elapsed=now.now - since.now,
            waited=now.waited - since.waited,
            used=now.used - since.used,
            passed=now.now - self._found_at,
        )
        changes = self._found.changes
        found = advise(self._found, timing, self.range)
        self._set(found)
        if found.changes != changes:
            self.changed_to = timing.shortest
        if timing.wall and self.running() == 1:
            short = self.gains_nothing(timing.wall / timing.samples)
            self.consumer_only_waits = short and timing.waited > ONLY_WAITS * timing.elapsed
        if found.tried is None:
            self._said = found.limit
        return found

    def _now(self) -> _Since:
        now, since = self._clock(), self._waits_since
        waited = self._waited + (0.0 if since is None else now - since)
        return _Since(now, waited, self._process_cpu())

    def _set(self, found: Found) -> None:
        """Keep what was found, and forget what was measured."""
        changed = found.limit != self.limit
        self._found, self._found_at = found, self._clock()
        self.due = self._found_at + found.due if found.due else 0.0
        self.limit, self.asks_delay = found.limit, found.asks_delay
        most_ignored = MOST_IGNORED if changed else TIMED_JOBS
        self._to_ignore = min(found.limit, self.range.most, most_ignored)
        self._timing = Timing()


def _log(text: str, *values: object) -> None:
    """Say how many threads run, and why, if anybody listens."""
    logging = sys.modules.get("logging")  # where nobody has imported it nobody listens
    if logging is not None:
        logging.getLogger("threadloader").info(text, *values)
