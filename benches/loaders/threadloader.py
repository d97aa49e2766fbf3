"""The package itself, with the arguments that torch's DataLoader gets here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.harness.record import Output
    from benches.workloads.catalog import Dataset

__all__ = ["Rival"]


class Rival:
    """Load with ``ThreadLoader(threads=workers)``; 0 loads in the calling thread."""

    def __init__(
        self, dataset: Dataset, batch_size: int, workers: int, output: Output | None
    ) -> None:
        self._loader: ThreadLoader[Any] = ThreadLoader(
            dataset,
            batch_size=batch_size,
            threads=workers,
            persistent_workers=workers > 0,
            output=output,
        )

    def __iter__(self) -> Iterator[Any]:
        """Start one epoch."""
        return iter(self._loader)

    def close(self) -> None:
        """Stop the threads."""
        self._loader.close()

    def counters(self) -> dict[str, float]:
        """Return what the targets are about: the window and the slots made so far."""
        statistics = self._loader.statistics()
        return {"window": statistics.window, "slots_made": statistics.slots.made}
