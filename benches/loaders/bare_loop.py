"""The loop one writes first: fetch a batch's samples, stack them, go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from benches.harness.record import Output
    from benches.workloads.catalog import Dataset

__all__ = ["Rival", "load_batch"]


def load_batch(dataset: Dataset, indices: Sequence[int]) -> tuple[NDArray[Any], ...]:
    """Fetch the samples and stack each of their fields into a fresh array."""
    columns = zip(*[dataset[index] for index in indices], strict=True)
    return tuple(
        np.stack(column) if isinstance(column[0], np.ndarray) else np.array(column)
        for column in columns
    )


class Rival:
    """Load in the calling thread, with nothing ahead."""

    def __init__(
        self, dataset: Dataset, batch_size: int, workers: int, output: Output | None
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """Yield one epoch."""
        for start in range(0, len(self._dataset), self._batch_size):
            yield load_batch(self._dataset, range(start, start + self._batch_size))

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""

    def counters(self) -> dict[str, float]:
        """Return none."""
        return {}
