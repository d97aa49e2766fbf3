"""The batches of an iterable dataset: one of each replica in turn.

So the order of batches depends on the data alone, not on which replica is fast.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader._engine.iterable_reader import IterableBatch, IterableReader
from threadloader._order.resume import Lane
from threadloader._order.share import Part, named_ranks
from threadloader._threads.pool import SingleJob
from threadloader.errors import EmptyReplicaWarning, StateError, warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._engine.copies import Worker
    from threadloader._engine.open_batch import OpenBatch, Pipeline
    from threadloader._engine.progress import Progress
    from threadloader._engine.settings import Settings
    from threadloader._engine.workers import CallingThread, Workers
    from threadloader._order.resume import Position
    from threadloader._order.seeds import EpochSeeds
    from threadloader._order.share import Share
    from threadloader._threads.pool import Pool


class IterableFeed:
    """Plans the batches of an iterable dataset, of each replica up to its end.

    In order the replicas take turns.  Out of order the next batch is one of the replica that has
    the fewest in flight, so that those of a slow replica never fill the window.

    Args:
        readers: One for each replica.
        pipeline: What workers need.
        pools: One thread for each reader; empty for the calling thread.
        hand_on: Takes a batch that was read; None to have it collated by the thread that read it.
        settings: Of the loader.
        position: Where the epoch is; with a lane for each reader.
        share: Of the rank; None where the dataset shares itself out.
    """

    eager = True

    def __init__(
        self,
        readers: list[IterableReader],
        pipeline: Pipeline,
        pools: list[Pool[Worker]],
        hand_on: Callable[[OpenBatch], None] | None,
        settings: Settings,
        position: Position,
        *,
        share: Share | None = None,
    ) -> None:
        first = position.turn + 1  # the one after that of the batch delivered last
        self._turns = deque(readers[first:] + readers[:first])
        self._used_up = False  # whether a replica is a generator that had ended before
        self._position = position
        self._delivered_ahead = [set(lane.ahead) for lane in position.lanes]
        self._numbers = [lane.batches for lane in position.lanes]  # of each reader's next batch
        self._pipeline = pipeline
        self._pools = pools
        self._hand_on = hand_on
        self._dataset = settings.dataset
        self._reported_length = settings.reported_length
        self._in_order = settings.in_order
        self._in_flight = [0] * len(readers)  # batches of each reader
        self._returned = self._planned = position.batches
        self._turn_before: int | None = None  # before the batch that was counted last
        self._share = share
        self._readers = readers

    def start(self, calling: CallingThread) -> None:
        """Ask the dataset for its iterator, as torch does without workers; see `SamplerFeed`."""
        if not self._pools:
            for reader in self._readers:
                calling.call(_start, reader)

    @property
    def least(self) -> int:
        """Return the number of replicas: they may wait for one another; see `SamplerFeed`."""
        return len(self._turns) if self._pools else 0

    def draw_ahead(self, batches: int) -> None:
        """Do nothing: there is no sampler; see `SamplerFeed`."""

    def plan(self, progress: Progress) -> OpenBatch | None:
        """Plan the next batch; see `SamplerFeed`."""
        turns = self._turns  # another thread may end the feed meanwhile
        if not turns:
            return None
        if not self._in_order:
            fewest = min(turns, key=lambda reader: self._in_flight[reader.number])
            turns.rotate(-turns.index(fewest))
        reader = turns[0]
        self._in_flight[reader.number] += 1
        number = self._next_number(reader.number)
        # What a collate function draws must follow from what is delivered alone.
        sequence = number if len(self._numbers) == 1 else self._planned
        batch = IterableBatch(sequence, reader, number, self._pipeline, progress)
        turns.rotate(-1)
        self._planned += 1
        return batch

    def give(self, batch: OpenBatch) -> None:
        """Have a batch read; see `SamplerFeed`."""
        if self._pools and isinstance(batch, IterableBatch):
            batch.given = True
            job = partial(batch.make, hand_on=self._hand_on)
            self._pools[batch.reader.number].put(SingleJob(job))

    def done(self, batch: OpenBatch) -> None:
        """Plan no more of a replica that has ended; see `SamplerFeed`."""
        if not isinstance(batch, IterableBatch):
            return
        number = batch.reader.number
        self._in_flight[number] -= 1
        if not batch.exhausted:
            return
        self._used_up |= batch.reader.used_up
        self._position.lanes[number].ends(batch.number, batch.checkpoint)
        turns = self._turns
        if batch.reader in turns:
            turns.remove(batch.reader)

    def count(self, batch: IterableBatch | None, *, returned: bool) -> None:
        """Count a batch in its replica's lane, and whose turn it was; see `SamplerFeed`."""
        if batch is None or batch.exhausted:
            return
        if returned:
            self._note_returned()
        self._turn_before = self._position.turn
        self._position.turn = replica = batch.reader.number
        self._position.lanes[replica].delivered(batch.number, batch.checkpoint)

    def take_back(self, batch: IterableBatch | None) -> None:
        """Count a batch no longer; see `SamplerFeed`."""
        if batch is None:
            return
        self._position.lanes[batch.reader.number].take_back(batch.number)
        if self._turn_before is not None:
            self._position.turn, self._turn_before = self._turn_before, None

    def end(self, *, finished: bool = False) -> None:
        """Warn of what gave nothing; see `SamplerFeed`."""
        # An iterator that is kept keeps no file of the dataset open.
        self._turns, self._readers = deque(), []
        if not finished:
            return
        position = self._position
        position.finished = True
        self._warn_of_replicas()
        if position.batches or position.restored or position.before == 0:
            return
        if self._used_up or (position.before and hasattr(self._dataset, "__next__")):
            warn_user(used_up(self._dataset))
        elif self._share is not None and self._is_empty(self._share):
            ranks = [self._share.rank]
            warn_user(empty_ranks(ranks, self._share.world_size), EmptyReplicaWarning)

    def _note_returned(self) -> None:
        """Count a batch that is returned, and warn if there are more than ``len(loader)`` said."""
        self._returned += 1
        length = self._reported_length
        if length is None or self._returned <= length:
            return
        msg = (
            f"Length of IterableDataset {self._dataset} was reported to be {length}"
            f"(when accessing len(dataloader)), but {self._returned} samples have been fetched. "
        )
        if self._pools:
            msg += (
                "For multiprocessing data-loading, this could be caused by not properly "
                "configuring the IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                "for examples."
            )
        warn_user(msg, UserWarning)

    def _warn_of_replicas(self) -> None:
        """Warn of replicas that gave nothing, each of which has a thread for nothing.

        The data is probably not shared out as it was meant to be.  If no other replica has given a
        second batch, there is too little data to say so.
        """
        totals = [lane.total for lane in self._position.lanes]
        empty = [number for number, total in enumerate(totals) if total == 0]
        known = not (self._position.restored or None in totals)
        if known and empty and max(totals) > 1:  # type: ignore[operator,type-var]  # none is None
            warn_user(empty_replicas(empty, len(totals)), EmptyReplicaWarning)

    def _is_empty(self, share: Share) -> bool:
        """Whether no replica had a batch; they may have been left out, too, for other ranks."""
        return share.world_size > 1 and all(lane.total == 0 for lane in self._position.lanes)

    def _next_number(self, replica: int) -> int:
        """Return the number of a replica's next batch that was not delivered already."""
        number = self._numbers[replica]
        while number in self._delivered_ahead[replica]:
            number += 1
        self._numbers[replica] = number + 1
        return number


