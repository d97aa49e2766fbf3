"""The demo's dataset: `threadloader.datasets.ImageFolder`, of images at any depth of a folder.

All loaders get the same object: threads share it, and processes get it by pickle.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader.cli.errors import CommandError, printable
from threadloader.datasets import ImageFolder
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class ImageFiles(ImageFolder):
    """An `ImageFolder` of images wherever they are, with errors of one line.

    Each folder that has some of the images is a class, whatever lies between.

    Args:
        paths: Image files, in the order of the samples.
        side: Of the square that each image is scaled to cover and cropped to, in pixels.
    """

    def __init__(self, paths: Sequence[Path], side: int) -> None:
        self.paths, self.side = list(paths), side
        super().__init__(os.path.commonpath([path.parent for path in paths]), size=side)

    def _find(self, *_: object) -> tuple[list[str], list[tuple[str, int]]]:
        classes = sorted({str(path.parent) for path in self.paths})
        numbers = {name: number for number, name in enumerate(classes)}
        return classes, [(str(path), numbers[str(path.parent)]) for path in self.paths]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return one image, uint8 of shape (side, side, 3), and the number of its folder.

        Raises:
            CommandError: The file is gone, may not be read, or is no whole image.
        """
        try:
            return super().__getitem__(index)
        except (DataError, OSError) as error:
            path = printable(self.paths[index])
            raise CommandError(f"cannot read {path}: {_reason(error)}") from error


def _reason(error: DataError | OSError) -> str:
    """Return what is wrong, without the path."""
    return error.message if isinstance(error, DataError) else error.strerror or str(error)
