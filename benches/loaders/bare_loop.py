"""The loop one writes first: fetch a batch's samples, stack them, go on.

Where the dataset is arrays, one indexes them with the batch's indices at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from benches.loaders.catalog import Loader, Setup
from benches.loaders.stacking import load_batch, stack

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Rival"]


class Rival(Loader):
    """Load in the calling thread, with nothing ahead."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __iter__(self) -> Iterator[Any]:
        """Yield one epoch."""
        setup = self._setup
        if setup.source == "shards":
            samples = iter(setup.dataset)
            while batch := list(islice(samples, setup.batch_size)):
                yield stack(batch)
        else:
            for indices in setup.batches():
                yield load_batch(setup, indices)
