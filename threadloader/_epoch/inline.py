"""Whether the calling thread makes the batches itself, where the user chose no number of threads.

That is best where a batch costs less than handing it over, and where a thread would only take turns
with a consumer that waits for it.  Both show while it does so.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING

from threadloader._order.tickets import INLINE_SECONDS, START_SECONDS

if TYPE_CHECKING:
    from threadloader._threads.concurrency import Concurrency
    from threadloader._work.workers import Workers

__all__ = ["Inline"]

MOSTLY = 0.7  # share of its time that the consumer makes batches, if it does little else
ENOUGH = 4  # batches that tell what the consumer does
KEPT = 0.9  # of the time of the batches before, by each: so some ten of them count


class Inline:
    """Whether the calling thread makes the batches of an epoch.

    Args:
        concurrency: Of the loader.
        begins: Whether it makes the first ones.
        workers: Whose threads make the others; None for no threads.
        batches: Of the epoch; infinite if unknown.

    Threads:
        all: consumer.
    """

    __slots__ = (
        "_batches",
        "_concurrency",
        "_inside",
        "_latest",
        "_outside",
        "_planned",
        "_returned",
        "_started",
        "_to_plan",
        "_workers",
        "draining",
        "on",
    )

    def __init__(
        self,
        concurrency: Concurrency,
        *,
        begins: bool,
        workers: Workers | None = None,
        batches: float = math.inf,
    ) -> None:
        self.on = begins
        # Whether threads end what they have of the epoch, before the calling thread goes on.
        self.draining = False
        # Only of an epoch that has begun here: there the calling thread is known as a worker.
        self._workers = workers if begins else None
        self._to_plan = batches
        self._planned = 0  # of these, when the last batch was made here
        self._concurrency = concurrency
        self._batches = self._inside = self._outside = 0.0
        self._started = self._returned = 0.0  # when the last batch began, and the one before ended
        self._latest = math.inf, math.inf  # seconds of the last batch, and until the next one

    def batch_begins(self) -> None:
        """Note that the next batch begins."""
        self._planned += 1
        self._started = perf_counter()

    def planned(self, sequence: int) -> None:
        """Note the position in the epoch of the batch that is made now."""
        self._planned = sequence + 1

    def batch_ended(self) -> None:
        """Note that the batch has ended."""
        ended = perf_counter()
        latest = ended - self._started, self._started - self._returned
        # The less of two, as what is done once in a while is no property of the data.
        inside, outside = map(min, latest, self._latest)
        self._latest, self._returned = latest, ended
        if inside < math.inf:
            self._batches = KEPT * self._batches + 1.0
            self._inside = KEPT * self._inside + inside
            self._outside = KEPT * self._outside + outside

    def batch_returned(self) -> None:
        """Note that the consumer gets a batch whose time does not count: the first one, say."""
        self._returned = perf_counter()

    def helps(self, seconds: float, rows: int) -> bool:
        """Whether the rest of a first batch is better made here, too.

        Args:
            seconds: That a sample takes, or less.
            rows: Of a batch.
        """
        left = (self._to_plan - self._planned + 1) * rows
        return self._concurrency.gains_nothing(seconds) or left * seconds < START_SECONDS

    def seconds(self, rows: int) -> float:
        """Return what a sample takes, its share of collating included.

        Args:
            rows: Of a batch.
        """
        return self._inside / (self._batches * rows) if self._batches else 0.0

    def goes_on(self, rows: int) -> bool:
        """Whether the next batch is made here.

        Args:
            rows: Of a batch.
        """
        if self._inside <= INLINE_SECONDS * self._batches:
            return True
        choice = self._concurrency.inline_choice
        if choice.preferred:
            return not self._batches or choice.goes_on(rows, self._latest[0])
        if (self._to_plan - self._planned) * self._inside < START_SECONDS * self._batches:
            return True
        concurrency, seconds = self._concurrency, self.seconds(rows)
        only_waits = self._inside > MOSTLY * (self._inside + self._outside)
        goes_on = concurrency.gains_nothing(seconds) and (only_waits or self._batches < ENOUGH)
        concurrency.consumer_only_waits = goes_on
        return goes_on

    def stop(self, seconds: float) -> bool:
        """Let workers make the batches from here on.

        Args:
            seconds: That a sample takes, as far as is known.

        Returns:
            False if they can't have copies of all that samples need.
        """
        concurrency, workers = self._concurrency, self._workers
        if workers is not None and not workers.can_copy():
            return False
        self.on = False
        concurrency.consumer_only_waits = False
        concurrency.expect(seconds)
        concurrency.inline_choice.threads_begin(seconds, concurrency.waited)
        if workers is not None and not workers.take_over():
            concurrency.begin_again()
        return True

    def compare(self, samples: int) -> None:
        """Make the next batches here, if those of threads come later than that.

        Args:
            samples: Of a batch that threads have made.
        """
        concurrency = self._concurrency
        choice = concurrency.inline_choice
        if not choice.seconds:  # nothing to compare with: the user chose the number, say
            return
        # One thread that a consumer does nothing but wait for, under a GIL, saves it no time.
        slower = concurrency.consumer_only_waits
        if concurrency.changed_to:
            seconds, concurrency.changed_to = concurrency.changed_to, 0.0
            choice.changed(seconds, concurrency.waited)
            slower = concurrency.gains_nothing(seconds)
        slower |= choice.delivered(samples, concurrency.waited, settled=concurrency.is_settled)
        if slower and self._workers is not None:
            self.on = self.draining = True
            self._latest = math.inf, math.inf
            self._batches = self._inside = self._outside = 0.0

    def drained(self) -> None:
        """Note that threads have delivered what they had of the epoch."""
        self.draining = False
        self._concurrency.inline_choice.drained(self._concurrency.waited)
        self.batch_returned()
