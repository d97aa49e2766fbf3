"""Images that lie in memory: copying them into the batch is all the work.

The arrays are written, not just allocated: untouched pages are all one page of
zeros, which no cache ever misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Bandwidth"]


class Bandwidth:
    """Images of 1.7 MB.

    Args:
        length: Samples.
    """

    DISTINCT = 128  # images, 226 MB: beyond the caches of any processor today
    SHAPE = (3, 384, 384)

    def __init__(self, length: int) -> None:
        self._length = length
        self._images = np.empty((self.DISTINCT, *self.SHAPE), dtype=np.float32)
        self._images[:] = np.random.default_rng(0).random(self.SHAPE, dtype=np.float32)
        self._images += np.arange(self.DISTINCT, dtype=np.float32)[:, None, None, None]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        """Return a view of the image, and its label."""
        return self._images[index % self.DISTINCT], index % 100
