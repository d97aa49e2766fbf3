"""Whether the calling thread makes the batches of an epoch itself, and how it changes over.

    a batch is made when it is asked for -> samples take long -> threads take over, and work ahead
    threads are no faster -> they end what they have -> the calling thread goes on

How many threads there are is the `Tuner`'s choice, of which 0 is one.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._engine.workers import runs_event_loop
from threadloader._lifetime import DROPPED
from threadloader._order.tickets import INLINE_SECONDS, START_SECONDS
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._engine.kept import Kept
    from threadloader._engine.open_batch import OpenBatch
    from threadloader._engine.settings import Settings
    from threadloader._engine.window import Window
    from threadloader._engine.workers import CallingThread, Workers
    from threadloader._report.stats import Deliveries


# Of a batch that the calling thread has made as one ticket.  Below that two batches that are made
# one after the other delay nobody; a first one may take a millisecond for what is done once.
ONE_TICKET_SECONDS = 5e-3
# Of a batch that takes far longer than the last ones: the data may have changed.
SLOW_SECONDS = 0.02
SLOW = 4.0  # times as long


class Maker:
    """Has the batches of an epoch made, by the calling thread or by others.

    Args:
        settings: Of the loader.
        kept: Of the loader.
        window: Has the batches.
        workers: The threads that take over; None for none.
        calling: The calling thread.
        counted: Of the epoch.

    Threads:
        all: consumer, in its turn.
    """

    def __init__(
        self,
        settings: Settings,
        kept: Kept,
        window: Window,
        workers: Workers | None,
        calling: CallingThread,
        counted: Deliveries,
    ) -> None:
        self.window = window
        self.threads = workers
        self.calling = calling
        self.stats, self.counted = kept.stats, counted
        self.entered = 0.0  # when the present `next` began, on the clock
        self.draining = False  # whether threads end theirs before the calling thread makes any
        self.making = False  # whether it makes one now
        self._feed, self._progress = window.feed, window.progress
        self.tuner, self._ticket_size = kept.tuner, kept.ticket_size
        self._to_plan = settings.batches if workers is not None else math.inf
        self._tunes = workers is not None and workers.tunes
        self._stays = workers is None or workers.stays
        self._made = 0  # batches, by the calling thread
        self._rows = 0  # of the last one
        # What the last two took.  The less of them counts, as what is done once in a while is no
        # property of the data.
        self._took: deque[float] = deque(maxlen=2)
        window.here = workers is None or workers.begins_here
        if workers is not None and not window.here and self._tunes:
            self._resize(workers)
        elif not window.here:
            self._progress.threads = max(1, self.tuner.number)

    def due(self) -> float:
        """Return when the number of threads is to be looked at, on `perf_counter`."""
        # While the calling thread makes the first batches, the tuner has its number for threads,
        # which have not begun: there is nothing to compare yet.
        if not self._tunes or self.draining or (self.window.here and self.tuner.number):
            return math.inf
        return self.tuner.due

    def tune(self) -> None:
        """Look at the number of threads, and let so many make the batches."""
        counted, tuner, size = self.counted, self.tuner, self._ticket_size
        loading = counted.loading_seconds + perf_counter() - self.entered
        seconds = self._sample_seconds() if self.window.here else size.seconds
        before = number = tuner.number
        if before or self.window.here:  # else another epoch has found 0
            number = tuner.look(self.stats.samples(), loading, seconds, size.least_seconds)
        if (number == before and bool(before) is not self.window.here) or self.threads is None:
            return
        if not number:
            self.window.here = self.draining = True
            self._took.clear()
        elif not before:
            if not self._leave(seconds):
                tuner.stay()
        else:
            self._resize(self.threads)

    def _sample_seconds(self) -> float:
        """Return what a sample takes in the calling thread, collating included; 0 if unknown."""
        return min(self._took) / self._rows if self._took and self._rows else 0.0

    def make_next(self) -> tuple[Any, Any] | None:
        """Return the next batch, made at once, and what the feed counts it as.

        Returns:
            None where it can't be made at once: then it is in flight, if there is one.
        """
        plan = made = None
        if self._progress.cancelled or not self._makes_at_once():
            return None
        started, nbytes = perf_counter(), self.counted.nbytes
        try:
            self.making = True
            made, plan = self._feed.make_next(self.calling, self._progress) or (None, None)
            if plan is not None and isinstance(made, tuple):
                self._note(len(plan.indices), perf_counter() - started)
                if self.threads is not None:
                    self.window.go_ahead()  # first, as where threads make the batch
                    self.window.depth.delivered(self.counted.nbytes - nbytes)
                return made[0], plan
            if made is not None:
                self.window.batches.append(made)
            return None
        except Exception as error:  # noqa: BLE001  # raised in the batch's place
            self.window.put_error(error)
            return None
        finally:
            self.making = False
            self = plan = made = DROPPED  # an error keeps this frame

    def _makes_at_once(self) -> bool:
        """Whether the calling thread makes the next batch, and no worker may have to end it."""
        if self.draining:
            self.draining = False
            self.tuner.begin_again()
        if self._stays:
            return True
        if self.entered >= self.due():
            self.tune()
            if not self.window.here:
                return False
        if not self._goes_on() and self._leave(self._sample_seconds()):
            return False
        # The first one may take long, and others while none is known to be fast: see `work_here`.
        return self._made > 0 and not self.tuner.tries_none

    def _goes_on(self) -> bool:
        """Whether the calling thread makes the next batch, too."""
        tuner = self.tuner
        if runs_event_loop():
            return False
        if not self._took or tuner.prefers_here or tuner.tries_none:
            return True
        seconds = min(self._took)
        left = (self._to_plan - self._made) * seconds
        if seconds <= INLINE_SECONDS or left < START_SECONDS:
            return True
        # One thread may be tried: see `tune`.
        return not tuner.number and tuner.gains_nothing(self._sample_seconds())

    def _note(self, rows: int, seconds: float) -> None:
        """Note a batch that the calling thread has made."""
        if self._took and SLOW_SECONDS < seconds > SLOW * max(self._took) and self._tunes:
            self.tuner.due = 0.0
        self._rows = rows
        if self._made:  # the first one may load what all others find loaded
            self._took.append(seconds)
        self._made += 1

    def work_here(self, head: OpenBatch) -> None:
        """Make a batch in the calling thread; if that takes long, workers make the rest of it."""
        feed, calling = self._feed, self.calling
        rows, started = len(head.plan.indices), perf_counter()
        try:
            self.making = True
            limited = not (self._stays or self.tuner.prefers_here)
            bears = self.tuner.bears(rows)
            until = started + max(INLINE_SECONDS, bears) if limited else math.inf
            feed.work(calling, head, until)
            if not head.done:
                self._hand_over(head)
                return
            seconds = perf_counter() - started
            left = (self._to_plan - self._made - 1) * seconds
            long = seconds > max(ONE_TICKET_SECONDS, bears) and left >= START_SECONDS
            if limited and long:
                # It was one ticket, so nobody has looked at the time: a batch of one sample, say.
                self._leave(seconds / (rows or 1))
            self._note(rows, seconds)
        finally:
            self.making = False
            self = head = feed = calling = DROPPED  # an error of a sample keeps this frame

    def _hand_over(self, head: OpenBatch) -> None:
        """Make the rest of a batch, by workers if its samples take long."""
        feed, calling = self._feed, self.calling
        counters, rows = calling.worker.counters, len(head.plan.indices)
        try:
            samples, started = counters.samples, perf_counter()
            feed.work(calling, head, started + INLINE_SECONDS)
            samples = counters.samples - samples
            seconds = (perf_counter() - started) / samples if samples else math.inf
            left = (self._to_plan - self._made) * rows * seconds
            short = left < START_SECONDS or self.tuner.gains_nothing(seconds)
            ends = short or head.done or head.failure is not None or self._progress.cancelled
            if ends or not self._leave(seconds, head):
                feed.work(calling, head)
                self._note(rows, perf_counter() - started)
        finally:
            self = head = feed = calling = DROPPED  # the same

    def _leave(self, seconds: float, begun: OpenBatch | None = None) -> bool:
        """Let workers make the batches from here on; return False if there are none.

        Args:
            seconds: That a sample takes, as far as is known.
            begun: The batch whose rest is for them.
        """
        workers = self.threads
        if workers is None:
            return False
        self.window.here = self.draining = False
        if not self.tuner.number or not self._tunes:
            self.tuner.leave(seconds)
        self._resize(workers)
        if begun is not None:
            with suppress(ClosedError):  # by another thread: who waits finds that out
                self._feed.give(begun)
        self.window.fill()
        return True

    def _resize(self, workers: Workers) -> None:
        """Let as many threads run as were found; at least one, whatever an epoch beside finds."""
        workers.resize(max(1, self.tuner.number))
        self._progress.threads = max(1, self.tuner.number)
