"""How many threads of a pool run jobs at once: as many as make samples come fastest.

Where there is an interpreter lock, threads may be slower together than one alone.  Each operator of
torch's releases the lock, and then waits until it has it again; two threads that do so by turns
wake each other every few microseconds (bench: cifar).  Reads of a network go faster with a hundred
threads than with as many as cores.  Nothing tells beforehand which data that is.  So it is tried:
half the threads, or twice as many, for as long as that is faster.

`Concurrency` measures; `advise` decides, a function of what was measured and of nothing else.
"""

from __future__ import annotations

import math
import sys
from threading import Lock
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, NamedTuple

from threadloader._threads.inline_choice import InlineChoice
from threadloader._threads.run_delay import run_delay

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Concurrency", "Found", "Range", "Timing", "advise", "gil_is_enabled"]

# Chosen so that a try costs little, and is rarely wrong.
TIMED_SECONDS = 0.1  # wall time of jobs, of all threads together, that make a measurement
TIMED_JOBS = 16  # and how many of them, at the least
# The same where a try is a mistake, and the rate below which it is, of that before.
MISTAKE_SECONDS, MISTAKE_JOBS, MISTAKE = 0.01, 4, 0.75
WAITING = 1.25  # wall time of jobs, of their CPU time, from which on they wait
LONGEST_JOB = 0.02  # CPU seconds; threads whose jobs take longer lose nothing by changing places
# Share of the cores that threads use below which they wait for something else, if that takes as
# large a share of their time; with a GIL of one core, as nobody runs while it is passed on.
IDLE, IDLE_WITH_GIL = 0.5, 0.1
FEWER_ENOUGH = 0.98  # rate with half the threads, of that with all, from which on they are enough
MORE_NEEDED = 1.05  # rate with twice the threads, of that without, from which on they are needed
AWAITED = 0.02  # share of the time that the consumer waits, from which on more threads are tried
SPARE = 1.5  # threads that stay for each that has jobs all the time, where the others have none
MOST_CALM = 32  # measurements in a row, before threads are given back that were needed before
MOST_IGNORED = 1 << 10  # jobs, after a change
SHORT = 1e-4  # seconds of a sample that does nothing for which it lets go of the GIL for long
ONLY_WAITS = 0.8  # share of its time that the consumer waits, from which on it does nothing else
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds until the next try; each that fails doubles them


def gil_is_enabled() -> bool:
    """Whether the GIL is on now.

    Ask after the last import: on a free-threaded build an extension module that does not declare
    support switches it on for the whole process.
    """
    if sys.version_info >= (3, 13):
        return sys._is_gil_enabled()  # the documented way to ask
    return True


class Range(NamedTuple):
    """How many threads a pool may run."""

    threads: int  # to begin with: the cores, or the number that the user chose
    most: int  # for data that waits; as many if the user chose
    has_gil: bool

    @property
    def is_fixed(self) -> bool:
        """Whether the user chose the number, of which no thread is given back."""
        return self.most == self.threads


class Timing(NamedTuple):
    """What some jobs took."""

    jobs: int = 0
    samples: int = 0
    wall: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of the threads that ran them
    delay: float = 0.0  # seconds in which they waited for a core, if `Found.asks_delay` was set
    elapsed: float = 0.0  # seconds from the end of the job before them
    waited: float = 0.0  # seconds in which the consumer waited meanwhile

    def plus(self, samples: int, wall: float, cpu: float, delay: float) -> Timing:
        """Return the timing with one job more."""
        return Timing(
            self.jobs + 1,
            self.samples + samples,
            self.wall + wall,
            self.cpu + cpu,
            self.delay + delay,
        )


class _Try(NamedTuple):
    """A number of threads that is tried, and what it is compared with."""

    limit: int  # before it
    rate: float  # samples a second, then
    reason: str  # of that limit


class Found(NamedTuple):
    """What was found so far."""

    limit: int  # threads that may run jobs at once
    tried: _Try | None = None  # what that number is compared with, while it is only tried
    fewer: bool = True  # whether fewer threads are tried next
    pause: float = FIRST_PAUSE  # seconds until the next try, after one that fails
    due: float = 0.0  # seconds until jobs are measured again
    unused: int = 0  # measurements in a row in which threads had nothing to do
    calm: int = 2  # and how many of them give threads back
    asks_delay: bool = False  # whether it has to be known how long jobs wait for a core
    reason: str = ""  # of the limit, in words

    def postponed(self) -> Found:
        """Try nothing for a while, which is twice as long as the last time."""
        return self._replace(due=self.pause, pause=min(2 * self.pause, LONGEST_PAUSE))


