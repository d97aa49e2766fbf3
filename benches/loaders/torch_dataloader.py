"""torch's own DataLoader, with a given number of worker processes.

Workers persist between epochs, which is torch's best case; start method, prefetch
factor and collation are its defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.harness.record import Output
    from benches.workloads.catalog import Dataset

__all__ = ["Rival"]


class Rival:
    """Load with ``DataLoader(num_workers=workers)``; 0 loads in this process."""

    def __init__(
        self, dataset: Dataset, batch_size: int, workers: int, output: Output | None
    ) -> None:
        self._loader: DataLoader[Any] = DataLoader(
            dataset,  # type: ignore[arg-type]  # any map-style object is accepted
            batch_size=batch_size,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def __iter__(self) -> Iterator[Any]:
        """Start one epoch."""
        return iter(self._loader)

    def close(self) -> None:
        """Drop the loader, which stops its workers."""
        del self._loader

    def counters(self) -> dict[str, float]:
        """Return none: it keeps none."""
        return {}
