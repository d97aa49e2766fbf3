"""torch's own DataLoader, with a given number of worker processes.

Workers persist between epochs, which is torch's best case; start method, prefetch
factor and collation are its defaults.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from benches.loaders.catalog import Loader, Setup

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``DataLoader(num_workers=workers)``; 0 loads in this process."""

    def __init__(self, setup: Setup, kind: Any = DataLoader) -> None:
        self._loader = kind(
            setup.dataset,
            batch_size=setup.batch_size,
            shuffle=setup.shuffle,
            num_workers=setup.workers,
            collate_fn=setup.collate,
            persistent_workers=setup.workers > 0,
        )
