"""The package itself, with the arguments that torch's DataLoader gets here."""

from __future__ import annotations

from typing import Any

from benches.loaders.catalog import Loader, Setup
from threadloader import ThreadLoader
from threadloader.datasets import ArrayDataset, TarStream

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``ThreadLoader(threads=workers)``; 0 loads in the calling thread."""

    def __init__(self, setup: Setup, *, isolate_rng: bool = True) -> None:
        dataset = setup.dataset
        if setup.source == "shards":
            dataset = TarStream(dataset.paths, fields=("jpg", "cls"))
        elif hasattr(dataset, "arrays"):
            dataset = ArrayDataset(*dataset.arrays)
        self._loader: ThreadLoader[Any] = ThreadLoader(
            dataset,
            batch_size=setup.batch_size,
            shuffle=setup.shuffle,
            threads=setup.workers,
            collate_fn=setup.collate,
            persistent_workers=setup.workers > 0,
            output=setup.output,
            isolate_rng=isolate_rng,
        )

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()

    def counters(self) -> dict[str, float]:
        """Return what the targets are about: the window and the slots made so far."""
        statistics = self._loader.statistics()
        return {"window": statistics.window, "slots_made": statistics.slots.made}
