"""What a loader has running: its slots, its counters, its threads, and the epoch begun last.

Made afresh in a forked child, where locks and threads are dead; never copied with the loader.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._batch.collate import Collation
from threadloader._batch.memory import PinnedMemory, StagingMemory
from threadloader._batch.ring import Ring
from threadloader._epoch.epoch import Epoch
from threadloader._epoch.skipped import SkippedSamples, Tally
from threadloader._order.sampler_pass import mark_between, order_between
from threadloader._resume.position import Lane, Position
from threadloader._resume.stateful import (
    is_stateful,
    restore,
    restore_whole,
    snapshot,
    snapshot_between,
)
from threadloader._session.kept_workers import KeptWorkers
from threadloader._session.state import Begun
from threadloader._work.counters import Stats
from threadloader._work.open_batch import Worker
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from threadloader._batch.memory import BatchMemory
    from threadloader._batch.ring import RingStatistics
    from threadloader._epoch.skipped import Skipped
    from threadloader._layout.layout import Layout
    from threadloader._rng.seeds import Seeds
    from threadloader._session.opening import Opening
    from threadloader._work.counters import Totals
    from threadloader._work.workers import Workers

    Before = tuple[Begun | None, Any, Workers | None]

__all__ = ["Session", "Statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a loader has done so far, all epochs together; stale as soon as returned."""

    workers: int  # threads of an epoch; 0 is the calling thread
    window: int  # batches that may be planned ahead at the most
    totals: Totals
    slots: RingStatistics
    skipped: tuple[Skipped, ...]  # samples left out: the latest 1,000; `skipped_count` is of all
    skipped_count: int


