"""The batches of a map-style dataset, in the sampler's order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.redirect import isolated_here, redirect_for
from threadloader._work.open_batch import OpenBatch, work_inline
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._order.planner import Planner
    from threadloader._order.tickets import PlannedBatch
    from threadloader._resume.position import Position
    from threadloader._rng.streams import WorkerStream
    from threadloader._threads.pool import Pool
    from threadloader._work.open_batch import FailedBatch, Stages, Worker
    from threadloader._work.progress import Progress

__all__ = ["SamplerFeed"]


class SamplerFeed:
    """Batches of a map-style dataset, as the sampler says.

    Args:
        planner: Draws the batches.
        stages: What workers need.
        pool: Whose threads do the work; None for the calling thread.
        position: Where the epoch is; with one lane.
        stream: What the calling thread draws from then; None for its own random state.
        eager: See `Feed`.
    """

    def __init__(
        self,
        planner: Planner,
        stages: Stages,
        pool: Pool[Worker] | None,
        position: Position,
        stream: WorkerStream | None = None,
        *,
        eager: bool = True,
    ) -> None:
        self.eager = eager
        # Rows left out would be nobody's.  The calling thread makes a batch when it is wanted: what
        # the user changes between two, rows or a generator, is seen, as in torch.
        gathers = stages.gathers and all(each.gathers for each in stages.fetchers)
        self.packs = gathers and stages.on_error == "raise" and pool is not None
        self._planner = planner
        self._position = position
        self._stages = stages
        self._pool = pool
        self._stream = stream
        self._end = _nothing if stream is None else redirect_for(stream)

    def start(self) -> None:
        """Start the sampler; see `Feed`."""
        if self._pool is not None and self.eager:
            self._planner.start()

    def draw(self, progress: Progress, most: int = 1) -> OpenBatch | None:
        """Plan the next batch; see `Feed`."""
        try:
            plan = self._planner.draw(most)
        except StateError:
            self._position.refused = True
            raise
        return None if plan is None else self._open(plan, progress)

    def split(self, pack: OpenBatch, progress: Progress) -> list[OpenBatch]:
        """Make batches one by one; see `Feed`."""
        return [self._open(plan, progress) for plan in pack.plan.parts()]

    def work(self, batch: OpenBatch, progress: Progress, worker: Worker) -> None:  # noqa: ARG002
        """Do a batch in the calling thread; see `Feed`."""
        isolated_here(self._stream, work_inline, batch, worker)
        self = batch = DROPPED

    def left(self, batch: OpenBatch) -> None:
        """Do nothing: a sampler ends by itself."""

    def receipt(self, batch: OpenBatch, number: int = 0) -> Callable[[], None]:
        """Return what counts it as delivered; see `Feed`."""
        plan = batch.plan
        return partial(self._position.lanes[0].delivered, plan.sequence + number, plan.checkpoint)

    def take_back(self, batch: OpenBatch | FailedBatch | None, number: int = 0) -> None:
        """Take no note of it; see `Feed`."""
        if isinstance(batch, OpenBatch):
            self._position.lanes[0].take_back(batch.plan.sequence + number)

    def returned(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Count the epoch as finished; see `Feed`."""
        self._position.finished = True

    def end(self) -> None:
        """Redirect no random functions any more; see `Feed`."""
        self._end()

    def _open(self, plan: PlannedBatch, progress: Progress) -> OpenBatch:
        """Give a batch to the threads."""
        batch = OpenBatch(plan, self._stages, progress)
        if self._pool is not None:
            self._pool.put(batch)
        return batch


def _nothing() -> None:
    """There is nothing to end."""
