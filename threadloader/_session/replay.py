"""One sample or batch again, in the calling thread, with the random numbers that it had.

    where its epoch began -> the sampler -> the plan of the batch -> the sample, or the batch

What is drawn for that is put back, so that the run goes on as if nothing had been asked.
"""

from __future__ import annotations

import copy
import operator
import random
import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._fetch.failure import epoch_of_note
from threadloader._order.planner import Planner
from threadloader._order.ranks import epoch_of, rank_with_own_streams, share_of, tell_again
from threadloader._order.samplers import is_known, known
from threadloader._order.tickets import Ticket, TicketSize
from threadloader._resume import Lane, Position
from threadloader._rng.seeds import (
    EpochSeeds,
    Seeds,
    encoded_state,
    restore_generator,
    state_of,
)
from threadloader._session.begin import open_sampler_pass
from threadloader._session.session import new_collation, new_ring
from threadloader._work.open_batch import Pipeline, make_at_once, work_here
from threadloader._work.progress import Progress
from threadloader._work.stats import Stats
from threadloader._work.workers import CallingThread, may_draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._order.tickets import PlannedBatch
    from threadloader._session.session import Session
    from threadloader._session.state import State
    from threadloader._settings import Settings
    from threadloader._work.copies import Worker

OTHER_ORDER = "your sampler gives another order now, and nothing says which it was"

_NOTE = re.compile(r"batch (\d+)(?:, index (.+))?$")


class Wanted(NamedTuple):
    """What is to be made again; see `ThreadLoader.replay`."""

    epoch: int | None  # None for the latest
    batch: int
    row: int | None = None
    index_text: str | None = None  # as `repr` has it

    @classmethod
    def of(cls, error: BaseException) -> Wanted:
        """Return what has failed with an error.

        Raises:
            ValueError: It has no note of this package's.
        """
        for note in reversed(getattr(error, "__notes__", [])):
            if found := _NOTE.search(note):
                return cls(epoch_of_note(note), int(found[1]), index_text=found[2])
        msg = f"{error!r} has no note that says in which batch it was raised"
        raise ValueError(msg)

    def row_in(self, plan: PlannedBatch) -> int | None:
        """Return the row; None for the whole batch.

        Raises:
            IndexError: The batch has no such row, or index.
        """
        rows = range(len(plan.indices))
        if self.row is not None and self.row not in rows:
            msg = f"batch {self.batch} has {len(rows)} rows, and none has number {self.row}"
            raise IndexError(msg)
        if self.index_text is None:
            return self.row
        found = [row for row in rows if repr(plan.index_of(row)) == self.index_text]
        if len(found) == 1:
            return found[0]
        if found:
            msg = f"rows {found} of batch {self.batch} have index {self.index_text}: give row="
            raise IndexError(msg)
        msg = f"batch {self.batch} has no index {self.index_text}: the sampler gives others now"
        raise IndexError(msg)


def replay(session: Session, settings: Settings, wanted: Wanted) -> Any:
    """Return the sample or the batch; raises its error.

    Args:
        session: Of the loader.
        settings: Of the loader.
        wanted: Which.

    Raises:
        ValueError: The order of that epoch is not known any more, or its random numbers are not;
            or a number is negative.
        IndexError: The epoch has no such batch, or the batch no such row.
        TypeError: The dataset is iterable, or a number is none.
    """
    for name, number in (("epoch", wanted.epoch), ("batch", wanted.batch), ("row", wanted.row)):
        if number is not None and operator.index(number) < 0:
            msg = f"{name} must be at least 0, but got {number}"
            raise ValueError(msg)
    if settings.iterable:
        msg = "an iterable dataset can't be asked for one sample: iterate over it, or load a state"
        raise TypeError(msg)
    if not settings.isolate_rng:
        msg = "with isolate_rng=False samples draw from random states that have gone on"
        raise ValueError(msg)
    settings = settings._replace(device=None, pinned=False, on_error="raise")
    plan, seeds = _planned(settings, _state_of(session, settings, wanted.epoch), wanted.batch)
    row = wanted.row_in(plan)
    isolates = may_draw(settings)
    pipeline = Pipeline(
        settings.whole_batches,
        TicketSize(len(plan.indices)),
        new_collation(settings, new_ring(settings)),
        seeds.samples if isolates else None,
    )
    counters = Stats().begin_epoch()
    calling = CallingThread(settings, None, seeds.workers, counters, isolates=isolates)
    try:
        if row is None:
            return calling.call(_batch_of, plan, pipeline)
        return calling.call(_sample_of, plan, pipeline, row)
    finally:
        calling.end()


