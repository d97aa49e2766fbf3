"""One sample or batch again, in the calling thread, with the random numbers that it had.

    a note on an error, or the seed and numbers -> the plan of the batch -> the sample, or the batch

A note has the plan of the batch that failed, so nothing is drawn again for it.  By its number a
batch is planned anew, where all of its order follows from ``seed=``: no random state is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._engine.open_batch import OpenBatch, Pipeline
from threadloader._engine.progress import Progress
from threadloader._engine.workers import CallingThread, may_draw
from threadloader._loader.session import new_collation, new_ring
from threadloader._order.planner import Planner
from threadloader._order.ranks import rank_with_own_streams, share_of
from threadloader._order.resume import Lane, Position
from threadloader._order.sampler_pass import open_pass
from threadloader._order.samplers import known
from threadloader._order.seeds import Seeds
from threadloader._order.tickets import Ticket, TicketSize
from threadloader._report.stats import Stats
from threadloader._worker.failure import Origin, origin_of

if TYPE_CHECKING:
    from threadloader._engine.copies import Worker
    from threadloader._engine.settings import Settings
    from threadloader._loader.session import Session
    from threadloader._order.tickets import PlannedBatch


class Numbers(NamedTuple):
    """What is to be made again, where no error says so; see `ThreadLoader.replay`."""

    epoch: int | None  # None for the latest
    batch: int
    row: int | None
    index: Any  # of the sample, instead of its row


def replay(session: Session, settings: Settings, wanted: Any) -> Any:
    """Return the sample or the batch; raises its error.

    Args:
        session: Of the loader.
        settings: Of the loader.
        wanted: An error that a loop got; or `Numbers`.

    Raises:
        ValueError: No note says where the error comes from; or the order does not follow from a
            ``seed=``; or the random numbers are not known.
        IndexError: There is no such batch or row; or not one row with that index.
        TypeError: The dataset is iterable.
    """
    if settings.iterable:
        raise TypeError(
            "samples of an iterable dataset have no number: replay() needs a map-style one"
        )
    if not settings.isolate_rng:
        raise ValueError(
            "with isolate_rng=False there is no replay: random states have changed since"
        )
    origin = _origin(session, settings, wanted) if type(wanted) is Numbers else origin_of(wanted)
    if origin is None:
        raise ValueError("the error has no note with the number of its batch")
    plan, row, seeds = origin
    settings = settings._replace(device=None, pinned=False, on_error="raise")
    isolates, whole = may_draw(settings), settings.whole_batches
    collation, size = new_collation(settings, new_ring(settings)), TicketSize()
    pipeline = Pipeline(whole, size, collation, seeds.samples if isolates else None)
    counted = Stats().begin_epoch()
    calling = CallingThread(settings, None, seeds.workers, counted, isolates=isolates)
    try:
        return calling.call(_made, plan, pipeline, row)
    finally:
        calling.end()


def _made(worker: Worker, plan: Any, pipeline: Pipeline, row: int | None) -> Any:
    if row is not None:
        whole = pipeline.whole_batches
        ticket = Ticket(plan, 0, len(plan.indices)) if whole else Ticket(plan, row, row + 1)
        samples, error = worker.fetcher.fetch(ticket, Progress(), pipeline.seed, singly=not whole)
        if error is not None:
            raise error
        return samples[row if whole else 0]
    batch = OpenBatch(plan, pipeline, Progress())
    batch.make(worker)
    if batch.failure is not None:
        raise batch.failure.error
    return batch.take()


def _origin(session: Session, settings: Settings, wanted: Numbers) -> Origin:
    """Return where a sample or batch comes from that is asked for by its number."""
    sampler, last = known(settings.index_sampler), session.run.last
    if settings.seed is None or sampler is None or sampler.generator is not None:
        raise ValueError("replay() by numbers needs a loader with a seed=, and no sampler of yours")
    state: dict[str, Any] = {"epoch": wanted.epoch or 0, "draws": {}, "begun": True}
    if last is not None and wanted.epoch in (None, last.position.epoch):
        state = last.state()  # which ranks may have begun that were more, or fewer
    position = Position.of(state["epoch"], state | {"lanes": [Lane().state()]})
    share = share_of(settings)
    rank = rank_with_own_streams(settings, share)
    draws = Seeds().begin_epoch(settings.seed, None, state)
    sampler_pass: Any = open_pass(settings, draws, position, share, checked=rank is None)
    seeds = draws.seeds(kept=False, rank=rank or 0)  # before the order is drawn, as in an epoch
    ways = {"batched": settings.batched, "whole_batches": settings.whole_batches}
    planner = Planner(sampler_pass, position.lanes[0], **ways)
    plans = [plan for _ in range(wanted.batch + 1) if (plan := planner.draw()) is not None]
    if min(position.epoch, wanted.batch) < 0 or len(plans) <= wanted.batch:
        msg = f"epoch {position.epoch} has no batch {wanted.batch}"
        raise IndexError(msg)
    return Origin(plans[-1], _row_in(plans[-1], wanted), seeds)


def _row_in(plan: PlannedBatch, wanted: Numbers) -> int | None:
    _, batch, row, index = wanted
    if row is None and index is None:
        return None
    rows = range(len(plan.indices))
    found = [at for at in rows if at == row or (row is None and plan.index_of(at) == index)]
    if len(found) != 1:
        msg = f"rows {found} of the {len(rows)} of batch {batch} have {row=}, {index=}: give row="
        raise IndexError(msg)
    return found[0]
