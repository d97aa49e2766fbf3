"""The batches of an iterable dataset: those of its replicas, in turn."""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING

from threadloader._epoch.empty_streams import Shares, used_up
from threadloader._epoch.feed import Receipt
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.redirect import isolated_here, redirect_for
from threadloader._work.reading import ReadJob, StreamBatch, read_inline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._resume.position import Position
    from threadloader._rng.streams import WorkerStream
    from threadloader._settings import Settings
    from threadloader._threads.pool import Pool
    from threadloader._work.open_batch import OpenBatch, Stages, Worker
    from threadloader._work.progress import Progress
    from threadloader._work.reading import IterableReader

__all__ = ["StreamFeed"]


class StreamFeed:
    """Batches of an iterable dataset: one of each replica in turn, without those at their end.

    So the order of batches depends on the data alone, not on which replica is fast.  Out of
    order, the turn is that of a replica with the fewest batches on their way: the window never
    fills up with those of a slow one.

    Args:
        sources: The replicas' iterators.
        stages: What workers need.
        pools: One thread for each source, which it is bound to; empty for the calling thread.
        hand_on: Takes a batch that was read; None has it collated by the thread that read it.
        settings: Of the loader.
        position: Where the epoch is; with a lane for each source.
        stream: As for `SamplerFeed`.
    """

    eager, groups = True, False

    def __init__(
        self,
        sources: list[IterableReader],
        stages: Stages,
        pools: list[Pool[Worker]],
        hand_on: Callable[[OpenBatch], None] | None,
        settings: Settings,
        position: Position,
        *,
        stream: WorkerStream | None = None,
    ) -> None:
        first = position.turn + 1  # who comes after the one that delivered last
        self._turns = deque(sources[first:] + sources[:first])
        self._used_up = False  # whether a replica's generator had ended before
        self._shares = Shares(0 if position.restored else len(sources))
        self._position = position
        self._ahead = [set(lane.ahead) for lane in position.lanes]
        self._numbers = [lane.batches for lane in position.lanes]  # of each source's next batch
        self._stages = stages
        self._pools = pools
        self._hand_on = hand_on
        self._announced = settings.dataset, settings.reported_length
        self._in_order = settings.in_order
        self._open = [0] * len(sources)  # batches on their way, by the source's number
        self._returned = position.batches
        self._drawn = self._returned
        self._stream = stream
        self._end = _nothing if stream is None else redirect_for(stream)
        if not pools:
            try:
                for source in sources:
                    isolated_here(stream, source.start)  # at iter(), as torch does without workers
            except BaseException:
                self._end()
                raise

    def plan_next(self, progress: Progress, most: int = 1) -> OpenBatch | None:  # noqa: ARG002
        """Plan the next batch; see `Feed`."""
        if not self._turns:
            return None
        if not self._in_order:
            fewest = min(self._turns, key=lambda source: self._open[source.number])
            self._turns.rotate(-self._turns.index(fewest))
        source = self._turns[0]
        self._open[source.number] += 1
        number = self._next_number(source.number)
        # What a collate function draws must follow from what is delivered alone.
        sequence = number if len(self._numbers) == 1 else self._drawn
        batch = StreamBatch(sequence, source, number, self._stages, progress)
        if self._pools:
            reading = ReadJob(batch, self._stages, progress, self._hand_on)
            self._pools[source.number].put(reading)
        self._turns.rotate(-1)
        self._drawn += 1
        return batch

    def plan_singly(self, group: OpenBatch, progress: Progress) -> list[OpenBatch]:  # noqa: ARG002
        """Return it: each is made alone; see `Feed`."""
        return [group]

    def work(self, batch: OpenBatch, progress: Progress, worker: Worker) -> None:
        """Do a batch in the calling thread; see `Feed`."""
        if isinstance(batch, StreamBatch):
            isolated_here(self._stream, read_inline, batch, self._stages, progress, worker)
        self = batch = progress = DROPPED

    def done(self, batch: OpenBatch) -> Sequence[Receipt]:
        """Plan no more batches of the replica that ``batch`` is the end of; see `Feed`."""
        if not isinstance(batch, StreamBatch):
            return (Receipt(),)
        number = batch.source.number
        self._open[number] -= 1
        self._shares.came(number, batch.number, exhausted=batch.exhausted)
        if not batch.exhausted:
            return (_ReplicaReceipt(self, self._position, batch),)
        self._used_up |= batch.source.used_up
        self._position.lanes[number].ends(batch.number, batch.checkpoint)
        if batch.source in self._turns:
            self._turns.remove(batch.source)
        return (Receipt(),)

    def end(self, *, finished: bool = False) -> None:
        """Redirect no random functions any more; warn if nothing came of them; see `Feed`."""
        self._end()
        if not finished:
            return
        position, dataset = self._position, self._announced[0]
        position.finished = True
        self._warn_of_shares(stacklevel=6)  # out of order a replica's end may be the last to come
        if position.batches or position.restored or position.before == 0:
            return
        if self._used_up or (position.before and hasattr(dataset, "__next__")):
            warnings.warn(used_up(dataset), stacklevel=5)

    def returned(self) -> None:
        """Warn of replicas without batches, and of more batches than ``len(loader)`` told of."""
        self._returned += 1
        self._warn_of_shares(stacklevel=5)
        dataset, length = self._announced
        if length is None or self._returned <= length:
            return
        msg = (
            f"Length of IterableDataset {dataset} was reported to be {length}"
            f"(when accessing len(dataloader)), but {self._returned} samples have been fetched. "
        )
        if self._pools:
            msg += (
                "For multiprocessing data-loading, this could be caused by not properly "
                "configuring the IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                "for examples."
            )
        warnings.warn(msg, stacklevel=4)

    def _warn_of_shares(self, stacklevel: int) -> None:
        warning = self._shares.warning()
        if warning is not None:
            warnings.warn(warning, stacklevel=stacklevel)

    def _next_number(self, source: int) -> int:
        """Return the number of a source's next batch: of those that were not delivered."""
        number = self._numbers[source]
        while number in self._ahead[source]:
            number += 1
        self._numbers[source] = number + 1
        return number


class _ReplicaReceipt(Receipt):
    """Counts a batch of a replica's."""

    __slots__ = ("_feed", "_lane", "_mark", "_number", "_position", "_source", "_turn_before")

    def __init__(self, feed: StreamFeed, position: Position, batch: StreamBatch) -> None:
        self._feed = feed
        self._position = position
        self._source = batch.source.number
        self._lane = position.lanes[self._source]
        self._number = batch.number
        self._mark = batch.checkpoint
        self._turn_before: int | None = None  # before it was counted

    def count(self, *, returned: bool) -> None:
        """Count the batch; see `Receipt`."""
        if returned:
            self._feed.returned()
        self._turn_before = self._position.turn
        self._position.turn = self._source
        self._lane.delivered(self._number, self._mark)

    def take_back(self) -> None:
        """Count it no more; see `Receipt`."""
        self._lane.take_back(self._number)
        if self._turn_before is not None:
            self._position.turn = self._turn_before


def _nothing() -> None:
    """There is nothing to end."""
