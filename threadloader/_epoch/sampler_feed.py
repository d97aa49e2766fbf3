"""The batches of a map-style dataset, in the sampler's order."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from threadloader._lifetime.dropping import DROPPED
from threadloader._work.open_batch import OpenBatch, work_here
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._order.planner import Planner
    from threadloader._order.tickets import PlannedBatch
    from threadloader._resume.position import Position
    from threadloader._threads.pool import Pool
    from threadloader._work.calling_thread import CallingThread
    from threadloader._work.open_batch import Pipeline
    from threadloader._work.progress import Progress
    from threadloader._work.worker import Worker

__all__ = ["SamplerFeed"]


class SamplerFeed:
    """Plans the batches of a map-style dataset; see `Feed`.

    Args:
        planner: Draws the batches.
        pipeline: What workers need.
        pool: The threads that make them; None for the calling thread.
        position: Where the epoch is; with one lane.
        eager: See `Feed`.
    """

    least = 0

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
        self._ahead: deque[PlannedBatch | Exception | None] = deque()

    def start(self, calling: CallingThread) -> None:  # noqa: ARG002
        """Let the sampler draw its first batch, as torch does with workers; see `Feed`."""
        if self._pool is not None and self.eager:
            self._planner.start()

    def draw(self) -> PlannedBatch | None:
        """Draw the next batch from the sampler; see `Feed`."""
        if self._ahead:
            drawn = self._ahead.popleft()
            if isinstance(drawn, Exception):
                raise drawn
            return drawn
        try:
            return self._planner.draw()
        except StateError:
            self._position.refused = True
            raise

    def draw_ahead(self, batches: int) -> None:
        """Draw as many batches as threads would have; see `Feed`."""
        ahead = self._ahead
        while len(ahead) < batches and not (ahead and ahead[-1] is None):
            try:
                ahead.append(self._planner.draw())
            except Exception as error:  # noqa: BLE001  # raised in its turn
                ahead.append(error)

    def make(
        self,
        calling: CallingThread,
        make_at_once: Callable[..., Any],
        plan: PlannedBatch,
        progress: Progress,
    ) -> Any:
        """Make a batch at once; see `Feed`."""
        try:
            return calling.call(make_at_once, plan, self._pipeline, progress)
        finally:
            self = calling = plan = progress = DROPPED  # an error of a sample keeps this frame

    def plan(self, progress: Progress) -> OpenBatch | None:
        """Plan the next batch; see `Feed`."""
        plan = self.draw()
        return None if plan is None else OpenBatch(plan, self._pipeline, progress)

    def give(self, batch: OpenBatch) -> None:
        """Give a batch to the workers; see `Feed`."""
        if self._pool is not None:
            self._pool.put(batch)

    def work(self, calling: CallingThread, batch: OpenBatch, until: float = math.inf) -> None:
        """Make a batch in the calling thread; see `Feed`."""
        try:
            calling.call(work_here, batch, until)
        finally:
            self = calling = batch = DROPPED  # noqa: F841  # the same

    def done(self, batch: OpenBatch) -> None:
        """Do nothing: the sampler has been asked already; see `Feed`."""

    def count(self, batch: PlannedBatch | None, *, returned: bool) -> None:  # noqa: ARG002
        """Count a batch; see `Feed`."""
        if batch is not None:
            self._position.lanes[0].delivered(batch.sequence, batch.checkpoint)

    def take_back(self, batch: PlannedBatch | None) -> None:
        """Count a batch no longer; see `Feed`."""
        if batch is not None:
            self._position.lanes[0].take_back(batch.sequence)

    def end(self, *, finished: bool = False) -> None:
        """Note the end; see `Feed`."""
        if finished:
            self._position.finished = True
