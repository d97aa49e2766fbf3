"""The loop one writes first: fetch a batch's samples, stack them, go on.

Where the dataset is arrays, one indexes them with the batch's indices at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.loaders.stacking import load_batch, stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.loaders.catalog import Setup

__all__ = ["Rival"]


class Rival:
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
        elif setup.source == "arrays":
            yield from self._gather(_arrays_of(setup.dataset))
        else:
            for indices in setup.batches():
                yield load_batch(setup.dataset, indices, setup.collate)

    def _gather(self, arrays: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        order: Any = np.random.permutation(len(arrays[0]))  # noqa: NPY002  # as one writes it
        if not isinstance(arrays[0], np.ndarray):
            import torch

            order = torch.from_numpy(order)
        for start in range(0, len(order), self._setup.batch_size):
            indices = order[start : start + self._setup.batch_size]
            yield tuple(array[indices] for array in arrays)

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""

    def counters(self) -> dict[str, float]:
        """Return none."""
        return {}


def _arrays_of(dataset: Any) -> Sequence[Any]:
    """Return what the dataset is made of."""
    found: Sequence[Any] = getattr(dataset, "arrays", None) or dataset.tensors
    return found
