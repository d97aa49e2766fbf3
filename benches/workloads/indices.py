"""Samples that cost nothing but their index, a lookup in a long list, or a wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benches.workloads.catalog import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Empty", "Paths", "Remote"]


class Empty(Dataset):
    """Numbers, each its own index: what is measured is the loader alone."""

    def __getitem__(self, index: int) -> int:
        """Return the index."""
        return index


class Paths(Dataset):
    """Paths of files, of which a sample takes the length.

    Lists of millions are usual: a loader's start must not depend on how many there are.

    Args:
        length: Samples; the list has this many strings, or ``strings`` if that is more.
        strings: In the list; an epoch of fewer samples takes them from all over it.
    """

    def __init__(self, length: int, strings: int = 0) -> None:
        super().__init__(length)
        name = "train/images/n%012d.JPEG"
        self._paths = list(map(name.__mod__, range(max(strings, length))))
        self._step = len(self._paths) // length

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the length of the path, and its label."""
        return len(self._paths[index * self._step]), index % 100


class Remote(Dataset):
    """Small samples after 10 ms each, as from an object store; a wait holds no lock."""

    LATENCY_S = 0.010

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        """Wait, then return 16 numbers and the label."""
        time.sleep(self.LATENCY_S)
        return np.full(16, index, dtype=np.float32), index % 100
