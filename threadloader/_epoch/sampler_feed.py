"""The batches of a map-style dataset, in the sampler's order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from threadloader._epoch.feed import Receipt
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.isolation import isolated_batch, redirect_for
from threadloader._work.made_at_once import make_at_once
from threadloader._work.open_batch import OpenBatch, work_inline
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._order.planner import Planner
    from threadloader._order.tickets import PlannedBatch
    from threadloader._resume.checkpoint import Checkpoint
    from threadloader._resume.position import Lane, Position
    from threadloader._rng.streams import WorkerStream
    from threadloader._threads.pool import Pool
    from threadloader._threads.worker_info import Introduction
    from threadloader._work.open_batch import Pipeline, Worker
    from threadloader._work.progress import Progress

__all__ = ["SamplerFeed"]


class SamplerFeed:
    """Plans the batches of a map-style dataset, one or a group at a time.

    Args:
        planner: Draws the batches.
        pipeline: What workers need.
        pool: The threads that make them; None for the calling thread.
        position: Where the epoch is; with one lane.
        stream: The random stream of the calling thread; None for its own random state.
        introduction: Makes the calling thread a worker while it makes a batch; None for the thread
            that is the only one.
        eager: See `Feed`.
    """

    def __init__(
        self,
        planner: Planner,
        pipeline: Pipeline,
        pool: Pool[Worker] | None,
        position: Position,
        stream: WorkerStream | None = None,
        introduction: Introduction | None = None,
        *,
        eager: bool = True,
    ) -> None:
        self.eager = eager
        self._introduction = introduction
        # Not where rows may be left out: of a group nobody knows whose they were.  And not in the
        # calling thread, which makes each batch when it is asked for: as in torch, it sees what the
        # user has changed since the batch before, rows or a generator.
        gathers = pipeline.gathers and all(each.gathers for each in pipeline.fetchers)
        self.groups = gathers and pipeline.on_error == "raise" and pool is not None
        self._planner = planner
        self._position = position
        self._pipeline = pipeline
        self._pipeline_here = pipeline.in_process or pipeline
        self._pool = pool
        self._stream = stream
        self._end = redirect_for(stream)
        if pool is not None and eager:
            planner.start()  # at iter(), as torch does with workers

    @property
    def least(self) -> int:
        """Return 0: the window says all; see `Feed`."""
        return 0

    def plan_next(
        self, progress: Progress, most: int = 1, *, inline: bool = False
    ) -> OpenBatch | None:
        """Plan the next batch; see `Feed`."""
        plan = self._draw(most)
        if plan is None:
            return None
        if inline:
            return OpenBatch(plan, self._pipeline_here, progress)
        return self._open(plan, progress)

    def make_next(
        self, progress: Progress, worker: Worker
    ) -> tuple[Any, Receipt] | OpenBatch | None:
        """Plan the next batch, and make it at once if that can be; see `Feed`."""
        plan = made = None
        results: list[tuple[Any] | OpenBatch] = []
        try:
            plan = self._draw()
            if plan is None:
                return None
            self._here(make_at_once, results, plan, self._pipeline_here, progress, worker)
            made = results.pop() if results else None
            if not isinstance(made, tuple):
                return made
            lane = self._position.lanes[0]
            return made[0], _SamplerReceipt(lane, plan.sequence, plan.checkpoint)
        finally:
            # An error of a sample keeps this frame.  As long as the stream lives, random functions
            # are redirected.
            self = plan = made = results = progress = lane = DROPPED

    def plan_singly(self, group: OpenBatch, progress: Progress) -> list[OpenBatch]:
        """Give the batches of a group to the workers one by one; see `Feed`."""
        return [self._open(plan, progress) for plan in group.plan.parts()]

    def give(self, batch: OpenBatch) -> None:
        """Give a batch to the workers; see `Feed`."""
        if self._pool is not None:
            batch.hand_over(self._pipeline)
            self._pool.put(batch)

    def work(
        self,
        batch: OpenBatch,
        progress: Progress,  # noqa: ARG002
        worker: Worker,
        until: float = math.inf,
    ) -> None:
        """Make a batch in the calling thread; see `Feed`."""
        self._here(work_inline, batch, worker, until)
        self = batch = DROPPED

    def done(self, batch: OpenBatch) -> Sequence[Receipt]:
        """Return the receipts of a batch; see `Feed`."""
        plan, lane = batch.plan, self._position.lanes[0]
        if not plan.ends:
            return (_SamplerReceipt(lane, plan.sequence, plan.checkpoint),)
        return [_SamplerReceipt(lane, plan.sequence + n, None) for n in range(plan.batches)]

    def end(self, *, finished: bool = False) -> None:
        """Redirect random functions no longer; see `Feed`."""
        self._end()
        if finished:
            self._position.finished = True

    def _here(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in the calling thread, as the worker that it is."""
        stream, introduction = self._stream, self._introduction
        try:
            if introduction is None:
                isolated_batch(stream, function, *args)
            else:
                introduction.call(isolated_batch, stream, function, *args)
        finally:
            self = stream = introduction = function = DROPPED  # an error keeps this frame
            args = ()

    def _draw(self, most: int = 1) -> PlannedBatch | None:
        """Draw the next batch from the sampler."""
        try:
            return self._planner.draw(most)
        except StateError:
            self._position.refused = True
            raise

    def _open(self, plan: PlannedBatch, progress: Progress) -> OpenBatch:
        """Give a batch to the workers."""
        batch = OpenBatch(plan, self._pipeline, progress)
        if self._pool is not None:
            self._pool.put(batch)
        return batch


class _SamplerReceipt(Receipt):
    """Counts a batch in the sampler's lane."""

    __slots__ = ("_checkpoint", "_lane", "_number")

    def __init__(self, lane: Lane, number: int, checkpoint: Checkpoint | int | None) -> None:
        self._lane = lane
        self._number = number
        self._checkpoint = checkpoint

    def count(self, *, returned: bool) -> None:  # noqa: ARG002  # counts all the same
        """Count the batch; see `Receipt`."""
        self._lane.delivered(self._number, self._checkpoint)

    def take_back(self) -> None:
        """Count the batch no longer; see `Receipt`."""
        self._lane.take_back(self._number)
