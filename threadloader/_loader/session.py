"""What a loader has running: its slots, its counters, its threads, and where its run is.

Made afresh in a forked child, where locks and threads are dead; never copied with the loader.
"""

from __future__ import annotations

import copy
import os
import weakref
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._batch.collate import Collation
from threadloader._batch.memory import PinnedMemory, StagingMemory
from threadloader._batch.parts import attributes
from threadloader._batch.ring import Ring
from threadloader._engine.kept import Kept
from threadloader._engine.skipped import SkippedSamples
from threadloader._lifetime import importing
from threadloader._loader.kept_workers import KeptWorkers
from threadloader._order.ranks import epoch_of
from threadloader._order.resume import (
    Lane,
    Position,
    is_stateful,
    restore,
    restore_whole,
    snapshot,
    snapshot_between,
)
from threadloader._order.sampler_pass import checkpoint_between, order_between
from threadloader._order.seeds import encoded_state, state_of
from threadloader._order.tickets import TicketSize
from threadloader._report.interval import interval_of
from threadloader._report.stats import Stats, no_cache
from threadloader._threads.tuner import Tuner
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from threadloader._batch.layout import Layout
    from threadloader._batch.memory import BatchMemory
    from threadloader._batch.ring import RingStatistics
    from threadloader._engine.epoch import Epoch
    from threadloader._engine.settings import Settings
    from threadloader._engine.skipped import Skipped
    from threadloader._engine.workers import Workers
    from threadloader._loader.agreement import Agreement
    from threadloader._loader.state import State
    from threadloader._order.samplers import KnownOrder
    from threadloader._order.seeds import EpochDraws, Seeds
    from threadloader._order.share import Share
    from threadloader._report.interval import Interval
    from threadloader._report.stats import Sums
    from threadloader.datasets._cached.cached import CacheUse


class LastEpoch(NamedTuple):
    """What a state says of the epoch that was begun last.  Nothing here keeps that alive."""

    position: Position
    draws: EpochDraws
    order: KnownOrder | None  # of a known sampler
    dataset: Any  # the state of an iterable dataset at the beginning; None if it has none

    def state(self) -> dict[str, Any]:
        """Return the parts of a loader's state that follow from the epoch."""
        state = {"epoch": self.position.epoch, "begun": True, "draws": self.draws.state()}
        order = None if self.order is None else self.order.state()
        if order is not None:
            state["order"] = dict(order)
        return state | self.position.state()


class RunState(NamedTuple):
    """Replaced whole whenever an epoch begins, and put back if that epoch does not come about."""

    seeds: Seeds  # of the next epoch
    loaded: State | None = None  # the next epoch continues from it
    last: LastEpoch | None = None

    @property
    def saved(self) -> State | None:
        """The state that the next epoch continues from; None for none.

        It was loaded, or the last epoch was to continue from it and could not.
        """
        if self.loaded is not None or self.last is None:
            return self.loaded
        position = self.last.position
        return position.saved if position.refused else None

    def advanced(self) -> RunState:
        """Return what the epoch after the next finds; the next one draws its seeds in there."""
        return RunState(copy.copy(self.seeds), None, self.last)

    def carried_over(self) -> RunState:
        """Return what a forked process, or a copy of the loader, begins with."""
        return self._replace(seeds=copy.copy(self.seeds), last=None)


