"""Samples that have to be waited for, as from an object store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Remote"]


class Remote:
    """Small samples after 10 ms each; a wait costs no CPU and holds no lock.

    Args:
        length: Samples.
    """

    LATENCY_S = 0.010

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        """Wait, then return 16 numbers and the label."""
        time.sleep(self.LATENCY_S)
        return np.full(16, index, dtype=np.float32), index % 100
