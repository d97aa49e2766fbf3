"""Images a second of each decoder that this Python has, as they are and resized to 224.

``python -m benches.decode``, once with each Python; Pillow-SIMD is measured in Pillow's place.

Photos of 500x375 through a ThreadLoader with batches of 64, with one thread and with one for each
core.  All take turns in one process, in an order that rotates; of all rounds the median.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benches.harness.lanes import run_lanes
from benches.harness.machine import usable_cores
from benches.workloads.photo_files import make_photo_files
from threadloader import ThreadLoader
from threadloader.datasets._images.decode import decode_image, installed_decoders

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

BATCH = 64


class Photos:
    """The photo files, decoded as an `ImageFolder` does it.

    Args:
        side: Of the square that they are cropped to, in pixels; None for whole photos.
        decoder: Its name; by default the fastest of each kind of image.
    """

    def __init__(self, side: int | None, decoder: str = "auto") -> None:
        self.size = None if side is None else (side, side)
        self.decoder = decoder
        self.paths = make_photo_files()

    def __len__(self) -> int:
        """Return the number of photos."""
        return len(self.paths)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """Return a photo, of shape (height, width, 3)."""
        return decode_image(self.paths[index].read_bytes(), size=self.size, decoder=self.decoder)


def _lanes(_: Path) -> Any:
    threads = sorted({1, usable_cores()})
    return {
        f"size={side}": {
            f"{decoder}, {number} threads": partial(
                ThreadLoader, Photos(side, decoder), BATCH, threads=number, output="numpy"
            )
            for decoder in installed_decoders()
            for number in threads
        }
        for side in (None, 224)
    }


if __name__ == "__main__":
    sys.exit(run_lanes("decode", __doc__, _lanes, "photo"))
