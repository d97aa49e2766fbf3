"""dataloader-rs: a loader in Rust whose threads call the dataset."""

from __future__ import annotations

from typing import Any

from dataloader_rs import PyDataloader, PyDataset

from benches.loaders.catalog import Loader, Setup
from benches.loaders.stacking import stack

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``num_workers`` threads, two batches a thread ahead."""

    def __init__(self, setup: Setup) -> None:
        ahead = max(1, 2 * setup.workers)
        self._loader: Any = PyDataloader(
            _adopted(setup.dataset),
            batch_size=setup.batch_size,
            shuffle=setup.shuffle,
            num_workers=setup.workers,
            prefetch_depth=ahead,
            collate_fn=setup.collate or stack,
        )


def _adopted(dataset: Any) -> Any:
    """Return the dataset as an object of a class below theirs, as their documentation has it."""
    kind = type(dataset)
    methods = {name: getattr(kind, name) for name in ("__getitem__", "__len__")}
    made: Any = type(kind.__name__, (PyDataset, kind), methods)
    found = made.__new__(made)
    found.__dict__.update(dataset.__dict__)
    return found
