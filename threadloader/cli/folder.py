"""A folder of images as a map-style dataset: decoded by Pillow, resized, one array a sample.

The dataset is a plain class of this module with paths for its only state, so that a process
loader can pickle it and threads can share it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

from threadloader.cli.errors import CommandError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["EXTENSIONS", "ImageFiles", "find_images"]

# Source: IMG_EXTENSIONS in torchvision/datasets/folder.py, and GIF.
EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


def find_images(folder: Path) -> list[Path]:
    """List the images in a folder and the folders below it, sorted by path.

    Hidden files are left out: macOS keeps a ``._photo.jpg`` beside photos on foreign disks.

    Raises:
        CommandError: The folder is missing, is not a folder, cannot be read or has no image.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise CommandError(f"{printable(folder)} {problem}", code=2)
    found = [
        Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=_refuse)
        for name in names
        if not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS
    ]
    if not found:
        endings = " ".join(sorted(EXTENSIONS))
        raise CommandError(f"no images in {printable(folder)} (looked for {endings})", code=2)
    return sorted(found)


def _refuse(error: OSError) -> None:
    path = printable(os.fsdecode(error.filename))
    raise CommandError(f"cannot read the folder {path}: {error.strerror}", code=2) from error


class ImageFiles:
    """Samples ``(image, label)``: uint8 of shape (size, size, 3), and the number of its folder.

    Args:
        paths: Image files.
        size: Side of the square that each image is resized to, in pixels.
    """

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        parents = sorted({path.parent for path in paths})
        labels = {parent: label for label, parent in enumerate(parents)}
        self.paths = list(paths)
        self.labels = [labels[path.parent] for path in paths]
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Decode one image.

        Raises:
            CommandError: The file is gone, may not be read, or is no whole image.
        """
        path = self.paths[index]
        try:
            with Image.open(path) as image:
                small = image.convert("RGB").resize(
                    (self.size, self.size), Image.Resampling.BILINEAR
                )
        except Exception as error:  # SyntaxError, struct.error, many more
            raise CommandError(f"cannot read {printable(path)}: {_reason(error)}") from error
        return np.array(small), self.labels[index]


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its message is the path again
        return "not an image that Pillow can decode"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)