def advise(found: Found, timing: Timing, may: Range) -> Found:
    """Return how many threads should run jobs, and when jobs are to be measured again.

    Args:
        found: What was found before.
        timing: What jobs took with its limit.
        may: How many threads there may be.
    """
    running = min(found.limit, may.most)
    rate = running * timing.samples / timing.wall
    tried, found = found.tried, found._replace(tried=None, due=0.0)
    if tried is not None:
        less = running < tried.limit
        if rate < (FEWER_ENOUGH if less else MORE_NEEDED) * tried.rate:
            # The other way, next.
            found = found._replace(limit=tried.limit, reason=tried.reason, fewer=not less)
            return found.postponed()
        found = found._replace(pause=FIRST_PAUSE)
    waits, _ = _kind(timing, running, may)
    if waits and not found.asks_delay:
        return found._replace(asks_delay=True)  # it may be a core that they wait for
    found = found._replace(asks_delay=waits)
    limit, reason = _to_try(found, timing, running, may)
    if limit != running:
        calm = min(2 * found.calm, MOST_CALM) if found.limit < limit else found.calm
        attempt = _Try(found.limit, rate, found.reason)
        return found._replace(
            limit=limit, tried=attempt, fewer=limit < running, unused=0, calm=calm, reason=reason
        )
    found = found._replace(due=FIRST_PAUSE)
    needed = _needed(timing, running, may)
    if needed >= running:
        return found._replace(unused=0)
    if found.unused + 1 < found.calm:
        return found._replace(unused=found.unused + 1)
    reason = f"{running - needed} of {running} had nothing to do"
    return found._replace(limit=needed, unused=0, reason=reason)


def _kind(timing: Timing, running: int, may: Range) -> tuple[bool, bool]:
    """Return whether jobs wait, but for a core, and whether it is not for the GIL, either."""
    waits = timing.wall - timing.delay > WAITING * timing.cpu
    blocked = timing.wall - timing.delay
    if may.has_gil:
        idle = running * timing.cpu < IDLE_WITH_GIL * blocked
    else:
        used = running * timing.cpu / timing.wall  # cores
        idle = used < IDLE * may.threads and blocked - timing.cpu > IDLE * timing.wall
    return waits, waits and idle


