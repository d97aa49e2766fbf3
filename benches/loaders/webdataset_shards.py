"""webdataset behind torch's DataLoader: each worker reads shards of its own and makes batches.

It reads zstd through a pipe from the command ``zstd``, and decodes with Pillow.
"""

from __future__ import annotations

from typing import Any

import webdataset
from torch.utils.data import DataLoader

from benches.loaders.catalog import Loader, Setup

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``DataLoader(num_workers=workers)``; 0 loads in this process."""

    def __init__(self, setup: Setup) -> None:
        pipes = [f"pipe:zstd -dcq {path}" for path in setup.dataset.paths]
        dataset = webdataset.WebDataset(pipes, shardshuffle=False).decode("rgb8")
        self._loader: DataLoader[Any] = DataLoader(
            dataset.to_tuple("jpg", "cls").batched(setup.batch_size),
            batch_size=None,
            num_workers=setup.workers,
            persistent_workers=setup.workers > 0,
        )
