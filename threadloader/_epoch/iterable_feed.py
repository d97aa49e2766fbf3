"""The batches of an iterable dataset: one of each replica in turn.

So the order of batches depends on the data alone, not on which replica is fast.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from threadloader._epoch.empty_streams import Shares, empty_ranks, used_up
from threadloader._epoch.feed import Receipt
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.isolation import isolated_here, redirect_for
from threadloader._warnings import warn_user
from threadloader._work.read_job import IterableBatch, ReadJob, read_inline
from threadloader.errors import EmptyReplicaWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._epoch.steps import Steps
    from threadloader._order.shares import Share
    from threadloader._resume.position import Position
    from threadloader._rng.streams import WorkerStream
    from threadloader._settings import Settings
    from threadloader._threads.pool import Pool
    from threadloader._work.iterable_reader import IterableReader
    from threadloader._work.open_batch import OpenBatch, Pipeline, Worker
    from threadloader._work.progress import Progress

__all__ = ["IterableFeed"]


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
        stream: The random stream of the calling thread; None for its own random state.
        share: Of the rank; None where the dataset shares itself out.
        steps: Are told of each batch; None where nobody asks.
    """

    eager, groups = True, False

    def __init__(
        self,
        readers: list[IterableReader],
        pipeline: Pipeline,
        pools: list[Pool[Worker]],
        hand_on: Callable[[OpenBatch], None] | None,
        settings: Settings,
        position: Position,
        *,
        stream: WorkerStream | None = None,
        share: Share | None = None,
        steps: Steps | None = None,
    ) -> None:
        first = position.turn + 1  # the one after that of the batch delivered last
        self._turns = deque(readers[first:] + readers[:first])
        self._used_up = False  # whether a replica is a generator that had ended before
        self._shares = Shares(0 if position.restored else len(readers))
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
        self._stream = stream
        self._share = share
        self._steps = steps
        self._end = redirect_for(stream)
        if not pools:
            try:
                for reader in readers:
                    isolated_here(stream, reader.start)  # at iter(), as torch does without workers
            except BaseException:
                self._end()
                raise

    @property
    def least(self) -> int:
        """Return the number of replicas: they may wait for one another; see `Feed`."""
        return len(self._turns) if self._pools else 0

    def plan_next(
        self,
        progress: Progress,
        most: int = 1,  # noqa: ARG002
        *,
        inline: bool = False,  # noqa: ARG002
    ) -> OpenBatch | None:
        """Plan the next batch; see `Feed`."""
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
        if self._steps is not None:
            batch.on_read = self._steps.planned(reader.number)
        if self._pools:
            reading = ReadJob(batch, self._pipeline, progress, self._hand_on)
            self._pools[reader.number].put(reading)
        turns.rotate(-1)
        self._planned += 1
        return batch

    def make_next(
        self,
        progress: Progress,
        worker: Worker,  # noqa: ARG002
    ) -> OpenBatch | None:
        """Plan the next batch, which is read when it is worked on; see `Feed`."""
        return self.plan_next(progress)

    def plan_singly(self, group: OpenBatch, progress: Progress) -> list[OpenBatch]:  # noqa: ARG002
        """Return the batch: there are no groups; see `Feed`."""
        return [group]

    def give(self, batch: OpenBatch) -> None:
        """Do nothing: the calling thread begins no batch; see `Feed`."""

    def work(
        self,
        batch: OpenBatch,
        progress: Progress,
        worker: Worker,
        until: float = math.inf,  # noqa: ARG002
    ) -> None:
        """Read and collate a batch in the calling thread; see `Feed`."""
        if isinstance(batch, IterableBatch):
            isolated_here(self._stream, read_inline, batch, self._pipeline, progress, worker)
        self = batch = progress = DROPPED

    def done(self, batch: OpenBatch) -> Sequence[Receipt]:
        """Return a receipt; plan no more of a replica that has ended; see `Feed`."""
        if not isinstance(batch, IterableBatch):
            return (Receipt(),)
        number = batch.reader.number
        self._in_flight[number] -= 1
        self._shares.came(number, batch.number, exhausted=batch.exhausted)
        if not batch.exhausted:
            return (_IterableReceipt(self, self._position, batch),)
        self._used_up |= batch.reader.used_up
        self._position.lanes[number].ends(batch.number, batch.checkpoint)
        turns = self._turns
        if batch.reader in turns:
            turns.remove(batch.reader)
        return (Receipt(),)

    def end(self, *, finished: bool = False) -> None:
        """Redirect random functions no longer; warn of what gave nothing; see `Feed`."""
        self._end()
        self._turns = deque()  # an iterator that is kept keeps no file of the dataset open
        if not finished:
            return
        position = self._position
        position.finished = True
        self._warn_of_shares()  # out of order a replica's end may come last
        if position.batches or position.restored or position.before == 0:
            return
        if self._used_up or (position.before and hasattr(self._dataset, "__next__")):
            warn_user(used_up(self._dataset))
        elif self._share is not None and self._is_empty(self._share):
            ranks = [self._share.rank]
            warn_user(empty_ranks(ranks, self._share.world_size), EmptyReplicaWarning)

    def returned(self) -> None:
        """Count a batch that is returned, and warn if there are more than ``len(loader)`` said."""
        self._returned += 1
        self._warn_of_shares()
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
        warn_user(msg)

    def _warn_of_shares(self) -> None:
        warning = self._shares.warning()
        if warning is not None:
            warn_user(warning, EmptyReplicaWarning)

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


class _IterableReceipt(Receipt):
    """Counts a batch of a replica in its lane, and whose turn it was."""

    __slots__ = (
        "_checkpoint",
        "_feed",
        "_lane",
        "_number",
        "_position",
        "_replica",
        "_turn_before",
    )

    def __init__(self, feed: IterableFeed, position: Position, batch: IterableBatch) -> None:
        self._feed = feed
        self._position = position
        self._replica = batch.reader.number
        self._lane = position.lanes[self._replica]
        self._number = batch.number
        self._checkpoint = batch.checkpoint
        self._turn_before: int | None = None  # None until the batch is counted

    def count(self, *, returned: bool) -> None:
        """Count the batch; see `Receipt`."""
        if returned:
            self._feed.returned()
        self._turn_before = self._position.turn
        self._position.turn = self._replica
        self._lane.delivered(self._number, self._checkpoint)

    def take_back(self) -> None:
        """Count the batch no longer; see `Receipt`."""
        self._lane.take_back(self._number)
        if self._turn_before is not None:
            self._position.turn = self._turn_before