def _start(_: Worker, reader: IterableReader) -> None:
    reader.start()


def open_iterable_feed(
    settings: Settings,
    pipeline: Pipeline,
    workers: Workers | None,
    seeds: EpochSeeds,
    position: Position,
    share: Share | None,
) -> IterableFeed:
    """Return the feed of one pass over an iterable dataset; see `open_feed`."""
    pools = [] if workers is None else workers.pools
    datasets = [settings.dataset]
    if workers is not None:
        datasets = [replica.dataset for replica in workers.replicas]
    # With a transform one thread reads, and hands on to the others, which apply it.
    hand_on = pools[1].put if settings.transform is not None and len(pools) > 1 else None
    reading_pools = pools if hand_on is None else pools[:1]
    _fit_lanes(position, max(1, len(reading_pools)))
    if position.restored:
        _warn_of_reading_again(position)
    readers = [
        IterableReader(
            number,
            datasets[number],
            settings,
            position,
            seeds.common,
            _part(share, number, position),
        )
        for number in range(len(position.lanes))
    ]
    return IterableFeed(readers, pipeline, reading_pools, hand_on, settings, position, share=share)


def _part(share: Share | None, replica: int, position: Position) -> Part | None:
    """Return what a replica's dataset is asked for."""
    if share is None:
        return None
    replicas = len(position.lanes)
    return Part.of(share.rank, share.world_size, replica, replicas, position.epoch)


def _fit_lanes(position: Position, replicas: int) -> None:
    """Give a new position its lanes; refuse one that was saved with others."""
    if not position.lanes:
        position.lanes.extend(Lane() for _ in range(replicas))
        position.turn = replicas - 1
    if len(position.lanes) != replicas:
        msg = (
            f"the state is that of {len(position.lanes)} replicas of an iterable dataset, and "
            f"there are {replicas} now: it needs the same number of workers"
        )
        raise StateError(msg)


def _warn_of_reading_again(position: Position) -> None:
    """Warn of an iterable that has to be read from its beginning."""
    batches = sum(
        lane.batches for lane in position.lanes if not lane.ended and lane.checkpoint is None
    )
    if batches:
        msg = (
            "the state holds none of the iterable dataset, so what was delivered is read again, "
            f"to be left out (batches: {batches}); state_dict() and load_state_dict() on the "
            "dataset or its iterator save that time"
        )
        warn_user(msg)


MOST_NAMED = 8  # workers


def empty_replicas(empty: list[int], replicas: int) -> str:
    """Return the text of a warning of replicas without samples."""
    named = ", ".join(map(str, empty[:MOST_NAMED])) + ", ..." * (len(empty) > MOST_NAMED)
    workers = "worker" if len(empty) == 1 else "workers"
    return (
        "replicas of the iterable dataset gave nothing to load while others did: "
        f"{len(empty)} of {replicas} ({workers} {named}).  Each should give its own share (see "
        "get_worker_info); where there are fewer shards than workers, use fewer workers, or let "
        "one thread read and all others apply transform=f"
    )


def used_up(dataset: Any) -> str:
    """Return the text of a warning of an iterator that was read to its end before."""
    return (
        f"nothing was left to load: the {type(dataset).__name__} was read before, and an iterator "
        "can be read once. Give the loader an object whose __iter__ starts afresh, or make a new "
        "iterator and loader for each epoch"
    )


def empty_ranks(ranks: Sequence[int], world_size: int) -> str:
    """Return the text of a warning of ranks that have no batch in an epoch.

    Args:
        ranks: These ranks.
        world_size: How many there are in all.
    """
    return (
        f"{named_ranks(ranks)} of {world_size} had no batch in this epoch: the dataset's "
        "shard() gave nothing there, or less than a batch.  Where files are shared out, have "
        "several for each worker of each rank"
    )
