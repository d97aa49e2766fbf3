"""Where an epoch's batches come from: a sampler, or the replicas of an iterable dataset in turn.

A feed plans one batch at a time, in the consumer's thread, and counts those that were delivered, so
that a state saved later goes on after them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from threadloader._engine.open_batch import OpenBatch, Pipeline
from threadloader._lifetime import importing
from threadloader._order.planner import Planner
from threadloader.errors import StateError

if TYPE_CHECKING:
    from threadloader._engine.copies import Worker
    from threadloader._engine.iterable_feed import IterableFeed
    from threadloader._engine.kept import Kept
    from threadloader._engine.progress import Progress
    from threadloader._engine.settings import Settings
    from threadloader._engine.workers import CallingThread, Workers
    from threadloader._order.resume import Position
    from threadloader._order.sampler_pass import SamplerPass
    from threadloader._order.seeds import EpochSeeds
    from threadloader._order.share import Share
    from threadloader._order.tickets import PlannedBatch
    from threadloader._threads.pool import Pool


Feed: TypeAlias = "SamplerFeed | IterableFeed"


def open_feed(
    settings: Settings,
    kept: Kept,
    sampler_pass: SamplerPass | None,
    workers: Workers | None,
    seeds: EpochSeeds,
    position: Position,
    share: Share | None,
) -> Feed:
    """Return the feed of one epoch.

    Args:
        settings: Of the loader.
        kept: Of the loader.
        sampler_pass: The pass over the sampler; None for an iterable dataset.
        workers: Whose threads do the work; None for the calling thread.
        seeds: Of the epoch.
        position: Where the epoch begins; it is given a lane for each replica, if it has none.
        share: Of an iterable dataset; None where it shares itself out.

    Raises:
        StateError: The position is that of another number of replicas.
    """
    transforms = settings.transform is not None
    pipeline = Pipeline(
        settings.whole_batches if sampler_pass is not None else not transforms,
        kept.ticket_size,
        kept.collation,
        # Without a transform all that a replica draws comes from its worker's stream, as in torch.
        seeds.samples if sampler_pass is not None or transforms else None,
        settings.on_error,
        gathers=kept.collation.direct and sampler_pass is not None,
    )
    if sampler_pass is None:
        # Most loaders read no iterable, and these modules are a tenth of the package's import.
        with importing():
            from threadloader._engine.iterable_feed import open_iterable_feed  # noqa: PLC0415

        return open_iterable_feed(settings, pipeline, workers, seeds, position, share)
    planner = Planner(
        sampler_pass,
        position.lanes[0],
        batched=settings.batched,
        whole_batches=settings.whole_batches,
    )
    # A sampler of the user's may be told which epoch it is between iter() and the first batch.
    eager = sampler_pass.order is not None or not position.restored
    pool = None if workers is None else workers.pools[0]
    return SamplerFeed(planner, pipeline, pool, position, eager=eager)


class SamplerFeed:
    """Plans the batches of a map-style dataset, and counts them.

    Args:
        planner: Draws the batches.
        pipeline: What workers need.
        pool: The threads that make them; None for the calling thread.
        position: Where the epoch is; with one lane.
        eager: Whether batches may be planned before the first is asked for.

    Threads:
        end: shared; all others: consumer.
    """

    least = 0  # the batches that are planned ahead at the least, whatever the window

    def __init__(
        self,
        planner: Planner,
        pipeline: Pipeline,
        pool: Pool[Worker] | None,
        position: Position,
        *,
        eager: bool = True,
    ) -> None:
        self.eager = eager
        self._planner = planner
        self._position = position
        self._pipeline = pipeline
        self._pool = pool
        # Drawn and not planned yet; None behind the last, and errors in their places.
        self._drawn: deque[PlannedBatch | Exception | None] = deque()

    def start(self, calling: CallingThread) -> None:  # noqa: ARG002
        """Let the sampler draw its first batch at ``iter()``, as torch does with workers."""
        if self._pool is not None and self.eager:
            self._planner.start()

    def draw_ahead(self, batches: int) -> None:
        """Draw from the sampler until so many batches are there for `plan`."""
        drawn = self._drawn
        while len(drawn) < batches and not (drawn and drawn[-1] is None):
            try:
                drawn.append(self._planner.draw())
            except Exception as error:  # noqa: BLE001  # raised in its turn
                drawn.append(error)

    def plan(self, progress: Progress) -> OpenBatch | None:
        """Return the next batch, which nobody has begun to make; None after the last.

        Raises:
            Exception: What the sampler raises; the next call goes on with what it yields then.
        """
        try:
            plan = self._drawn.popleft() if self._drawn else self._planner.draw()
            if isinstance(plan, Exception):
                raise plan
        except StateError:
            self._position.refused = True
            raise
        return None if plan is None else OpenBatch(plan, self._pipeline, progress)

    def give(self, batch: OpenBatch) -> None:
        """Give a batch to the workers, or what the calling thread has left of it."""
        if self._pool is not None:
            batch.begin()
            batch.given = True
            self._pool.put(batch)

    def done(self, batch: OpenBatch) -> None:
        """Do nothing for a batch that is done and was taken out of the window."""

    def count(self, batch: PlannedBatch | None, *, returned: bool) -> None:  # noqa: ARG002
        """Count a batch in the epoch's position.

        Args:
            batch: Its ``count_as``: as what it is counted.  None counts nothing, for the end of a
                replica, and for an error of the sampler.
            returned: Whether the consumer gets it.  If not, an error was raised in its place, or
                all of its samples were left out.
        """
        if batch is not None:
            self._position.lanes[0].delivered(batch.sequence, batch.checkpoint)

    def take_back(self, batch: PlannedBatch | None) -> None:
        """Count a batch no longer, if it was counted last: the consumer did not get it."""
        if batch is not None:
            self._position.lanes[0].take_back(batch.sequence)

    def end(self, *, finished: bool = False) -> None:
        """Plan no more batches.  Idempotent.

        Args:
            finished: Whether all were delivered; the consumer calls it then.
        """
        if finished:
            self._position.finished = True
