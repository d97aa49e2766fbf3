"""The batches of an iterable dataset: those of its replicas, in turn."""

from __future__ import annotations

import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader._epoch.empty_streams import Shares, used_up
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.redirect import isolated_here, redirect_for
from threadloader._work.reading import ReadJob, StreamBatch, read_inline

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._resume.checkpoint import Checkpoint
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

    eager, packs = True, False

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
        self._turn_before = position.turn  # that before the last
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

    def start(self) -> None:
        """Do nothing: workers read the dataset, or it was begun."""

    def draw(self, progress: Progress, most: int = 1) -> OpenBatch | None:  # noqa: ARG002
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

    def split(self, pack: OpenBatch, progress: Progress) -> list[OpenBatch]:  # noqa: ARG002
        """Return it: each is made alone; see `Feed`."""
        return [pack]

    def work(self, batch: OpenBatch, progress: Progress, worker: Worker) -> None:
        """Do a batch in the calling thread; see `Feed`."""
        if isinstance(batch, StreamBatch):
            isolated_here(self._stream, read_inline, batch, self._stages, progress, worker)
        self = batch = progress = DROPPED

    def left(self, batch: OpenBatch) -> None:
        """Draw no more batches from the source of ``batch`` if it was empty."""
        if not isinstance(batch, StreamBatch):
            return
        number = batch.source.number
        self._open[number] -= 1
        self._shares.came(number, batch.number, exhausted=batch.exhausted)
        if not batch.exhausted:
            return
        self._used_up |= batch.source.used_up
        self._position.lanes[number].ends(batch.number, batch.checkpoint)
        if batch.source in self._turns:
            self._turns.remove(batch.source)

    def receipt(self, batch: OpenBatch, number: int = 0) -> Callable[[], None]:  # noqa: ARG002
        """Return what counts it as delivered; see `Feed`."""
        if not isinstance(batch, StreamBatch):
            return _nothing
        return partial(self._delivered, batch.source.number, batch.number, batch.checkpoint)

    def take_back(self, batch: Any, number: int = 0) -> None:  # noqa: ARG002  # it is one batch
        """Take no note of it; see `Feed`."""
        if isinstance(batch, StreamBatch):
            self._position.lanes[batch.source.number].take_back(batch.number)
            self._position.turn = self._turn_before

    def _delivered(self, source: int, number: int, checkpoint: Checkpoint | None) -> None:
        self._turn_before = self._position.turn
        self._position.turn = source
        self._position.lanes[source].delivered(number, checkpoint)

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

    def finish(self) -> None:
        """Count the epoch as finished, and warn of what gave nothing; see `Feed`."""
        position, dataset = self._position, self._announced[0]
        position.finished = True
        self._warn_of_shares(stacklevel=7)  # out of order a replica's end may be the last to come
        if position.batches or position.restored or position.before == 0:
            return
        if self._used_up or (position.before and hasattr(dataset, "__next__")):
            warnings.warn(used_up(dataset), stacklevel=6)

    def end(self) -> None:
        """Redirect no random functions any more; see `Feed`."""
        self._end()

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


def _nothing() -> None:
    """There is nothing to end."""
