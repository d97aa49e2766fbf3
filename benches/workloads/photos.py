"""Real photos, decoded and resized with Pillow: milliseconds a sample, GIL released.

The files are made once, by any interpreter that has scikit-image and scikit-learn
(``python -m benches.workloads.photo_files``), and read by all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from benches.workloads.catalog import Dataset
from benches.workloads.photo_files import photo_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Photos"]


class Photos(Dataset):
    """RGB images of 224x224, read from JPEG files as an image folder is.

    Args:
        length: Samples; the files are repeated to reach it.

    Raises:
        FileNotFoundError: The files have not been made yet.
    """

    SIZE = (224, 224)

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._paths = [str(path) for path in photo_files()]

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Decode, resize and return the photo (224, 224, 3), and its label."""
        with Image.open(self._paths[index % len(self._paths)]) as file:
            photo = file.convert("RGB").resize(self.SIZE, Image.Resampling.BILINEAR)
        # A copy, for Pillow's own memory is read-only and torch warns of such arrays.
        return np.array(photo), index % 100
