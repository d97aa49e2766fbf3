"""The photo files, decoded by one decoder as `threadloader.datasets.ImageFolder` does it.

``python -m benches.workloads.decoded`` prints the decoders that this interpreter has, as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benches.workloads.photo_files import photo_files
from threadloader.datasets._images.decode import decode_image, installed_decoders

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Decoded"]


class Decoded:
    """RGB images, read from JPEG files as an image folder is.

    Args:
        length: Samples; the files are repeated to reach it.
        decoder: Its name.
        side: Of the square that they are cropped to, in pixels; None for whole images.

    Raises:
        FileNotFoundError: The files have not been made yet.
    """

    def __init__(self, length: int, decoder: str, side: int | None) -> None:
        self._length = length
        self._decoder = decoder
        self._size = None if side is None else (side, side)
        self._paths = photo_files()

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Return the photo, of shape (height, width, 3), and its label."""
        data = self._paths[index % len(self._paths)].read_bytes()
        return decode_image(data, size=self._size, decoder=self._decoder), index % 100


if __name__ == "__main__":
    print(json.dumps([decoder.name for decoder in installed_decoders()]))
