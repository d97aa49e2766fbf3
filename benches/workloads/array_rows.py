"""Arrays and tensors that are datasets themselves: a batch is one gather, and no sample is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Arrays", "image_tensors", "row_tensors"]


class Arrays:
    """Rows of 64 float32 and their labels, which loaders for arrays take as they are.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        values = np.random.default_rng(0).random((length, 64), dtype=np.float32)
        self.arrays: tuple[NDArray[Any], ...] = (values, np.arange(length) % 100)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.arrays[0])

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
