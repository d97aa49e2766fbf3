"""torchdata's StatefulDataLoader: torch's loader with a state, and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata.stateful_dataloader import StatefulDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.loaders.catalog import Setup

__all__ = ["Rival"]


class Rival:
    """Load with ``StatefulDataLoader(num_workers=workers)``; 0 loads in this process."""

    def __init__(self, setup: Setup) -> None:
        self._loader: Any = StatefulDataLoader(
            setup.dataset,
            batch_size=setup.batch_size,
            shuffle=setup.shuffle,
            num_workers=setup.workers,
            collate_fn=setup.collate,
            persistent_workers=setup.workers > 0,
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
