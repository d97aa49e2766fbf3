"""Whether the calling thread makes batches faster than threads do, where the user chose no number.

On a free-threaded build a dict that one thread has made may be read a hundred times slower by
others, and where there is a GIL threads may take it from one another.  A consumer that waits longer
for a sample than it takes to make it has its batches sooner if it makes them itself.  Whatever the
consumer does besides counts in neither: a thread that is slower, but ahead of it, is kept.
"""

from __future__ import annotations

import math
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InlineChoice", "Slower", "Waited", "is_slower"]

SOON_SECONDS = 0.02  # waited for threads, from which on they may be found far slower
FAR_SLOWER = 4.0  # seconds waited for a sample, of those that it takes in the calling thread
MORE_CPU = 2.0  # CPU time of a sample in threads, of that, from which on they are in their own way
LONG_SECONDS, LONG_BATCHES = 0.5, 16  # the same as the first, for threads that are little slower
SLOWER = 1.15
# CPU seconds of threads for each second that was waited for them: they run one at a time, as they
# do where samples hold the GIL.  What they take from one another the calling thread may save.
ONE_AT_A_TIME = 0.8, 1.15
MOST_BATCHES = 1024  # of one window
TRIED_SECONDS, TRIED_BATCHES = 0.02, 4  # that the calling thread makes until it is compared
FASTER = 0.95  # seconds of a sample in it, of those waited for one, below which it goes on
LONGEST_TRY = 3.0  # times what a batch was waited for, after which its first one is given up
SLOW_SECONDS = 0.1  # of batches that took so much longer, of which two are enough
CHANGED = 2.0  # seconds of a sample, of those when it was compared: threads are tried again
KEPT = 0.9  # of the mean so far, by each batch
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 600.0  # seconds until the next try; each doubles them
COST_SHARE = 0.01  # of the time, at most, that tries of slower threads take


class Waited(NamedTuple):
    """What the consumer had of threads since they began."""

    batches: int = 0
    samples: int = 0
    waited: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of all threads but the consumer's; 0 if not asked for


class Slower(NamedTuple):
    """What a sample took, where threads were found to be slower."""

    waited: float  # seconds that the consumer waited for one of threads
    here: float  # seconds of one in the calling thread


def is_slower(window: Waited, seconds: float, *, settled: bool) -> bool:
    """Return whether batches would come sooner from the calling thread.

    Args:
        window: What the consumer had of threads.
        seconds: That a sample takes in the calling thread.
        settled: Whether the number of threads is found, and is not more than the cores.
    """
    here = window.samples * seconds
    # Samples that wait longer than the first ones did are no reason: threads wait together.
    in_their_way = window.waited > FAR_SLOWER * here and window.cpu > MORE_CPU * here
    if in_their_way and window.waited >= SOON_SECONDS:
        return True
    enough = window.waited >= LONG_SECONDS and window.batches >= LONG_BATCHES
    if not (enough and settled):
        return False
    fewest, most = ONE_AT_A_TIME
    one_at_a_time = fewest * window.waited <= window.cpu <= most * window.waited
    # The first samples, which load what all others find loaded, may have been slow.
    return one_at_a_time or window.waited > SLOWER * min(here, window.cpu)