def _sample_of(worker: Worker, plan: PlannedBatch, pipeline: Pipeline, row: int) -> Any:
    whole = pipeline.whole_batches
    ticket = Ticket(plan, 0, len(plan.indices)) if whole else Ticket(plan, row, row + 1)
    samples, error = worker.fetcher.fetch(ticket, Progress(), pipeline.seed, singly=not whole)
    if error is not None:
        raise error
    return samples[row if whole else 0]


def _batch_of(worker: Worker, plan: PlannedBatch, pipeline: Pipeline) -> Any:
    made = make_at_once(worker, plan, pipeline, Progress())
    if isinstance(made, tuple):
        return made[0]
    assert made is not None  # noqa: S101  # nobody has closed an epoch
    work_here(worker, made)
    if made.failure is not None:
        raise made.failure.error
    return made.take()


def _planned(settings: Settings, state: State, batch: int) -> tuple[PlannedBatch, EpochSeeds]:
    """Return the plan of a batch, and the seeds of its epoch."""
    position = Position.of(state["epoch"], state)
    (lane,) = position.lanes
    check, settings = lane.check, _with_own_sampler(settings, lane)
    share, seed = share_of(settings), settings.seed
    if seed is None and settings.generator is None:
        seed = state["draws"].get("agreed")
    rank = rank_with_own_streams(settings, share)
    restore = _order_states(settings)
    try:
        draws = Seeds().begin_epoch(seed, settings.generator, state)
        sampler_pass = open_sampler_pass(settings, draws, position, share, checked=rank is None)
        seeds = draws.seeds(kept=False, rank=rank or 0)
        assert sampler_pass is not None  # noqa: S101  # the dataset is not iterable
        planner = Planner(
            sampler_pass, lane, batched=settings.batched, whole_batches=settings.whole_batches
        )
        drawn = list(islice(iter(planner.draw, None), max(batch + 1, check[0] if check else 0)))
    finally:
        restore()
    if check is not None and (len(drawn) < check[0] or drawn[check[0] - 1].checkpoint != check[1]):
        raise ValueError(OTHER_ORDER)
    if not 0 <= batch < len(drawn):
        msg = f"epoch {position.epoch} has no batch {batch}"
        raise IndexError(msg)
    plan = drawn[batch]
    assert plan is not None  # noqa: S101  # for the type checker
    return plan, seeds


def _order_states(settings: Settings) -> Callable[[], None]:
    """Return what puts all that an order is drawn from back to its present state."""
    sampler = settings.index_sampler
    own, number = known(sampler), epoch_of(sampler)
    generators = (settings.generator, own and own.generator, _torch.default_generator())
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002  # the user's draw so
    restores: list[Callable[[], object]] = [
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, legacy),
        *(
            partial(restore_generator, each, encoded_state(state_of(each)))
            for each in generators
            if each is not None
        ),
    ]
    if number is not None:
        restores.append(partial(tell_again, sampler, number))

    def restore() -> None:
        for each in restores:
            each()

    return restore


def _with_own_sampler(settings: Settings, lane: Lane) -> Settings:
    """Return the settings with a copy of the user's sampler, told of the epoch of a lane."""
    if is_known(settings.index_sampler):
        return settings
    if lane.check is None and lane.first is None:  # nothing tells whether it is the same order
        raise ValueError(OTHER_ORDER)
    try:
        sampler = copy.deepcopy(settings.index_sampler, {id(settings.dataset): settings.dataset})
    except Exception as error:
        msg = "your sampler can't be copied, so that its order could be drawn once more"
        raise ValueError(msg) from error
    if lane.sampler_epoch is not None and epoch_of(sampler) != lane.sampler_epoch:
        tell_again(sampler, lane.sampler_epoch)
    which = "sampler" if settings.batch_sampler is None else "batch_sampler"
    return settings._replace(**{which: sampler})


def _state_of(session: Session, settings: Settings, epoch: int | None) -> State:
    """Return the state at the beginning of an epoch, from which it can be drawn again."""
    last = session.run.last
    if last is not None and epoch in (None, last.position.epoch):
        (before,) = last.position.lanes
        first = before.find_first() if before.first is None else before.first
        lane = Lane(first=first, sampler_epoch=before.sampler_epoch)
        if not is_known(settings.index_sampler):
            lane.check = before.check
        return last.state() | {"lanes": [lane.state()]}
    if epoch is None:
        msg = "no epoch was begun yet"
        raise ValueError(msg)
    if settings.seed is None or not is_known(settings.index_sampler):
        msg = (
            f"the order of epoch {epoch} is not known any more: the latest can be replayed; others "
            "where the loader has a seed= and no sampler of yours"
        )
        raise ValueError(msg)
    return {"epoch": epoch, "draws": {}, "begun": True, "lanes": [Lane().state()]}
