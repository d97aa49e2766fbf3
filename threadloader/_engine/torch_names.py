"""The inner attributes of torch's iterator that frameworks look at, as they are there.

As on torch's iterator without worker processes: what belongs to processes (``_workers``,
``_shutdown_workers``) is absent, so that nobody tries to end any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from threadloader._engine.settings import Settings


class TorchNames:
    """Gives an epoch the names of torch's ``_SingleProcessDataLoaderIter``.

    Args:
        settings: Of the loader.
        base_seed: Of the workers.
        begun: Batches that were delivered before this epoch was resumed.

    Threads:
        all: consumer.
    """

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

    def __getstate__(self) -> NoReturn:
        msg = f"{type(self).__name__} cannot be pickled"
        raise NotImplementedError(msg)
