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
from typing import TYPE_CHECKING

from threadloader._engine.open_batch import OpenBatch
from threadloader._engine.workers import runs_event_loop
from threadloader._lifetime import DROPPED
from threadloader._order.tickets import INLINE_SECONDS, START_SECONDS
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._engine.kept import Kept
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
        window.inline = workers is None or workers.begins_inline
        if workers is not None and not window.inline and self._tunes:
            self._resize(workers)
        elif not window.inline:
            self._progress.threads = max(1, self.tuner.number)

    def due(self) -> float:
        """Return when the number of threads is to be looked at, on `perf_counter`."""
        # While the calling thread makes the first batches, the tuner has its number for threads,
        # which have not begun: there is nothing to compare yet.
        if not self._tunes or self.draining or (self.window.inline and self.tuner.number):
            return math.inf
        return self.tuner.due

    def tune(self) -> None:
        """Look at the number of threads, and let so many make the batches."""
        counted, tuner, size = self.counted, self.tuner, self._ticket_size
        loading = counted.loading_seconds + perf_counter() - self.entered
        seconds = self._sample_seconds() if self.window.inline else size.seconds
        before = number = tuner.number
        if before or self.window.inline:  # else another epoch has found 0
            number = tuner.look(self.stats.samples(), loading, seconds, size.least_seconds)
        if (number == before and bool(before) is not self.window.inline) or self.threads is None:
            return
        if not number:
            self.window.inline = self.draining = True
            self._took.clear()
        elif not before:
            if not self._leave(seconds):
                tuner.stay()
        else:
            self._resize(self.threads)

    def _sample_seconds(self) -> float:
        """Return what a sample takes in the calling thread, collating included; 0 if unknown."""
        return min(self._took) / self._rows if self._took and self._rows else 0.0

    def make(self, batch: OpenBatch) -> None:
        """Make a batch in the calling thread, or let workers make it and those that follow."""
        if batch.given or batch.done:
            return
        try:
            self.making = True
            if self._stays:
                self.calling.call(batch.make)
            elif self._is_here():
                self._make(batch, perf_counter())
        finally:
            self.making = False
            self = batch = DROPPED  # an error of a sample keeps this frame

    def _is_here(self) -> bool:
        """Whether the calling thread makes the next batch, by what is known of its samples."""
        if self.draining:
            self.draining = False
            self.tuner.begin_again()
        if self.entered >= self.due():
            self.tune()
        if self.window.inline and not self._goes_on():
            self._leave(self._sample_seconds())
        return self.window.inline

    def _goes_on(self) -> bool:
        """Whether the calling thread makes the next batch, too."""
        if runs_event_loop():
            return False
        seconds, tuner = min(self._took, default=0.0), self.tuner
        if seconds <= INLINE_SECONDS or tuner.prefers_inline or tuner.tries_none:
            return True
        if (self._to_plan - self._made) * seconds < START_SECONDS:
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

    def _make(self, batch: OpenBatch, started: float) -> None:
        """Make a batch in the calling thread; if that takes long, workers make the rest of it."""
        try:
            rows = len(batch.plan.indices)
            # The first one may take long, and others while none is known to be fast.
            if self._made and not self.tuner.tries_none:
                self.calling.call(batch.make)
                self._note(rows, perf_counter() - started)
                return
            bears = self.tuner.bears(rows)
            until = math.inf if self.tuner.prefers_inline else started + max(INLINE_SECONDS, bears)
            self.calling.call(batch.try_to_make, until)
            if not batch.done:
                self._hand_over(batch)
                return
            seconds = perf_counter() - started
            left = (self._to_plan - self._made - 1) * seconds
            long = seconds > max(ONE_TICKET_SECONDS, bears) and left >= START_SECONDS
            if long and not self.tuner.prefers_inline:
                # It was one ticket, so nobody has looked at the time: a batch of one sample, say.
                self._leave(seconds / (rows or 1))
            self._note(rows, seconds)
        finally:
            self = batch = DROPPED  # the same

    def _hand_over(self, head: OpenBatch) -> None:
        """Make the rest of a batch, by workers if its samples take long."""
        calling = self.calling
        counters, rows = calling.worker.counters, len(head.plan.indices)
        try:
            samples, started = counters.samples, perf_counter()
            calling.call(head.try_to_make, started + INLINE_SECONDS)
            samples = counters.samples - samples
            seconds = (perf_counter() - started) / samples if samples else math.inf
            left = (self._to_plan - self._made) * rows * seconds
            short = left < START_SECONDS or self.tuner.gains_nothing(seconds)
            ends = short or head.done or head.failure is not None or self._progress.cancelled
            if ends or not self._leave(seconds):
                calling.call(head.try_to_make)
                self._note(rows, perf_counter() - started)
        finally:
            self = head = calling = DROPPED  # the same

    def _leave(self, seconds: float) -> bool:
        """Let workers make the batches from here on; return False if there are none.

        Args:
            seconds: That a sample takes, as far as is known.
        """
        workers = self.threads
        if workers is None:
            return False
        self.window.inline = self.draining = False
        if not self.tuner.number or not self._tunes:
            self.tuner.leave(seconds)
        self._resize(workers)
        for batch in list(self.window.batches):  # the head, if nobody has it yet
            with suppress(ClosedError):  # by another thread: who waits finds that out
                if isinstance(batch, OpenBatch) and not (batch.given or batch.done):
                    self._feed.give(batch)
        self.window.fill()
        return True

    def _resize(self, workers: Workers) -> None:
        """Let as many threads run as were found; at least one, whatever an epoch beside finds."""
        workers.resize(max(1, self.tuner.number))
        self._progress.threads = max(1, self.tuner.number)
