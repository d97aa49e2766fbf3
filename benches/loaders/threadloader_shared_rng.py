"""The package without random streams for each sample: the difference is what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.loaders.threadloader import Rival as Isolated

if TYPE_CHECKING:
    from benches.loaders.catalog import Setup

__all__ = ["Rival"]


class Rival(Isolated):
    """Load with ``ThreadLoader(threads=workers, isolate_rng=False)``."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, isolate_rng=False)
