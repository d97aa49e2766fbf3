"""Small images augmented by torch's operators: to float, padded, cropped and flipped at random."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from benches.workloads.catalog import Dataset

__all__ = ["Cifar"]


class Cifar(Dataset):
    """Images of CIFAR's size, 3x32x32, which the usual augmentation changes.

    Args:
        length: Samples; some images come several times.
    """

    DISTINCT = 8192
    MARGIN = 4  # pixels on each side, as for CIFAR since residual networks

    def __init__(self, length: int) -> None:
        super().__init__(length)
        rng = torch.Generator().manual_seed(0)
        shape = (self.DISTINCT, 3, 32, 32)
        self._images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return a random crop, flipped half of the time, (3, 32, 32), and its label."""
        image = self._images[index % self.DISTINCT].float().div_(255)
        margin = self.MARGIN
        padded = pad(image, (margin, margin, margin, margin))
        top, left = torch.randint(0, 2 * margin + 1, (2,)).tolist()
        crop = padded[:, top : top + 32, left : left + 32]
        return (crop.flip(-1) if torch.rand(1) < 0.5 else crop), index % 100
