"""What loaders deliver: the same samples as the dataset gives, each once an epoch.

During a measurement batches are looked at as little as that takes: the values of the first, and
the labels of all in the first epoch. `compare` reads a short epoch whole, sample by sample.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from benches.workloads.catalog import Workload

__all__ = ["BatchCheck", "compare", "samples_in"]


def samples_in(batch: Any) -> int:
    """Return the number of samples."""
    return len(batch[1] if isinstance(batch, (tuple, list)) else batch)


class BatchCheck:
    """Checks the batches of one epoch as they come.

    Args:
        workload: Whether loaders shuffle or shards come in any order decides what is checked.
        dataset: What is loaded.
    """

    def __init__(self, workload: Workload, dataset: Any) -> None:
        self._workload = workload
        self._dataset = dataset
        self._ordered = not workload.shuffle and workload.source != "shards"
        self._delivered = 0
        self._labels = np.zeros(100, np.int64)

    def first(self, batch: Any) -> None:
        """Check the first batch, its first and last value included.

        Raises:
            ValueError: It is not what it should be.
        """
        workload = self._workload
        plain = not (workload.random or workload.collate or workload.shuffle)
        if plain and isinstance(batch, (tuple, list)):
            values = np.asarray(batch[0])
            for row in (0, len(values) - 1):
                if not np.array_equal(values[row], np.asarray(self._dataset[row][0])):
                    raise ValueError(f"row {row} of the first batch is not sample {row}")
        self.next(batch)

    def next(self, batch: Any) -> None:
        """Check the labels of the next batch.

        Raises:
            ValueError: They are not what they should be.
        """
        labels = _labels(batch)
        start = self._delivered
        self._delivered += len(labels)
        if not self._ordered:
            self._labels += np.bincount(labels, minlength=100)
        elif not np.array_equal(labels, np.arange(start, start + len(labels)) % 100):
            raise ValueError(f"the batch from sample {start} on has the labels {labels}")

    def end(self) -> None:
        """Check that the epoch had all samples.

        Raises:
            ValueError: It had more or fewer.
        """
        length = len(self._dataset)
        if self._delivered != length:
            raise ValueError(f"{self._delivered} of {length} samples were delivered")
        if not self._ordered:
            expected = np.bincount(np.arange(length) % 100, minlength=100)
            if not np.array_equal(self._labels, expected):
                raise ValueError("an epoch had other labels than it should")


def _labels(batch: Any) -> NDArray[np.int64]:
    """Return the labels; where a sample is its index alone, those that follow from it."""
    if isinstance(batch, (tuple, list)):
        return np.asarray(batch[1])
    found: NDArray[np.int64] = np.asarray(batch) % 100
    return found


def compare(workload: Workload, dataset: Any, batches: Iterable[Any]) -> int:
    """Compare an epoch with the dataset: the same samples, in any order.

    Args:
        workload: What is loaded. Of samples that draw random numbers, shapes and labels are
            compared.
        dataset: Short.
        batches: Of the loader.

    Returns:
        The number of samples.

    Raises:
        ValueError: Samples are missing, or come too often, or differ.
    """
    samples = (
        dataset if workload.source == "shards" else map(dataset.__getitem__, range(len(dataset)))
    )
    expected = Counter(_digest(sample, workload) for sample in samples)
    found = Counter(_digest(row, workload) for batch in batches for row in _rows(batch))
    if found != expected:
        missing, other = (expected - found).total(), (found - expected).total()
        raise ValueError(f"{missing} samples were not delivered, and {other} others were")
    return found.total()


def _rows(batch: Any) -> Iterator[Any]:
    """Take a batch apart."""
    if isinstance(batch, (tuple, list)):
        return zip(*(np.asarray(column) for column in batch), strict=True)
    return iter(np.asarray(batch))


def _digest(sample: Any, workload: Workload) -> object:
    """Return what is equal for equal samples."""
    if not isinstance(sample, tuple):
        return int(sample)
    value, label = np.asarray(sample[0]), int(sample[1])
    if workload.random:
        return value.shape, label
    if workload.collate:
        value = np.trim_zeros(value, "b")  # padding
    return value.astype(np.float64).tobytes(), label