class Advancing(NamedTuple):
    """An epoch that is about to begin: a state saved meanwhile is that of before."""

    run: RunState
    generator: Any  # the state of the user's, before anything was drawn; None for none


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of a loader, as of the call."""

    workers: int  # threads of an epoch, or as many as run; 0 is the calling thread
    running: int  # of them that may run samples at once; found by trying, see docs/workers.md
    window: int  # batches that are planned ahead at the most, while they are as large as now
    planned: int  # batches that are planned now, and not delivered
    done: int  # of them that are done
    totals: Sums  # all epochs together; ``collate_seconds`` with writing
    epoch: Interval  # since the last ``iter()``
    recent: Interval  # the last five seconds or so of it, or the last batches if those are slower
    epochs: int  # that were begun
    cache: CacheUse | None  # of the `Cached` in the dataset; None where there is none
    slots: RingStatistics
    skipped_count: int  # samples left out
    skipped: tuple[Skipped, ...]  # samples left out: the latest 1,000; `skipped_count` is of all

    def __repr__(self) -> str:
        """Return the figures that one looks at first, in four lines."""
        sums, s = self.totals, "s" * (self.epochs != 1)
        rate = "{0.samples_per_second:,.1f} samples/s, loading {0.loading_share:.0%}"
        return (
            f"in all      {sums.samples:,} samples, {sums.batches:,} batches, "
            f"{self.epochs:,} epoch{s}, {sums.seconds:,.1f} s\n"
            f"last epoch  {rate.format(self.epoch)}\nof late     {rate.format(self.recent)}\n"
            f"now         {self.running} of {self.workers} threads, {self.planned} batches planned "
            f"of {self.window}, {self.done} done; {self.skipped_count:,} samples left out"
        )


class Session:
    """What lasts from one epoch of a loader to the next; see `begin`.

    Args:
        settings: What the loader is set up for, to begin with.
        run: Where its run is.

    Invariants, whenever ``planning`` is not held:
        1. The last epoch of ``run`` is the one that the kept threads and the seeds are of.

    Threads:
        agreement_of, renew, restore_dataset, next_position, lanes_between, advance, add, put_back:
            compatible, with ``planning`` held.
        load, state: consumer.
        close, statistics: shared.
    """

    def __init__(self, settings: Settings, run: RunState) -> None:
        # Held while an epoch is planned, so that threads that call `iter` at once take turns: what
        # an epoch draws, from the generator or a sampler, comes in one piece, or no state could
        # reproduce it, and whoever comes first makes the workers that are kept for all.
        #
        # It is the only lock that is held over user code, as that is what takes turns: the sampler,
        # copying the dataset, its `load_state_dict`.  It is re-entrant for such code, and for
        # finalizers, that call `iter` of this loader.  Under it nobody starts a thread, waits for
        # one, or gives it work: `Epoch.start` does that, after it.  So the lock is free while a
        # thread starts, which may run a finalizer that calls `iter`; and a worker that takes it (a
        # sample may load from its own loader) waits only for user code of another thread.  So does
        # a finalizer in another thread: if it interrupted a lock that such code takes, both would
        # stop.
        self.planning = RLock()
        # All below but what is only read in between: guarded by planning.
        self._pid = os.getpid()
        self.run = run
        self.advancing: Advancing | None = None
        self.window = settings.window
        self.kept = Kept(
            stats=Stats(_use_of_cache(settings.dataset)),
            skipped=SkippedSamples(),
            tuner=Tuner(),
            ticket_size=TicketSize(settings.chunk_size),
            collation=new_collation(settings, new_ring(settings)),
        )
        self._memory = settings.device, settings.pinned
        _mark_stages_if_asked()
        with importing():
            import_module("numpy.random")  # which `np.random` would do, and takes a while
        self._agreement: Agreement | None = None  # made where several ranks load
        self.kept_workers = KeptWorkers(self.kept)
        self._epoch: Callable[[], Epoch | None] = lambda: None  # that began last, if it lives
        self.seen_number: int | None = None  # of the last epoch, in the user's sampler

    @property
    def latest_run(self) -> RunState:
        """Where the run is, with the epoch that is about to begin."""
        return self.run if self.advancing is None else self.advancing.run

    @property
    def is_here(self) -> bool:
        """Whether it was made in this process."""
        return self._pid == os.getpid()

    def agreement_of(self, share: Share | None) -> Agreement | None:
        """Return what the ranks agree on; None where one process loads all.

        Args:
            share: Of this rank.
        """
        if share is None or share.world_size == 1:
            return None
        if self._agreement is None:
            with importing():
                from threadloader._loader.agreement import Agreement  # noqa: PLC0415  # for ranks only

            self._agreement = Agreement()
        self._agreement.share = share
        return self._agreement

    def renew(self, settings: Settings) -> None:
        """Make the ring and the collation anew, if these settings need others."""
        self.window = settings.window
        memory = settings.device, settings.pinned
        moved, before = self._memory != memory, self.kept.collation
        if moved or not before.is_made_of(settings.collate_fn, settings.output):
            ring = new_ring(settings) if moved else before.ring
            self._memory, self.kept.collation = memory, new_collation(settings, ring)

    def restore_dataset(self, settings: Settings, saved: State | None) -> Any:
        """Give the user's dataset its state in ``saved``, before anything is copied or started.

        Returns:
            The state of an iterable dataset at the beginning of the epoch; None if it has none.
        """
        if saved is None:  # a map-style one is asked for when somebody wants the loader's
            return self._dataset_between(settings) if settings.iterable else None
        state = saved.get("dataset")
        if state is not None:
            give_back = restore_whole if settings.iterable else restore
            give_back("dataset", settings.dataset, state)
        return state

    def next_position(self, settings: Settings, epoch: int, saved: State | None) -> Position:
        """Return where the next epoch begins.

        Args:
            settings: Of the loader.
            epoch: Its number, if no state was saved.
            saved: The state to continue from; None for the beginning.

        Raises:
            StateError: An iterable dataset has another order than in that state.
        """
        if saved is not None:
            position = Position.of(saved["epoch"], saved)
        else:
            lanes = self.lanes_between(settings)
            position = Position(epoch, lanes, turn=len(lanes) - 1)
        if not (settings.iterable or position.lanes):
            position.lanes.append(Lane())
        position.order = _dataset_order(settings.dataset, saved)
        position.broken_off = self.kept_workers.keeps and not position.lanes
        last = self.run.last
        position.before = None if last is None else last.position.batches
        return position

    def advance(self, settings: Settings) -> Seeds:
        """Let an epoch draw its seeds; the run goes on to it when it is there, see `add`.

        An epoch that the user's code begins meanwhile is the one after it.
        """
        run, given = self.latest_run.advanced(), settings.generator
        drawn = given is not None and settings.seed is None
        self.advancing = Advancing(run, state_of(given) if drawn else None)
        return run.seeds

    def add(self, epoch: Epoch, last: LastEpoch) -> None:
        """Note an epoch that is about to begin, to be closed with the loader.

        Args:
            epoch: The iterator.
            last: What remains of it.
        """
        self.kept_workers.add(epoch)
        self._epoch = weakref.ref(epoch)
        self.run, self.advancing = self.latest_run._replace(last=last), None

    def put_back(self, run: RunState, workers: Workers | None) -> None:
        """Forget the epoch that was begun last, which did not come about.  Idempotent.

        Args:
            run: Where the run was before.
            workers: The workers that were kept then.
        """
        self.run, self.advancing = run, None
        if self.kept_workers.workers is not workers:
            self.kept_workers.dismiss()

    def load(self, state: State | None) -> None:
        """Let the next epoch continue from a state, with new threads and replicas.

        Args:
            state: As `ThreadLoader.state_dict` returned it; None for the beginning.
        """
        self.kept_workers.dismiss()
        self.kept_workers.cancel()
        with self.planning:  # another thread may be about to begin an epoch
            self.run = self.run._replace(loaded=state, last=None)

    def close(self) -> None:
        """End all epochs and threads, after running samples, and keep no memory of batches."""
        self.kept_workers.close()
        self.kept.collation.ring.clear()

    def state(self, settings: Settings) -> dict[str, Any]:
        """Return the parts of a state that follow from the current epoch, or from the next.

        Args:
            settings: Of the loader.
        """
        last = self.run.last
        if last is None or last.position.finished:
            seeds = self.run.seeds
            kept = settings.seed is None and self.kept_workers.keeps
            state: dict[str, Any] = {
                "epoch": seeds.epoch,
                "begun": False,
                "draws": seeds.state(settings.generator, kept=kept),
                "lanes": [lane.state() for lane in self.lanes_between(settings)],
            }
            if self.advancing is not None and self.advancing.generator is not None:
                state["draws"]["generator"] = encoded_state(self.advancing.generator)
            order = order_between(settings.index_sampler, settings.generator)
            if order is not None:
                state["order"] = order
            dataset = self._dataset_between(settings)
        else:
            state = last.state()
            if not settings.iterable:
                dataset = self._dataset_between(settings)
            else:  # where each replica has its own state, that of the dataset adds nothing
                has_own = all("mark" in lane for lane in state["lanes"])
                dataset = None if has_own else copy.deepcopy(last.dataset)
        return state if dataset is None else state | {"dataset": dataset}

    def statistics(self, workers: int) -> Statistics:
        """Return what was counted so far.

        Args:
            workers: Threads that the user chose, or those of the beginning.
        """
        stats, tuner, collation = self.kept.stats, self.kept.tuner, self.kept.collation
        begun = workers and tuner.limits.most  # not before the first epoch
        running = tuner.number if begun else workers
        last_epoch = self._epoch()
        _, planned, done = (0, 0, 0) if last_epoch is None else last_epoch.moment()
        skipped_count, skipped = self.kept.skipped.count_and_latest()
        return Statistics(
            workers=max(workers, running),
            running=running,
            window=collation.depth.most(self.window),
            planned=planned,
            done=done,
            totals=stats.total(),
            epoch=interval_of(*stats.epoch(), running),
            recent=interval_of(*stats.recent(), running),
            epochs=stats.epochs,
            cache=stats.cache_use(),
            slots=collation.ring.statistics(),
            skipped=skipped,
            skipped_count=skipped_count,
        )

    def _dataset_between(self, settings: Settings) -> Any:
        """Return the state of the user's dataset between two epochs; None if it has none.

        Nor has an iterable of which replicas were read: these have a state each.
        """
        iterable = settings.iterable
        if not is_stateful(settings.dataset) or (iterable and self.run.last is not None):
            return None
        return (snapshot_between if iterable else snapshot)(settings.dataset)

    def lanes_between(self, settings: Settings) -> list[Lane]:
        """Return the lanes of the next epoch, with the states of the user's objects before it."""
        last = self.run.last
        finished = last is not None and last.position.finished
        if not settings.iterable:
            before = last.position.lanes[0].checkpoint if last is not None and finished else None
            checkpoint = checkpoint_between(
                settings.index_sampler, before, between_passes=finished or last is None
            )
            epoch = epoch_of(settings.index_sampler)
            return [Lane(first=checkpoint, sampler_epoch=epoch)]
        if last is None or not finished:
            return []
        continues = settings.shares_dataset or self.kept_workers.keeps
        return last.position.lanes_after() if continues else []


