"""turboloader: a thread for each sample of any dataset, and a loader of its own for arrays."""

from __future__ import annotations

from typing import Any

import turboloader

from benches.loaders.catalog import Loader, Setup
from benches.loaders.stacking import stack

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``MapDataLoader(num_workers=workers)``, or ``ArrayDataLoader``."""

    def __init__(self, setup: Setup) -> None:
        options: dict[str, Any] = {"batch_size": setup.batch_size, "shuffle": setup.shuffle}
        if hasattr(setup.dataset, "arrays"):
            self._loader: Any = turboloader.ArrayDataLoader(*setup.dataset.arrays, **options)
        else:
            options |= {"num_workers": setup.workers, "collate_fn": setup.collate or stack}
            self._loader = turboloader.MapDataLoader(setup.dataset, **options)