def _to_try(found: Found, timing: Timing, running: int, may: Range) -> tuple[int, str]:
    """Return a number of threads that may be better, and why; the present one for none."""
    waits, idle = _kind(timing, running, may)
    for_gil = may.has_gil and waits
    top = may.most if idle or for_gil else may.threads
    if for_gil and running > 1 and timing.cpu < LONGEST_JOB * timing.jobs:
        more_first = idle and found.pause == FIRST_PAUSE  # no try has failed
        if running >= top or (found.fewer and not more_first):
            return -(-running // 2), "samples wait for the GIL"
    if running > top:
        return max(top, running // 2), "samples keep the cores busy"
    if running == top or timing.waited < AWAITED * timing.elapsed:
        return running, ""
    return min(2 * running, top), "samples wait, not for a core" if idle else "you wait for batches"


def _needed(timing: Timing, running: int, may: Range) -> int:
    """Return how many threads have enough to do, if the consumer waits for none of them."""
    if may.is_fixed or timing.waited >= AWAITED * timing.elapsed:
        return running
    return max(1, min(running, math.ceil(SPARE * timing.wall / timing.elapsed)))


class Concurrency:
    """The number of threads that may run jobs at once; a loader keeps it from epoch to epoch.

    Jobs are what they are whatever it says: it decides when they run, not what is in a batch.

    Args:
        clock: Returns seconds.

    Invariants, whenever ``_deciding`` is not held:
        1. The limit is what was found last.

    Threads:
        limit, due, asks_delay, consumer_only_waits: any; read and written whole, on both builds.
        running, exceeds_cores, gains_nothing: any; read and written whole, on both builds.
        serve: planner.
        expect, begin_again, waited, is_settled: consumer.
        begin_wait, end_wait: consumer.  Racing updates lose one wait of many, which is harmless.
        begin_job, end_job, measured: worker.  Racing updates lose one measurement of many, which is
            harmless.
        stalled: worker, with the pool's lock held.
        cannot_exceed: worker.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.limit = sys.maxsize
        self.due = 0.0  # on the clock; before that no job needs to be measured
        self.asks_delay = False  # whether the time in which a job waits for a core is asked for
        # Whether a consumer that makes batches itself, or waits for one thread, does nothing else.
        self.consumer_only_waits = False
        self.range = Range(sys.maxsize, sys.maxsize, has_gil=True)
        self.inline_choice = InlineChoice()
        self._clock = clock
        self._waited = 0.0  # seconds, in all
        self._waits_since: float | None = None  # on the clock; None if the consumer has its batch
        self._timing = Timing()
        self._since = 0.0, 0.0  # when its first job could begin, and the seconds waited until then
        self._to_ignore = 1  # jobs that began while another limit was left, or that are the first
        # Held by the thread that decides; the others go on.
        self._deciding = Lock()
        # All below: guarded by _deciding, but that `serve`, `stalled` and `cannot_exceed` write it
        # too.  What was decided may be lost then, until the next measurement.
        self._found = Found(sys.maxsize)
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
        return self._now()[1]

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
        self._is_new = False

    def begin_again(self) -> None:
        """Forget what jobs took before the calling thread made batches for a while."""
        self._set(self._found)

    def cannot_exceed(self, threads: int, error: Exception) -> None:
        """Run no more threads than there are in an epoch, as no more can be started.

        Args:
            threads: That there are.
            error: The reason.
        """
        before = self.running()
        may = self.range
        self.range = may._replace(threads=min(may.threads, threads), most=min(may.most, threads))
        self._set(self._found.postponed()._replace(limit=min(self.limit, threads), tried=None))
        self._said = self.limit
        _log(before, self.running(), f"no more can be started: {error!r}")

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
        if limit != self.limit:
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
                _log(min(said, self.range.most), self.running(), found.reason)

    def stalled(self, threads: int) -> None:
        """Let all threads run jobs: for a while no job was taken, so those that run may wait.

        Args:
            threads: That there are.
        """
        limit = sys.maxsize if self.range.is_fixed else max(self.limit, threads)
        self._set(self._found.postponed()._replace(limit=limit, tried=None))

    def _is_enough(self, timing: Timing) -> bool:
        """Whether jobs tell how fast they come; sooner if a try is clearly a mistake."""
        running, tried = self.running(), self._found.tried
        if not timing.samples:
            return False
        if timing.wall >= TIMED_SECONDS and timing.jobs >= max(TIMED_JOBS, 2 * running):
            return True
        if tried is None or timing.wall < MISTAKE_SECONDS or timing.jobs < MISTAKE_JOBS:
            return False
        return running * timing.samples < MISTAKE * tried.rate * timing.wall

    def _decide(self, timing: Timing, limit: int) -> Found | None:
        """Set the limit by what was measured under the present one; return what was found.

        Call with the lock held.
        """
        if timing is not self._timing or limit != self.limit:
            return None  # another thread has decided, by the same jobs or by others
        (since, waited), (now, waited_now) = self._since, self._now()
        timing = timing._replace(elapsed=now - since, waited=waited_now - waited)
        found = advise(self._found, timing, self.range)
        self._set(found)
        if timing.wall and self.running() == 1:
            short = self.gains_nothing(timing.wall / timing.samples)
            self.consumer_only_waits = short and timing.waited > ONLY_WAITS * timing.elapsed
        if found.tried is None:
            self._said = found.limit
        return found

    def _now(self) -> tuple[float, float]:
        """Return the time, and the seconds in which the consumer has waited until now."""
        now, since = self._clock(), self._waits_since
        return now, self._waited + (0.0 if since is None else now - since)

    def _set(self, found: Found) -> None:
        """Keep what was found, and forget what was measured."""
        changed = found.limit != self.limit
        self._found = found
        self.due = self._clock() + found.due if found.due else 0.0
        self.limit, self.asks_delay = found.limit, found.asks_delay
        self._to_ignore = min(found.limit, self.range.most, MOST_IGNORED) if changed else 1
        self._timing = Timing()


def _log(before: int, after: int, reason: str) -> None:
    """Say that the number has changed, and why, if anybody listens."""
    logging = sys.modules.get("logging")  # where nobody has imported it nobody listens
    if after != before and logging is not None:
        logging.getLogger("threadloader").info("%s threads run, not %s: %s", after, before, reason)
