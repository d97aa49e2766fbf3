"""How many threads make the batches: tried while the loop runs, and compared by what it gets.

    the loop's figures of some 0.1 s -> `advise` -> another number is tried, or kept, or given up

With 0 the calling thread makes each batch when it is asked for.  Where there is an interpreter
lock, threads may be slower together than one alone, or than none; reads of a network go faster with
a hundred threads than with as many as cores.  Nothing tells beforehand which data that is.  So it
is tried, by the loop's own thread, and judged by the one figure that counts: samples a second.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from contextlib import suppress
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


# Chosen so that a try costs little, and is rarely wrong (bench: self_driving).
WINDOW_SECONDS = 0.1  # that are measured
WINDOW_SAMPLES = 16  # and how many samples, at the least; two for each thread
SETTLE_SECONDS = 0.03  # after a change, until it is measured
MISTAKE_SECONDS = 0.02  # of a try, after which it may be found clearly wrong
MISTAKE = 0.6  # its rate, of that before, below which it is
MORE_NEEDED = 1.05  # rate with more threads, of that before, from which on they are needed
FEWER_ENOUGH = 0.98  # rate with fewer, from which on they are enough
MOSTLY = 0.7  # share of its time that the loop makes batches, if it does little else
AWAITED = 0.02  # share of the time that the loop waits, from which on more are tried
SPARE = 0.5  # share of half the threads that are busy, below which half are tried while it does not
# Cores that all threads but the loop's use together.  With a GIL, threads that hold it use one.
ONE_CORE = 0.8, 1.15
# Threads that begin, where there is a GIL and more cores: 16 of 16 decode photos no faster than 8.
FIRST_WITH_GIL = 16
IDLE = 0.5  # share of the cores, or of themselves, that threads use below which they mostly wait
BUSY = 0.85  # and from which on more threads find none
SHORT = 1e-4  # seconds of a sample that does nothing for which it lets go of the GIL for long
LATEST = 4  # windows of which the best counts: a machine is slower for a while, never faster
CHANGED = 4.0  # factor by which samples take more or less when the data has changed
FIRST_PAUSE = 2.0  # seconds until a number given up is tried again; each time twice as many
LONGEST_PAUSE = 600.0
COST_SHARE = 0.02  # of the time that tries may lose, and of which a first second has
COST_SECONDS = 0.1  # this much more
FIRST_LOOK, LONGEST_LOOK = 0.25, 30.0  # seconds from look to look, while nothing is tried
LATER, SOONER = 2.0, 0.9  # by each change of the data that is seen, and each look that sees none
# Of the loop between two batches, from which on it is a pause, if the one before was far shorter.
PAUSE_SECONDS, PAUSE = 0.05, 4.0
STALLED_SECONDS = 0.5  # without a sample, after which fewer threads than there are may be too few


def gil_is_enabled() -> bool:
    """Whether the GIL is on now.

    Ask after the last import: on a free-threaded build an extension module that does not declare
    support switches it on for the whole process.
    """
    if sys.version_info >= (3, 13):
        return sys._is_gil_enabled()  # the documented way to ask
    return True  # until 3.12, always


class Limits(NamedTuple):
    """How many threads there may be."""

    threads: int  # to begin with: the cores, or the number that the user chose
    most: int  # for samples that wait; as many if the user chose
    has_gil: bool
    least: int = 0  # 1 where the calling thread can't make batches

    @property
    def is_fixed(self) -> bool:
        """Whether the user chose the number, which is the most then."""
        return self.most == self.threads

    @property
    def first(self) -> int:
        """How many threads begin, where any do: fewer than the cores where they may be too many."""
        many = self.has_gil and not self.is_fixed
        return min(self.threads, FIRST_WITH_GIL) if many else self.threads


class Measured(NamedTuple):
    """What the loop got in a while."""

    number: int  # of threads
    samples: int
    seconds: float
    loading: float  # seconds of the loop in ``next()``
    cpu: float  # CPU seconds of all threads but the loop's

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    @property
    def waits(self) -> bool:
        """Whether the loop waits for batches."""
        return self.loading >= AWAITED * self.seconds


class _Mark(NamedTuple):
    """What was counted when a window began."""

    at: float
    samples: int
    loading: float
    cpu: float


def advise(
    measured: Measured, limits: Limits, seconds: float, inline: float, best: float
) -> list[tuple[int, str]]:
    """Return the numbers of threads that may be better, and why; the most likely first.

    Args:
        measured: What the loop got with the present number.
        limits: How many there may be.
        seconds: That a sample takes; 0 if unknown.
        inline: The same in the calling thread.
        best: The highest rate of late with the present number.
    """
    if not measured.waits:
        # Threads that are awake for nothing are in the loop's way: 16 that decoded what a third of
        # one can made its step 1.49 times as long with a GIL, and 1.07 without; one, 1.13 and 1.01.
        half = measured.number // 2
        idle = 0.0 < measured.rate * seconds < SPARE * half
        return [(half, "you do not wait, and fewer are enough")] if idle else []
    if measured.number:
        return _instead_of_threads(measured, limits, inline, best)
    short = limits.has_gil and inline < SHORT
    # One thread that has the GIL while the loop waits for it saves no time.
    if short and measured.loading > MOSTLY * measured.seconds:
        return []
    return [(1 if short else limits.first, "you wait for batches")]


def _instead_of_threads(
    measured: Measured, limits: Limits, inline: float, best: float
) -> list[tuple[int, str]]:
    number, cores = measured.number, limits.threads
    used = measured.cpu / measured.seconds
    fewest, most = ONE_CORE
    holds_gil = limits.has_gil and number > 1 and fewest <= used <= most
    numbers: list[tuple[int, str]] = []
    if inline and not limits.least:
        outside = (measured.seconds - measured.loading) / measured.samples
        if FEWER_ENOUGH * best * (inline + outside) < 1.0:
            numbers.append((0, "the calling thread is faster"))
    if holds_gil:
        numbers.append((number // 2 if number > cores else 1, "samples hold the GIL"))
    # Once most wait for the GIL each gets it by a wake-up, which takes longer than what it does
    # with it: rows of 1 MiB came at 9.3 GB/s from 16 threads, and at 40 from 4 (16 cores, 3.12).
    if limits.has_gil and number <= cores and most < used < IDLE * number:
        numbers.append((number // 2, "threads wait for the GIL"))
    if number > cores and used > BUSY * cores:
        numbers.append((cores, "samples keep the cores busy"))
    waits = used < fewest if limits.has_gil else used < IDLE * cores
    top = limits.most if waits else number if holds_gil or used > BUSY * cores else cores
    if number < top:
        reason = "samples wait, not for a core" if waits else "you wait for batches"
        numbers.append((min(2 * number, top), reason))
    return numbers


class Tuner:
    """The number of threads that make the batches of a loader, which keeps it between epochs.

    Batches are what they are whatever it says: it decides who makes them, not what is in them.

    Args:
        clock: Returns seconds.
        used: Returns the CPU seconds of all threads but the calling one.

    Threads:
        number, due, limits: any; read and written whole, on both builds.
        serve: planner.
        cannot_exceed, bound: also worker, which only notes it for the next `look`.
        all others: consumer.  Two epochs at once share it, and may take each other's samples for
            their own: then a try is judged wrongly, and repeated later.
    """

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        used: Callable[[], float] = lambda: process_time() - thread_time(),
    ) -> None:
        self.number = 0  # of threads; 0 for the calling thread
        self.due = 0.0  # on the clock: `look` has nothing to do before
        self.limits = self._given = Limits(0, 0, has_gil=True)
        self.prefers_inline = False  # whether threads were tried, and are no faster than none
        self._clock, self._used = clock, used
        self._mark: _Mark | None = None  # of the window; None between two
        self._base: Measured | None = None  # what the present number is compared with
        self._reason = ""
        self._tried_at = 0.0
        self._said = 0  # the number that was logged last, or the first
        self._inline = 0.0  # seconds of a sample in the calling thread, in a window; 0 if unknown
        self._usual = 0.0  # seconds of a sample with the present number; 0 if unknown
        self._rates: tuple[float, ...] = ()  # with the present number; replaced whole
        self._look = FIRST_LOOK
        self._given_up: dict[int, tuple[float, float]] = {}  # until when, and the pause
        self._began, self._lost = clock(), 0.0  # when the first epoch did; seconds, by tries
        self._paused = False  # whether a pause was left out since a window ended
        self._noted: deque[tuple[int, str]] = deque()  # the most threads from now on, and why

    def serve(self, limits: Limits, latest: float = 0.0) -> None:
        """Say how many threads there may be in an epoch that begins.

        What was found before stays, if it is among them.  Epochs are measured together.

        Args:
            limits: The numbers.
            latest: When the epoch before has given its last batch, on the clock; 0 for none.
        """
        given, self._given = self._given, limits
        self.limits = limits
        self._noted.clear()
        if given._replace(most=0) != limits._replace(most=0):
            self._forget()
            self._set(limits.threads if limits.is_fixed else 0)
            self._said = self.number
        else:
            self.leave_out(self._clock() - latest)
        self.number = min(self.number, limits.most)

    def gains_nothing(self, seconds: float) -> bool:
        """Whether a thread beside a loop that only waits for it would gain nothing.

        So it is where there is a GIL, and samples are short: then they hold it, as a rule.

        Args:
            seconds: That a sample takes.
        """
        return self.limits.has_gil and seconds < SHORT

    @property
    def tries(self) -> bool:
        """Whether a number is tried now."""
        return self._base is not None

    @property
    def tries_none(self) -> bool:
        """Whether it is tried whether the calling thread is as fast as threads."""
        return self._base is not None and not self.number

    def bears(self, rows: int) -> float:
        """Return the seconds that the calling thread may take for a batch while that is tried.

        Args:
            rows: Samples of the batch.
        """
        base = self._base
        if base is None or self.number:
            return 0.0
        return max(WINDOW_SECONDS, rows / (MISTAKE * base.rate))

    def leave(self, seconds: float) -> int:
        """Let threads make the batches that the calling thread has made; return how many.

        Args:
            seconds: That a sample takes in the calling thread; 0 or infinite if unknown.
        """
        number, base = self.number, self._base
        if base is not None and not number:  # it was tried, and a batch took far longer
            self._base = None
            self._lost += self._clock() - self._tried_at
            self._give_up_for_now(0)
            number = base.number
        elif not number:
            short = seconds > 0 and self.gains_nothing(seconds)
            number = 1 if short else self.limits.first
            self._said = number
        self.prefers_inline = False
        self._set(number)
        return number

    def stay(self) -> None:
        """Go on without threads, which can't begin yet."""
        self._base = None
        self._set(0)
        self.due += self._look

    def look(self, samples: int, loading: float, seconds: float, least: float = 0.0) -> int:
        """Take what the loop got into account, when ``due`` has come; return the number from now.

        Args:
            samples: That were made until now, by all threads.
            loading: Seconds of the loop in ``next()`` until now.
            seconds: That a sample takes now; 0 if unknown.
            least: That the shortest ones take, as where no other thread is in the way.
        """
        with suppress(IndexError):  # all were taken, some of them by another consumer
            while True:
                self._restrict(*self._noted.popleft())
        now, mark = self._clock(), self._mark
        if mark is None:
            self._mark = _Mark(now, samples, loading, self._used())
            self.due = now + (WINDOW_SECONDS if self._base is None else MISTAKE_SECONDS)
            return self.number
        measured = Measured(
            self.number, samples - mark.samples, now - mark.at, loading - mark.loading, 0.0
        )
        if not self._is_enough(measured):
            left = WINDOW_SECONDS - measured.seconds
            # Where samples take long, it is looked at ever more rarely.
            self.due = now + (measured.seconds if left <= 0 else min(MISTAKE_SECONDS, left))
            if measured.loading >= STALLED_SECONDS and not measured.samples:
                self._lift()
            return self.number
        self._mark, self._paused = None, False
        if not measured.number:
            self._inline = seconds
        self._decide(measured._replace(cpu=self._used() - mark.cpu), seconds, self._inline or least)
        return self.number

    def begin_again(self) -> None:
        """Measure from here on: what was made before was made by others."""
        self._mark, self.due = None, self._clock()

    def leave_out(self, seconds: float) -> None:
        """Leave out a pause of the loop, which is no part of what it gets.

        A window begins anew behind a long one, as what threads have made meanwhile does not count
        either.  Of a loop that pauses more often than a window lasts, every second one counts.

        Args:
            seconds: That validation, a checkpoint or another loader's turn has taken.
        """
        mark = self._mark
        if mark is None:
            return
        if seconds <= PAUSE_SECONDS:
            self._mark = mark._replace(at=mark.at + seconds)
        elif not self._paused:
            self._paused = True
            self.begin_again()

    def bound(self, names: list[str]) -> None:
        """Run at most two threads a core, if each opens something of its own.

        Args:
            names: Of the attributes that it opens; none for no bound.
        """
        most = 2 * self.limits.threads
        if names and self.limits.most > most:
            self.cannot_exceed(most, f"each opens {names[0]!r} for itself; threads= allows more")

    def cannot_exceed(self, threads: int, reason: str) -> None:
        """Run no more than so many threads in an epoch.

        Args:
            threads: At the most.
            reason: Why.
        """
        self._noted.append((threads, reason))
        self.due = 0.0

    def _restrict(self, threads: int, reason: str) -> None:
        limits = self.limits
        if threads >= limits.most:
            return
        self.limits = limits._replace(threads=min(limits.threads, threads), most=threads)
        self._base = None
        self._rates = ()
        self._set(self.number)
        self._said = self.number
        _log("%s threads run at most: %s", threads, reason)

    def _is_enough(self, measured: Measured) -> bool:
        """Whether a window tells how fast samples come; sooner if a try is clearly wrong."""
        samples, seconds, base = measured.samples, measured.seconds, self._base
        if seconds >= WINDOW_SECONDS:
            return samples >= max(WINDOW_SAMPLES, 2 * measured.number)
        if base is None or seconds < MISTAKE_SECONDS or self.number > base.number:
            return False
        # Each thread may be about to end a sample.
        return samples > 0 and samples + self.number < MISTAKE * base.rate * seconds

    def _decide(self, measured: Measured, seconds: float, inline: float) -> None:
        """Keep or give up what was tried, and try something else if it may be better."""
        now, base = self._clock(), self._base
        if base is not None:
            self._base = None
            more = measured.number > base.number
            best = max(self._rates, default=base.rate)
            needed = MORE_NEEDED * base.rate if more else FEWER_ENOUGH * best
            # A loop that waits in neither goes as fast as it can.
            idle = not (more or base.waits or measured.waits)
            kept = idle or measured.rate >= needed
            self.prefers_inline = not (measured if kept else base).number
            if not kept:
                self._give_up(measured, base)
                return
            self._rates = ()
            if not idle:  # or more, and again fewer, would take turns without a pause
                self._given_up.pop(measured.number, None)
                self._give_up_for_now(base.number)
        elif self._has_changed(seconds):
            self._begin_with(seconds)
            return
        else:
            self._look = max(FIRST_LOOK, SOONER * self._look)
        self._usual = seconds
        self._rates = rates = (*self._rates, measured.rate)[-LATEST:]
        self._say()
        if self._lost <= COST_SECONDS + COST_SHARE * (now - self._began):
            for number, reason in advise(measured, self.limits, seconds, inline, max(rates)):
                until, _ = self._given_up.get(number, (0.0, 0.0))
                if number >= self.limits.least and now >= until:
                    self._base, self._reason, self._tried_at = measured, reason, now
                    self._set(number)
                    return
        self.due = now + self._look

    def _has_changed(self, seconds: float) -> bool:
        """Whether samples take far more or less than before; those of microseconds always vary."""
        shorter, longer = sorted((seconds, self._usual))
        return shorter > 0.0 and longer > max(SHORT, CHANGED * shorter)

    def _give_up(self, tried: Measured, base: Measured) -> None:
        """Go back to the number before; the one that was tried is not tried again for a while."""
        self._lost += tried.seconds * max(0.0, 1 - tried.rate / base.rate)
        self._give_up_for_now(tried.number)
        self._set(base.number)

    def _give_up_for_now(self, number: int) -> None:
        _, before = self._given_up.get(number, (0.0, FIRST_PAUSE / 2))
        pause = min(2 * before, LONGEST_PAUSE)
        self._given_up[number] = self._clock() + pause, pause

    def _begin_with(self, seconds: float) -> None:
        """Begin anew with data that has changed: what was found of other samples counts no more.

        With many threads that do not wait any more nothing can be found, as they are in each
        other's way, so as many as there are cores begin.

        Args:
            seconds: That a sample takes now.
        """
        self._look = min(LATER * self._look, LONGEST_LOOK)
        number = min(self.number or self.limits.first, self.limits.threads)
        self._forget()
        self._inline = 0.0 if self.number else seconds
        self._reason = "samples take another time than before"
        self._set(1 if self.gains_nothing(seconds) and not self.limits.is_fixed else number)

    def _lift(self) -> None:
        """Let all threads run, as samples may wait for one another: for a while none has come."""
        if 0 < self.number < self.limits.threads:
            self._forget()
            for number in range(self.limits.threads):
                self._given_up[number] = math.inf, LONGEST_LOOK
            self._reason = "no sample came from fewer"
            self._set(self.limits.threads)
            self._say()

    def _forget(self) -> None:
        """Forget what was tried."""
        self._base, self._usual = None, 0.0
        self._rates = ()
        self.prefers_inline = False
        self._given_up.clear()

    def _set(self, number: int) -> None:
        self.number, self._mark = min(number, self.limits.most), None
        self.due = self._clock() + SETTLE_SECONDS

    def _say(self) -> None:
        """Log the number that stays, if it is another one."""
        if self.number != self._said:
            _log("%s threads run, not %s: %s", self.number, self._said, self._reason)
            self._said = self.number


def _log(text: str, *values: object) -> None:
    """Say how many threads run, and why, if anybody listens."""
    logging = sys.modules.get("logging")  # where nobody has imported it nobody listens
    if logging is not None:
        logging.getLogger("threadloader").info(text, *values)
