"""The window of an epoch: the batches that were planned and not delivered, oldest first.

The consumer's thread plans as many as there is room for when the epoch starts, and one more before
each that it returns, as torch does; workers never touch the sampler.  Where the calling thread
makes the batches itself, each is planned when it is asked for.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from threadloader._engine.open_batch import FailedBatch, OpenBatch
from threadloader._engine.progress import Progress
from threadloader._lifetime import end_thread_at_exit, importing
from threadloader._order.samplers import is_users
from threadloader._report import stages
from threadloader._report.stages import Counts

if TYPE_CHECKING:
    from threadloader._engine.copier import Copier
    from threadloader._engine.feed import Feed
    from threadloader._engine.kept import Kept
    from threadloader._engine.settings import Settings
    from threadloader._torch.device import Device


class Window:
    """The batches of an epoch that were planned and not delivered.

    Args:
        settings: Of the loader.
        kept: Of the loader.
        feed: Plans the batches and gives them to the threads.
        device: Batches are copied to it; None to leave them in memory.

    Threads:
        moment: shared.
        close: shared.
        all else: consumer, in its turn.
    """

    def __init__(self, settings: Settings, kept: Kept, feed: Feed, device: Device | None) -> None:
        self.feed = feed
        self.depth, self.ring = kept.collation.depth, kept.collation.ring
        self.progress = Progress(kept.stats, copies=device is not None)
        self.inline = True  # whether the calling thread makes the batches; set by the maker
        self.planned_all = False
        self.planning = False  # whether the sampler draws now
        # Guarded by the epoch's turn, but that `close` may replace it at any moment.
        self.batches: deque[OpenBatch | FailedBatch] = deque()
        self._most, self._in_order = settings.window, settings.in_order
        self._tuner, self._ticket_size = kept.tuner, kept.ticket_size
        self._kept_batches, self._whole_batches = settings.kept_batches, settings.whole_batches
        self._is_users = not settings.iterable and is_users(settings.index_sampler)
        self.copier: Copier | None = None
        if device is not None:
            with importing():
                from threadloader._engine.copier import Copier  # noqa: PLC0415  # only needed here

            self.copier = Copier(
                device,
                self.progress,
                settings.device_prefetch,
                in_order=settings.in_order,
                name=settings.name,
                copied=kept.stats.copied,
            )

    def moment(self) -> tuple[int, int, int]:
        """Return how the window is at this moment; from any thread.

        Returns:
            Threads that may run samples, 0 for the calling thread; batches that are planned; and
            those of them that are done.
        """
        running = 0 if self.inline else self.progress.threads
        while True:
            # To list a deque is one call, but no atomic one without a GIL.  It takes far less time
            # than from one change to the next.  (Its own `copy` takes 0.1 s on CPython 3.13 without
            # GIL, where other threads are busy.)
            with suppress(RuntimeError):
                batches = list(self.batches)
                return running, len(batches), sum(batch.done for batch in batches)

    def head(self) -> OpenBatch | FailedBatch | None:
        """Return the oldest batch, planned now if none is in flight; None after the last."""
        if not self.batches:
            self.fill()
        try:
            return self.batches[0]
        except IndexError:  # none is left, or another thread has closed the epoch
            return None

    def deliverable(self, head: OpenBatch) -> list[OpenBatch]:
        """Return the batches any of which may be delivered next."""
        if self._in_order:
            return [head]
        return [batch for batch in self.batches if isinstance(batch, OpenBatch)]

    def take_out(self, batch: OpenBatch | FailedBatch) -> bool:
        """Take a batch out; return False if another thread has closed the epoch."""
        try:
            self.batches.remove(batch)
        except ValueError:
            return False
        if isinstance(batch, FailedBatch):
            return True
        if not self.progress.has(batch):  # closed, and so it never comes
            return False
        tracer = stages.tracer
        if tracer is not None and not batch.exhausted:  # up to the end of `next`
            slots = self.ring.statistics()
            counts = Counts(*self.moment(), slots.free, slots.filling, slots.leased)
            tracer.begin("deliver", self.progress.key, batch.plan.sequence, counts=counts)
        self.feed.done(batch)
        return True

    def fill(self) -> None:
        """Plan batches until the window is full."""
        tracer, self.planning = stages.tracer, True
        if tracer is not None:
            tracer.begin("plan", self.progress.key)
        try:
            self._plan()
        finally:
            self.planning = False
            if tracer is not None:
                tracer.end("plan")

    def go_ahead(self) -> None:
        """Plan batches ahead, or let the sampler draw as many as threads would have.

        So what it draws from a generator that the loop draws from, too, does not depend on whether
        threads or the calling thread are faster.
        """
        if self.inline:
            self.feed.draw_ahead(self.depth.room(self._most) - len(self.batches))
        else:
            self.fill()

    def put_error(self, error: Exception) -> None:
        """Put the sampler's error in the place of the batch that could not be planned."""
        end_thread_at_exit()
        # Nobody takes it from a closed epoch, and it would keep this frame.
        if not self.progress.cancelled:
            self.batches.append(FailedBatch(error))

    def close(self) -> None:
        """Plan no more, and drop what is in flight."""
        self.batches = deque()  # not cleared: the consumer may be iterating over it
        self.feed.end()

    def _plan(self) -> None:
        inline, room = self.inline, 1
        if not inline:
            if self._tuner.number > self._tuner.limits.threads or self.depth.needed:
                self.depth.needed = self._needed()
            room = max(self.depth.room(self._most), self.feed.least)
        while not (self.planned_all or self.progress.cancelled) and len(self.batches) < room:
            try:
                batch = self.feed.plan(self.progress)
                if batch is not None and not inline:
                    self.feed.give(batch)
            except Exception as error:  # noqa: BLE001  # raised in the batch's place
                self.put_error(error)
                return
            if batch is None:
                self.planned_all = True
                return
            self.batches.append(batch)
            if self.copier is not None:
                self.copier.put(batch)

    def _needed(self) -> int:
        """Return how many batches keep more threads busy than there are cores; 0 for no more."""
        tuner, batches = self._tuner, self.batches  # `close` may replace them
        needed = 0
        if tuner.number > tuner.limits.threads and batches and not self._is_users:
            last = batches[-1]
            rows = len(last.plan.indices) if isinstance(last, OpenBatch) else 0
            needed = self._ticket_size.batches_for(
                tuner.number,
                rows,
                one_ticket=self._whole_batches,
                for_slowest=self.depth.knows_nbytes,
            )
        self.ring.batches = max(self._kept_batches, needed + 2)
        return needed
