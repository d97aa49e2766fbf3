"""The inner attributes of torch's iterator that frameworks look at, as they are there.

As on torch's iterator without worker processes: what belongs to processes (``_workers``,
``_shutdown_workers``) is absent, so that nobody tries to end any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from threadloader._engine.open_batch import FailedBatch, OpenBatch

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator
    from threading import RLock

    from threadloader._engine.copier import Copier
    from threadloader._engine.feed import Feed
    from threadloader._engine.settings import Settings
    from threadloader._order.tickets import PlannedBatch


class TorchNames:
    """Gives an epoch the names of torch's ``_SingleProcessDataLoaderIter``.

    Args:
        settings: Of the loader.
        base_seed: Of the workers.
        begun: Batches that were delivered before this epoch was resumed.

    Threads:
        all: consumer.
    """

    _turn: RLock
    _batches: deque[OpenBatch | FailedBatch]
    _here: bool
    _copier: Copier | None
    _feed: Feed
    _head: Callable[[], OpenBatch | FailedBatch | None]
    _wait_for_batch: Callable[[], OpenBatch | FailedBatch]
    _take_out: Callable[[OpenBatch | FailedBatch], None]

    def __init__(self, settings: Settings, base_seed: int, begun: int) -> None:
        self._dataset = settings.dataset
        self._dataset_kind = int(settings.iterable)  # torch's `_DatasetKind`
        self._IterableDataset_len_called = settings.reported_length
        self._auto_collation = settings.batched
        self._drop_last = settings.drop_last
        self._index_sampler = settings.index_sampler
        self._num_workers = settings.num_workers
        self._pin_memory = settings.pinned
        self._timeout = settings.timeout
        self._collate_fn = settings.collate_fn
        self._persistent_workers = settings.persistent_workers
        self._base_seed = base_seed
        self._num_yielded = begun

    def __len__(self) -> int:
        return len(self._index_sampler)

    @property
    def _sampler_iter(self) -> Iterator[Any]:
        """Yields the indices of the batches that are left, which the consumer does not get then."""
        return iter(self._next_index, _NEVER)

    def _next_index(self) -> Any:
        """Leave out the next batch, and return its indices.

        Raises:
            StopIteration: There is none.
        """
        if self._dataset_kind:
            return next(iter(self._index_sampler))  # a dummy, which says nothing of samples
        with self._turn:
            plan = self._leave_out()
        indices = [plan.index_of(row) for row in range(len(plan.indices))]
        return indices if self._auto_collation else indices[0]

    def _leave_out(self) -> PlannedBatch:
        """Count the next batch as one that the consumer does not get, and return its plan."""
        batch: OpenBatch | FailedBatch | None
        if self._here and self._copier is None:
            batch = self._head()  # which nobody has begun to make
            if batch is None:
                raise StopIteration
            self._batches.remove(batch)
        else:
            batch = self._wait_for_batch()
            self._take_out(batch)
        if isinstance(batch, FailedBatch):
            batch.take()
        if self._copier is not None:
            self._copier.drop(batch)
        self._feed.count(batch.count_as, returned=False)
        return batch.plan

    def __getstate__(self) -> NoReturn:
        msg = f"{type(self).__name__} cannot be pickled"
        raise NotImplementedError(msg)


_NEVER = object()
