"""Samples that lie in memory: rows of arrays and tensors, and images, which are only copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benches.workloads.catalog import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Arrays", "Bandwidth", "Rows", "TensorRows", "image_tensors", "row_tensors"]


class Rows(Dataset):
    """Rows of 64 float32, less than a microsecond each: the loader's cost shows.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._values = np.random.default_rng(0).random((length, 64), dtype=np.float32)
        self._labels = [index % 100 for index in range(length)]

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        """Return a view of the row, and its label."""
        return self._values[index], self._labels[index]


class TensorRows(Dataset):
    """Rows of 64 float32, and a label that is a tensor as well: an indexing of torch's each.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        import torch

        super().__init__(length)
        self._values = torch.rand(length, 64, generator=torch.Generator().manual_seed(0))
        self._labels = torch.arange(length) % 100

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a view of the row, and its label, a tensor without dimensions."""
        return self._values[index], self._labels[index]


class Arrays(Dataset):
    """Rows of 64 float32 and their labels, which loaders for arrays take as they are.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        values = np.random.default_rng(0).random((length, 64), dtype=np.float32)
        self.arrays: tuple[NDArray[Any], ...] = (values, np.arange(length) % 100)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], np.int64]:
        """Return a view of the row, and its label."""
        return self.arrays[0][index], self.arrays[1][index]


def row_tensors(length: int) -> Any:
    """Return a ``TensorDataset`` of rows of 64 float32 and labels."""
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(*map(torch.from_numpy, Arrays(length).arrays))


def image_tensors(length: int) -> Any:
    """Return a ``TensorDataset`` of images of MNIST's size, (1, 28, 28) float32, and labels."""
    import torch
    from torch.utils.data import TensorDataset

    images = torch.rand(length, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return TensorDataset(images, torch.arange(length) % 100)


class Bandwidth(Dataset):
    """Images of 1.7 MB: copying them into the batch is all the work.

    The arrays are written, not just allocated: untouched pages are all one page of
    zeros, which no cache ever misses.

    Args:
        length: Samples.
    """

    DISTINCT = 128  # images, 226 MB: beyond the caches of any processor today
    SHAPE = (3, 384, 384)

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._images = np.empty((self.DISTINCT, *self.SHAPE), dtype=np.float32)
        self._images[:] = np.random.default_rng(0).random(self.SHAPE, dtype=np.float32)
        self._images += np.arange(self.DISTINCT, dtype=np.float32)[:, None, None, None]

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        """Return a view of the image, and its label."""
        return self._images[index % self.DISTINCT], index % 100