class InlineChoice:
    """Where batches are made; a loader keeps it from epoch to epoch.

    Args:
        clock: Returns seconds.
        cpu: Returns the CPU seconds of all threads but the calling one.

    Threads:
        all: consumer.  Racing updates of two epochs at once lose a measurement, which is harmless.
    """

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        cpu: Callable[[], float] = lambda: process_time() - thread_time(),
    ) -> None:
        self.preferred = False  # whether the calling thread makes batches, as threads are slower
        self.seconds = 0.0  # of a sample in the calling thread; 0 if that is not known
        self._clock = clock
        self._cpu = cpu
        self._window = Waited()
        self._begun = 0.0, 0.0  # seconds waited, and CPU seconds, when it began
        self._pause = FIRST_PAUSE  # seconds until the next try
        self._due = 0.0  # on the clock; before that nothing is tried
        self._tried: Waited | None = None  # what is compared with the calling thread
        self._here = 0, 0, 0.0  # batches, samples and seconds of it, meanwhile
        self._compared = 0.0  # seconds of a sample in it, when it was compared
        self._slow = 0, 0.0  # the last batches in a row that took much longer, and their seconds
        self._cost = 0.0  # seconds that the consumer has waited for threads that were slower
        self._compared_with = 0.0  # seconds that a sample of threads was waited for, at that time

    @property
    def slower(self) -> Slower | None:
        """By how much threads were found to be slower; None while they make the batches."""
        if not (self.preferred and self._tried is None and self._compared):
            return None
        return Slower(self._compared_with, self._compared)

    def threads_begin(self, seconds: float, waited: float) -> None:
        """Note that threads make the batches from here on.

        Args:
            seconds: That a sample takes in the calling thread; 0 or infinite if unknown.
            waited: Seconds that the consumer has waited until now, in all.
        """
        if 0.0 < seconds < math.inf:
            self.seconds = seconds
        self.preferred, self._tried = False, None
        self._begin_window(waited)

    def changed(self, seconds: float, waited: float) -> None:
        """Note that the samples are others than before, and forget what was measured of those.

        Args:
            seconds: That one of them takes, where no thread is in another's way.
            waited: Seconds that the consumer has waited until now, in all.
        """
        self.seconds, self._pause, self._due = seconds, FIRST_PAUSE, 0.0
        self._begin_window(waited)

    def delivered(self, samples: int, waited: float, *, settled: bool) -> bool:
        """Take a batch of threads into account; return whether the calling thread goes on.

        Args:
            samples: Of the batch.
            waited: Seconds that the consumer has waited until now, in all.
            settled: See `is_slower`.
        """
        before, cpu = self._begun
        window = self._window
        batches = window.batches + 1
        self._window = window = Waited(batches, window.samples + samples, waited - before)
        if window.waited < SOON_SECONDS or not self.seconds:
            if batches >= MOST_BATCHES:
                self._begin_window(waited)
            return False
        here, now = window.samples * self.seconds, self._clock()
        enough = window.waited >= LONG_SECONDS and batches >= LONG_BATCHES
        if (enough or window.waited > FAR_SLOWER * here) and now >= self._due:
            window = window._replace(cpu=self._cpu() - cpu)
            if is_slower(window, self.seconds, settled=settled):
                self.preferred, self._tried, self._here = True, window, (0, 0, 0.0)
                self._cost = window.waited
                return True
        if enough:
            if window.waited <= SLOWER * here:
                self._pause = FIRST_PAUSE
            self._begin_window(waited)
        return False

    def drained(self, waited: float) -> None:
        """Note that the last batch of threads was delivered.

        Args:
            waited: Seconds that the consumer has waited until now, in all.
        """
        self._cost = waited - self._begun[0]

    def most_seconds(self, rows: int) -> float:
        """Return how long the calling thread may try to make a batch.

        Args:
            rows: Of the batch.
        """
        tried = self._tried
        if tried is None:
            return math.inf
        return max(SOON_SECONDS, LONGEST_TRY * rows * tried.waited / tried.samples)

    def give_up(self) -> None:
        """Note that the calling thread took too long for a batch, if threads were slower before."""
        if not self.preferred:
            return
        self.preferred, self._tried = False, None
        self._postpone(0.0)

    def goes_on(self, rows: int, seconds: float) -> bool:
        """Take a batch of the calling thread into account; return whether it makes the next one.

        Args:
            rows: Of the batch.
            seconds: That it took.
        """
        tried, each = self._tried, seconds / rows
        if tried is None:
            # One batch that took long, by chance, says little: two such do, if they took very long,
            # or seven in a row.
            slow = each > CHANGED * self._compared
            self._slow = (self._slow[0] + 1, self._slow[1] + seconds) if slow else (0, 0.0)
            if self._slow[0] > 1 and self._slow[1] > SLOW_SECONDS:
                self.preferred = False
                return False
            each = min(each, CHANGED * self.seconds)
            self.seconds = KEPT * self.seconds + (1 - KEPT) * each
            self.preferred = self._clock() < self._due and self.seconds <= CHANGED * self._compared
            return self.preferred
        batches, samples, taken = self._here
        self._here = batches, samples, taken = batches + 1, samples + rows, taken + seconds
        if batches < TRIED_BATCHES or taken < TRIED_SECONDS:
            return True
        self._tried, self.seconds = None, taken / samples
        self._compared, self._compared_with = self.seconds, tried.waited / tried.samples
        self.preferred = self.seconds * tried.samples < FASTER * tried.waited
        self._postpone(self._cost if self.preferred else 0.0)
        return self.preferred

    def _postpone(self, cost: float) -> None:
        """Try nothing for a while, which is longer each time.

        Args:
            cost: Seconds that the last try of threads has lost.
        """
        self._due = self._clock() + max(self._pause, cost / COST_SHARE)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _begin_window(self, waited: float) -> None:
        """Forget what the consumer had of threads until now."""
        self._window = Waited()
        self._begun = waited, self._cpu()