class Session:
    """What one loader has running.

    Args:
        name: Prefix of the threads' names.
        opening: What the loader is set up for, to begin with.

    Invariants, whenever ``planning`` is not held:
        1. The epoch begun last is the one that the kept threads and the seeds are of.

    Threads:
        begin, undo: compatible, with ``planning`` held.
        forget, state: consumer.
    """

    def __init__(self, name: str, opening: Opening) -> None:
        # Held while an epoch is planned, so that threads that call `iter` at once take turns: what
        # an epoch draws, from the generator or a sampler, lies between what others draw, or no
        # state could tell it, and who comes first makes the workers that are kept for all.
        #
        # The one lock that is held over user code, as that is what takes turns: the sampler, what
        # copies the dataset, its `load_state_dict`.  Re-entrant for such code, and finalizers,
        # that call `iter` of this loader.  Under it nobody starts a thread, waits for one, or
        # gives it work: all that is `Epoch.start`, after it.  So it is free while a thread starts,
        # which may run a finalizer that calls `iter`, and a worker that asks for it (a sample may
        # load from its own loader) waits only for user code of another thread.  So does a finalizer
        # in another thread: a lock that it interrupted, and that such code takes, would stop both.
        self.planning = RLock()
        # All below but what is only read in between: guarded by planning.
        self._pid = os.getpid()
        self._name = name
        self.ring = self._new_ring(opening)
        self._memory = opening.device, opening.pinned
        self.stats = Stats()
        self.kept_workers = KeptWorkers(name, self.stats)
        self.window = opening.window
        self._skipped = SkippedSamples()
        self._inline = Worker(0, "the calling thread", self.stats.open())
        self._collation = self._new_collation(opening, self.ring)
        self._begun: Begun | None = None
        self._dataset: Any = None  # the state of the user's, when that was begun

    @property
    def is_here(self) -> bool:
        """Whether this process is the one where it runs."""
        return self._pid == os.getpid()

    def begin(
        self,
        opening: Opening,
        seeds: Seeds,
        saved: Mapping[str, Any] | None,
        finish: Callable[[Any], Any] | None,
    ) -> Epoch:
        """Plan an epoch, whose threads `Epoch.start` lets begin.

        Args:
            opening: What is loaded, and by whom.
            seeds: Of the loader.
            saved: Its state, to go on from; None for the beginning.
            finish: Called with each batch; None for nothing.

        Raises:
            StateError: The state is not of this sampler, dataset, generator or number of replicas.
        """
        self._renew(opening)
        # Before there are workers, whose first use of the device would be in its place.
        device = None if opening.device is None else opening.device.here()
        dataset = self._dataset_between(opening) if saved is None else saved.get("dataset")
        if saved is not None and dataset is not None:
            # First of all, before anything is copied or started.
            give_back = restore_whole if opening.streams else restore
            give_back("dataset", opening.dataset, dataset)
        lanes = self._lanes_between(opening) if saved is None else []
        draws = seeds.begin_epoch(opening.seed, opening.generator, saved)
        shared_seed = draws.shared_seed(opening.dataset)
        position = _position(seeds.epoch - 1, lanes, saved, streams=opening.streams)
        position.order = _order_of(opening.dataset, saved)
        position.before = None if self._begun is None else self._begun.position.batches
        sampler_pass = opening.sampler_pass(draws, position)
        kept = self.kept_workers.kept(opening)
        position.broken_off = kept is not None and not position.lanes
        epoch_seeds = draws.seeds(kept=kept is not None)
        begun = Begun(position, draws, None if sampler_pass is None else sampler_pass.order)
        staff, feed, epoch = kept, None, None
        try:
            if kept is None and opening.workers:
                # As torch does a second time with new workers.  Its second start of the sampler
                # would make the order of one that draws at once depend on there being workers.
                draws.draw_again(opening.dataset)
                staff = self.kept_workers.make(opening, epoch_seeds.workers)
            prepare = None
            if shared_seed is not None:
                prepare = opening.prepare_pipes(staff, shared_seed, fresh=kept is None)
            feed = opening.feed(sampler_pass, staff, epoch_seeds, position, self._collation)
            epoch = Epoch(
                feed,
                self._collation,
                Tally(self._skipped, position, opening.max_skipped),
                self.window,
                staff=staff,
                owns_staff=not opening.persistent,
                inline=self._inline,
                stats=self.stats,
                length=partial(len, opening.index_sampler),
                timeout=opening.timeout,
                in_order=opening.in_order,
                finish=finish,
                device=device,
                ahead=opening.ahead,
                name=self._name,
                prepare=prepare,
            )
            self.kept_workers.begun(epoch)
        except BaseException as error:  # Ctrl-C, say
            if epoch is not None:
                epoch.cancel()
            if feed is not None:
                feed.end()
            shared = kept is not None and not opening.replicates
            self.kept_workers.give_up(error, staff, shared=shared)
            raise
        self._begun, self._dataset = begun, dataset
        return epoch

    @property
    def before(self) -> Before:
        """What `undo` is called with, if an epoch that is begun now does not come about."""
        return self._begun, self._dataset, self.kept_workers.staff

    def undo(self, before: Before) -> None:
        """Let the epoch that was begun last, and did not come about, be none.  Idempotent."""
        self._begun, self._dataset, staff = before
        if self.kept_workers.staff is not staff:
            self.kept_workers.dismiss()

    @property
    def refused(self) -> Mapping[str, Any] | None:
        """The state that the epoch begun last could not go on from; None for none."""
        position = None if self._begun is None else self._begun.position
        return position.saved if position is not None and position.refused else None

    def forget(self) -> None:
        """Begin the next epoch with new threads and replicas, as if there were none before."""
        self.kept_workers.dismiss()
        self.kept_workers.cancel()
        self._begun = None

    def close(self) -> None:
        """End all epochs and threads, after running samples, and keep no memory of batches."""
        self.kept_workers.close()
        self.ring.clear()

    def state(self, opening: Opening, seeds: Seeds) -> dict[str, Any]:
        """Return the state of the epoch that is going on, or of the next.

        Args:
            opening: What the next epoch would load.
            seeds: Of the loader.
        """
        begun = self._begun
        if begun is None or begun.position.finished:
            kept = opening.seed is None and self.kept_workers.keeps
            state: dict[str, Any] = {
                "epoch": seeds.epoch,
                "begun": False,
                "draws": seeds.state(opening.generator, kept=kept),
                "lanes": [lane.state() for lane in self._lanes_between(opening)],
            }
            order = order_between(opening.index_sampler, opening.generator)
            if order is not None:
                state["order"] = order
            dataset = self._dataset_between(opening)
        else:
            state = begun.state()
            dataset = self._dataset if opening.streams else self._dataset_between(opening)
            # Where each replica tells its own state, that of the dataset before says nothing more.
            if opening.streams and all("mark" in lane for lane in state["lanes"]):
                dataset = None
        return state if dataset is None else state | {"dataset": copy.deepcopy(dataset)}

    def _dataset_between(self, opening: Opening) -> Any:
        """Return the state of the user's dataset, as replicas find it; None if it has none.

        Not of one that replicas went on with: that is theirs to tell.
        """
        if not is_stateful(opening.dataset) or (opening.streams and self._begun is not None):
            return None
        return (snapshot_between if opening.streams else snapshot)(opening.dataset)

    def statistics(self, workers: int) -> Statistics:
        """Return what was counted so far."""
        skipped_count, skipped = self._skipped.told()
        return Statistics(
            workers=workers,
            window=self.window.most,
            totals=self.stats.total(),
            slots=self.ring.statistics(),
            skipped=skipped,
            skipped_count=skipped_count,
        )

    def _lanes_between(self, opening: Opening) -> list[Lane]:
        """Return the lanes of the next epoch: what the user's objects are like between two."""
        begun = self._begun
        finished = begun is not None and begun.position.finished
        if not opening.streams:
            last = begun.position.lanes[0].mark if begun is not None and finished else None
            mark = mark_between(opening.index_sampler, last, whole=finished or begun is None)
            return [Lane(first=mark)]
        if begun is None or not finished:
            return []
        goes_on = opening.shares or self.kept_workers.keeps
        return begun.position.lanes_after() if goes_on else []

    def _renew(self, opening: Opening) -> None:
        """Make anew what the loader's attributes have changed since it was made."""
        self.window = opening.window
        memory = opening.device, opening.pinned
        moved = self._memory != memory
        ring = self._new_ring(opening) if moved else self.ring
        if moved or not self._collation.is_made_of(opening.collate_fn, opening.output):
            collation = self._new_collation(opening, ring)
            self.ring, self._memory, self._collation = ring, memory, collation

    def _new_ring(self, opening: Opening) -> Ring:
        # A consumer holds two batches for a moment: its last, and the one it is just given.
        keep = opening.window.most + 2
        if opening.device is None:
            return Ring(keep)
        return Ring(keep + opening.ahead, opening.device.allocate)

    @staticmethod
    def _new_collation(opening: Opening, ring: Ring) -> Collation:
        memory: Callable[[Layout, int], BatchMemory] | None = None
        pin = _torch.pinned if opening.pinned else None
        if opening.device is not None:
            memory, pin = partial(StagingMemory, ring), opening.device.pin
        elif opening.pinned and opening.output == "torch":
            memory = PinnedMemory
        return Collation(
            opening.collate_fn,
            output=opening.output,
            batched=opening.batched,
            ring=ring,
            memory=memory,
            pin=pin,
        )


def _order_of(dataset: Any, saved: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return what decides the order of an iterable dataset that tells by ``order_identity()``.

    Raises:
        StateError: It is not what it was in the middle of the epoch.
    """
    tells = getattr(dataset, "order_identity", None)
    order: Mapping[str, Any] | None = None if tells is None else tells()
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


def _position(
    epoch: int, lanes: list[Lane], saved: Mapping[str, Any] | None, *, streams: bool
) -> Position:
    """Return where an epoch begins."""
    position = Position(epoch, lanes, turn=len(lanes) - 1)
    if saved is not None:
        position = Position.of(epoch, saved)
    if not (streams or position.lanes):
        position.lanes.append(Lane())
    return position
