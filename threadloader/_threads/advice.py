"""How many threads should run jobs, by what jobs took: a function of that and of nothing else.

    what was found before, what jobs took since -> what is found now

Half the threads are tried, or twice as many, for as long as that is faster.  A try that fails is
repeated after a pause, which doubles.  Meanwhile jobs are looked at now and then: if samples take
something else than before, the data has changed, and nothing that was found counts any more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = [
    "FIRST_PAUSE",
    "LONGEST_PAUSE",
    "MISTAKE",
    "MORE_NEEDED",
    "SHORT",
    "Found",
    "Range",
    "Sample",
    "Timing",
    "advise",
    "needs_fewer",
]

# Chosen so that a try costs little, and is rarely wrong.
MISTAKE = 0.75  # rate of a try, of that before, below which it is clearly wrong
WAITING = 1.25  # wall time of jobs, of their CPU time, from which on they wait
LONGEST_JOB = 0.02  # CPU seconds; threads whose jobs take longer lose nothing by changing places
# Share of the cores that threads use below which they wait for something else, if that takes as
# large a share of their time; with a GIL of one core, as nobody runs while it is passed on.
IDLE, IDLE_WITH_GIL = 0.5, 0.1
GIL_FREE = 0.5  # the same of all threads together, while the consumer waits for them
BUSY = 0.85  # share of the cores that the process uses, from which on more threads find none
# Threads that run at a time: one if samples hold the GIL.
ONE_AT_A_TIME = 0.8, 1.15
FEWER_ENOUGH = 0.98  # rate with half the threads, of that with all, from which on they are enough
MORE_NEEDED = 1.05  # rate with twice the threads, of that without, from which on they are needed
AWAITED = 0.02  # share of the time that the consumer waits, from which on more threads are tried
SPARE = 1.5  # threads that stay for each that has jobs all the time, where the others have none
MOST_CALM = 32  # measurements in a row, before threads are given back that were needed before
SHORT = 1e-4  # seconds of a sample that does nothing for which it lets go of the GIL for long
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds until the next try; each that fails doubles them
# Factor by which samples take more or less when the data has changed; short ones vary more.
CHANGED = 4.0
TICK = 1e-6  # seconds, where a clock has not moved
LEAST_CPU = 0.1  # CPU time of a sample that counts, of the wall time of the shortest ones
FIRST_LOOK = 0.25  # seconds until jobs are looked at again, in a pause
# Each change that is seen makes the next look later, each look that sees none makes it sooner: by
# data that changes all the time nothing is found.
LATER, SOONER = 2.0, 0.9


class Range(NamedTuple):
    """How many threads a pool may run."""

    threads: int  # to begin with: the cores, or the number that the user chose
    most: int  # for data that waits; as many if the user chose
    has_gil: bool

    @property
    def is_fixed(self) -> bool:
        """Whether the user chose the number, of which no thread is given back."""
        return self.most == self.threads


class Sample(NamedTuple):
    """What samples take; it is compared with what they take later."""

    wall: float  # seconds of the shortest ones: threads that are in each other's way change little
    cpu: float  # seconds; 0 if unknown


class Timing(NamedTuple):
    """What some jobs took."""

    jobs: int = 0
    samples: int = 0
    wall: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of the threads that ran them
    delay: float = 0.0  # seconds in which they waited for a core, if `Found.asks_delay` was set
    shortest: float = math.inf  # seconds of a sample, in the job where they took the least
    elapsed: float = 0.0  # seconds from the end of the job before them
    waited: float = 0.0  # seconds in which the consumer waited meanwhile
    used: float = 0.0  # CPU seconds of the whole process meanwhile
    passed: float = 0.0  # seconds since the last advice

    def plus(self, samples: int, wall: float, cpu: float, delay: float) -> Timing:
        """Return the timing with one job more."""
        shortest = min(self.shortest, wall / samples) if samples else self.shortest
        return Timing(
            self.jobs + 1,
            self.samples + samples,
            self.wall + wall,
            self.cpu + cpu,
            self.delay + delay,
            shortest,
        )

    def sample(self) -> Sample:
        """Return what a sample took."""
        # Some systems count CPU time in steps of 16 ms, so little of it says nothing.
        cpu = max(self.cpu / self.samples, LEAST_CPU * self.shortest)
        return Sample(self.shortest, cpu)


class _Try(NamedTuple):
    """A number of threads that is tried, and what it is compared with."""

    limit: int  # before it
    rate: float  # samples a second, then
    reason: str  # of that limit
    usual: Sample  # then


class Found(NamedTuple):
    """What was found so far."""

    limit: int  # threads that may run jobs at once
    tried: _Try | None = None  # what that number is compared with, while it is only tried
    fewer: bool = True  # whether fewer threads are tried next
    pause: float = FIRST_PAUSE  # seconds until the next try, after one that fails
    left: float = 0.0  # seconds of a pause that goes on
    due: float = 0.0  # seconds until jobs are measured again
    usual: Sample | None = None  # what samples took with that number; None if that is not known
    look: float = FIRST_LOOK  # seconds from look to look, in a pause
    changes: int = 0  # of the data
    unused: int = 0  # measurements in a row in which threads had nothing to do
    calm: int = 2  # and how many of them give threads back
    asks_delay: bool = False  # whether it has to be known how long jobs wait for a core
    reason: str = ""  # of the limit, in words

    def postponed(self) -> Found:
        """Try nothing for a while, which is twice as long as the last time."""
        longer = min(2 * self.pause, LONGEST_PAUSE)
        return self._replace(left=self.pause, due=min(self.look, self.pause), pause=longer)


def advise(found: Found, timing: Timing, may: Range) -> Found:
    """Return how many threads should run jobs, and when jobs are to be measured again.

    Args:
        found: What was found before.
        timing: What jobs took with its limit.
        may: How many threads there may be.
    """
    running = min(found.limit, may.most)
    # Not more than what threads would reach that have a job all the time; a few jobs that end
    # together look like it.
    rate = timing.samples * min(running / (timing.wall or TICK), 1 / (timing.elapsed or TICK))
    sample = timing.sample()
    tried, found = found.tried, found._replace(tried=None, due=0.0)
    if tried is not None:
        less = running < tried.limit
        if rate < (FEWER_ENOUGH if less else MORE_NEEDED) * tried.rate:
            # The other way, next.
            found = found._replace(limit=tried.limit, reason=tried.reason, fewer=not less)
            return found._replace(usual=tried.usual).postponed()
        found = found._replace(pause=FIRST_PAUSE)
    elif found.usual is not None and _differs(sample, found.usual):
        found = _begun_again(found, sample, running, may)
        if found.limit < running:
            return found
    elif found.left > timing.passed:
        left, look = found.left - timing.passed, max(FIRST_LOOK, SOONER * found.look)
        return found._replace(
            left=left, due=min(look, left), look=look, usual=found.usual or sample
        )
    return _decided(found, timing, may, _Try(found.limit, rate, found.reason, sample))


def _decided(found: Found, timing: Timing, may: Range, now: _Try) -> Found:
    """Return what is tried next, or that the present number stays for now.

    Args:
        found: What was found before; no try, and no pause.
        timing: What jobs took.
        may: How many threads there may be.
        now: What a try is compared with.
    """
    running = min(found.limit, may.most)
    waits, _ = _kind(timing, running, may)
    if waits and not found.asks_delay:
        return found._replace(asks_delay=True)  # it may be a core that they wait for
    found = found._replace(asks_delay=waits, left=0.0)
    limit, reason = _to_try(found, timing, running, may)
    if limit != running:
        calm = min(2 * found.calm, MOST_CALM) if found.limit < limit else found.calm
        found = found._replace(limit=limit, tried=now, fewer=limit < running, usual=None)
        return found._replace(unused=0, calm=calm, reason=reason)
    found = found._replace(due=FIRST_PAUSE, usual=now.usual)
    needed = _needed(timing, running, may)
    if needed >= running:
        return found._replace(unused=0)
    if found.unused + 1 < found.calm:
        return found._replace(unused=found.unused + 1)
    reason = f"{running - needed} of {running} had nothing to do"
    return found._replace(limit=needed, unused=0, usual=None, reason=reason)


def _differs(sample: Sample, usual: Sample) -> bool:
    """Whether samples take so much more or less than usual that the data has changed."""
    return any(
        usually > 0 and not usually / CHANGED <= now <= usually * CHANGED
        for now, usually in zip(sample, usual, strict=True)
    )


def needs_fewer(found: Found, timing: Timing, may: Range) -> bool:
    """Whether the data has changed so that fewer threads begin again: a few jobs say so.

    Args:
        found: What was found before.
        timing: What jobs took with its limit.
        may: How many threads there may be.
    """
    running = min(found.limit, may.most)
    return _begins_with(found, timing.sample(), running, may) < running


def _begins_with(found: Found, sample: Sample, running: int, may: Range) -> int:
    """Return how many threads begin with data that has changed, if it has.

    With many threads that do not wait any more nothing can be found, as they are in each other's
    way, so as many as there are cores begin.
    """
    if found.usual is None or may.is_fixed:
        return running
    waits_less = sample.wall * CHANGED < found.usual.wall
    if may.has_gil and waits_less and sample.wall < SHORT:
        return 1
    works_more = sample.cpu > CHANGED * found.usual.cpu > 0
    return min(running, may.threads) if waits_less or works_more else running


def _begun_again(found: Found, sample: Sample, running: int, may: Range) -> Found:
    """Return what is found of data that has changed: nothing but the number that it begins with."""
    limit, reason = _begins_with(found, sample, running, may), found.reason
    if limit < running:
        reason = "samples take less time" if limit == 1 else "samples do not wait as before"
    look = min(LATER * found.look, LONGEST_PAUSE)
    limit = limit if limit < running else found.limit
    begun = Found(limit, calm=found.calm, asks_delay=found.asks_delay, reason=reason)
    return begun._replace(look=look, changes=found.changes + 1)


def _kind(timing: Timing, running: int, may: Range) -> tuple[bool, bool]:
    """Return whether jobs wait, but for a core, and whether it is not for the GIL, either."""
    waits = timing.wall - timing.delay > WAITING * timing.cpu
    blocked = timing.wall - timing.delay
    if may.has_gil:
        idle = running * timing.cpu < IDLE_WITH_GIL * blocked
        # As many threads as cores may use as little of it: they are in each other's way.
        many = running > may.threads and _is_awaited(timing)
        idle = idle or (many and timing.cpu < GIL_FREE * timing.elapsed)
    else:
        used = running * timing.cpu / timing.wall  # cores
        idle = used < IDLE * may.threads and blocked - timing.cpu > IDLE * timing.wall
    return waits, waits and idle


def _to_try(found: Found, timing: Timing, running: int, may: Range) -> tuple[int, str]:
    """Return a number of threads that may be better, and why; the present one for none."""
    waits, idle = _kind(timing, running, may)
    for_gil = may.has_gil and waits
    top = may.most if idle or for_gil else may.threads
    half = -(-running // 2)
    awaited = _is_awaited(timing)
    if for_gil and running > 1:
        if not may.is_fixed and awaited and _one_at_a_time(timing):
            return half, "samples hold the GIL"
        more_first = idle and (running > may.threads or found.pause == FIRST_PAUSE)
        short = timing.cpu < LONGEST_JOB * timing.jobs
        if short and (running >= top or (found.fewer and not more_first)):
            return half, "samples wait for the GIL"
    if running > top:
        return max(top, running // 2), "samples keep the cores busy"
    if not may.has_gil and timing.used > BUSY * may.threads * timing.elapsed:
        # Nobody knows whose work it is: that of threads in each other's way, or of the user's own.
        return (max(may.threads, half) if running > may.threads else running), "all cores are busy"
    if running == top or not awaited:
        return running, ""
    return min(2 * running, top), "samples wait, not for a core" if idle else "you wait for batches"


def _is_awaited(timing: Timing) -> bool:
    """Whether the consumer waits for batches."""
    return timing.waited >= AWAITED * timing.elapsed


def _one_at_a_time(timing: Timing) -> bool:
    """Whether one thread runs at a time."""
    fewest, most = ONE_AT_A_TIME
    return fewest * timing.elapsed <= timing.cpu <= most * timing.elapsed


def _needed(timing: Timing, running: int, may: Range) -> int:
    """Return how many threads have enough to do, if the consumer waits for none of them."""
    if may.is_fixed or _is_awaited(timing):
        return running
    return max(1, min(running, math.ceil(SPARE * timing.wall / timing.elapsed)))