def _mark_stages_if_asked() -> None:
    """Mark what loaders do by NVTX ranges, if the environment asks for them."""
    if os.environ.get("THREADLOADER_NVTX", "0") not in {"", "0"}:
        from threadloader._report.ranges import mark_with_nvtx  # noqa: PLC0415  # rarely used

        mark_with_nvtx()


def _use_of_cache(dataset: Any) -> Callable[[], CacheUse | None]:
    """Return what tells the use of the `Cached` in a dataset, by its attributes ``dataset``."""
    for _ in range(10):
        if hasattr(type(dataset), "cache_use"):
            return dataset.cache_use  # type: ignore[no-any-return]
        inner = (part for name, part in attributes(dataset) if name == "dataset")
        dataset = next(inner, None)
    return no_cache


def new_ring(settings: Settings) -> Ring:
    """Return a ring for the memory that these settings need."""
    if settings.device is None:
        return Ring(settings.kept_batches)
    return Ring(settings.kept_batches, settings.device.allocate)


def new_collation(settings: Settings, ring: Ring) -> Collation:
    """Return what makes batches of samples, in slots of a ring."""
    memory: Callable[[Layout, int], BatchMemory] | None = None
    pin = _torch.pinned if settings.pinned else None
    if settings.device is not None:
        memory, pin = partial(StagingMemory, ring), settings.device.pin
    elif settings.pinned and settings.output == "torch":
        memory = PinnedMemory
    return Collation(
        settings.collate_fn,
        output=settings.output,
        batched=settings.batched,
        ring=ring,
        memory=memory,
        pin=pin,
    )


def _dataset_order(dataset: Any, saved: State | None) -> Mapping[str, Any] | None:
    """Return the ``order_identity()`` of an iterable dataset; None if it has none.

    Raises:
        StateError: It is not what it was when the state was saved, in the middle of the epoch.
    """
    identify = getattr(dataset, "order_identity", None)
    order: Mapping[str, Any] | None = None if identify is None else identify()
    before = None if saved is None or not saved["begun"] else saved.get("dataset's order")
    if before is not None and order is not None and before != order:
        msg = (
            f"the dataset's order followed from {before} when the state was saved, and now "
            f"follows from {order}"
        )
        if before.get("epoch") != order.get("epoch"):
            msg += ": call its set_epoch() before iter()"
        raise StateError(msg)
    return order
