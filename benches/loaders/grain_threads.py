"""Grain: a dataset of whole batches, read by threads, or in this one where data is in memory.

Source: https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html
"""

from __future__ import annotations

from typing import Any

import grain

from benches.loaders.catalog import Loader, Setup
from benches.loaders.stacking import stack

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``ReadOptions(num_threads=workers)``, two batches a thread ahead."""

    def __init__(self, setup: Setup) -> None:
        samples = grain.MapDataset.source(setup.dataset)
        if setup.shuffle:
            samples = samples.shuffle(seed=0)
        batches = samples.batch(setup.batch_size, batch_fn=setup.collate or stack)
        ahead = 2 * setup.workers
        options = grain.ReadOptions(num_threads=setup.workers, prefetch_buffer_size=ahead)
        self._loader: Any = batches.to_iter_dataset(options)
