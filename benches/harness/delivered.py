"""A check of the loaders: each delivers the samples of the dataset, each once an epoch.

`compare` reads a short epoch whole, sample by sample, before anything is measured.  During a
measurement only the samples of the first epoch are counted, as looking costs time.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benches.workloads.catalog import Workload

__all__ = ["compare", "samples_in"]


def samples_in(batch: Any) -> int:
    """Return the number of samples."""
    return len(batch[1] if isinstance(batch, (tuple, list)) else batch)


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
