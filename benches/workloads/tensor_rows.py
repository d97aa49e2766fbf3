"""Rows that lie in memory as tensors: ``x[i], y[i]``, an indexing of torch's each."""

from __future__ import annotations

import torch

__all__ = ["TensorRows"]


class TensorRows:
    """Rows of 64 float32, and a label that is a tensor as well.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        self._values = torch.rand(length, 64, generator=torch.Generator().manual_seed(0))
        self._labels = torch.arange(length) % 100

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a view of the row, and its label, a tensor without dimensions."""
        return self._values[index], self._labels[index]
