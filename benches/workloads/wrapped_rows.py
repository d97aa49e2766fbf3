"""Rows of an array that the dataset makes tensors: ``torch.from_numpy(x[i])`` and an int."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["WrappedRows"]


class WrappedRows:
    """Rows of 64 float32.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        self._values = np.random.default_rng(0).random((length, 64), dtype=np.float32)
        self._labels = [index % 100 for index in range(length)]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return a tensor that is a view of the row, and its label."""
        return torch.from_numpy(self._values[index]), self._labels[index]
