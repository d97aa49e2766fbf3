"""A folder of images, one folder a class: torchvision's layout, decoded straight to arrays.

Files and order are those of `torchvision.datasets.ImageFolder`, so samplers, indices and saved
states fit both.  A sample is an array, not a PIL image; see `decode_image` for its contents.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader._authors import Dataset
from threadloader.datasets._images.decode import MAX_PIXELS, Layout, checked_decoder, decode_image
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable


# Source: IMG_EXTENSIONS in torchvision/datasets/folder.py.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder(Dataset[tuple[Any, Any]]):
    """Images below ``root/<class>/``, as ``(array, class number)``.

    Class folders are sorted by name and numbered from 0.  All folders below a class folder are
    searched, and links to folders are followed.

    Args:
        root: The folder of the class folders.
        size: Height and width of all images, in pixels, or one number for both: each is scaled to
            cover them, by Pillow's ``BILINEAR``, then cropped at the centre.  None: each as it is.
        transform: Called with the array; its result is the first part of the sample.
        target_transform: Called with the class number; its result is the second part.
        layout: ``"HWC"`` for arrays of shape (height, width, 3), ``"CHW"`` for (3, height, width).
        decoder: ``"auto"`` for the fastest that is installed, or ``"leanjpeg-simple"``,
            ``"simplejpeg"``, ``"pillow"``.  The first two decode plain JPEGs; Pillow resizes, and
            decodes all else.
        max_pixels: Images of more pixels (width times height) are an error.  Pillow refuses more
            than twice ``Image.MAX_IMAGE_PIXELS``: to go beyond that, raise both.

    Attributes:
        classes: Names of the classes, sorted.
        class_to_idx: Number of each class.
        samples: ``(path, class number)`` of each sample.
        targets: Class number of each sample.
        decoder: Name of the decoder in use.

    Raises:
        FileNotFoundError: There is no such folder, or no class folder in it, or a class folder has
            no samples.
        NotADirectoryError: ``root`` is a file.
        ModuleNotFoundError: Pillow, or the decoder that was asked for, is not installed.
        ValueError: ``size``, ``layout``, ``decoder`` or ``max_pixels`` has no valid value.

    Threads:
        all: shared; nothing changes after ``__init__``.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        size: int | tuple[int, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        layout: Layout = "HWC",
        decoder: str = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if layout not in {"HWC", "CHW"}:
            raise ValueError(f"layout={layout!r} is neither 'HWC' nor 'CHW'")
        if not max_pixels or max_pixels < 1:
            raise ValueError(f"max_pixels={max_pixels!r} is no number of pixels, at least 1")
        self.root = os.path.expanduser(root)  # noqa: PTH111  # paths as torchvision writes them
        self.size, self.layout, self.max_pixels = _height_width(size), layout, max_pixels
        self.transform, self.target_transform = transform, target_transform
        self.decoder = checked_decoder(decoder)
        self.classes = _folders(self.root)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in _images(os.path.join(self.root, name))  # noqa: PTH118  # the same
        ]
        self.targets = [number for _, number in self.samples]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    def __repr__(self) -> str:
        size = "" if self.size is None else f", size={self.size}"
        return (
            f"ImageFolder({self.root!r}{size}): {len(self.samples):,} images of "
            f"{len(self.classes):,} classes, decoded by {self.decoder}"
        )

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a sample.

        Raises:
            DataError: The file is no image, is damaged or truncated, or is too large.
            IndexError: There is no such sample.
            OSError: The file can't be read.
        """
        path, target = self.samples[index]
        data = Path(path).read_bytes()
        try:
            image = decode_image(
                data,
                size=self.size,
                layout=self.layout,
                decoder=self.decoder,
                max_pixels=self.max_pixels,
            )
        except ValueError as error:
            raise DataError(str(error), path) from error
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )


def _height_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return height and width.

    Raises:
        ValueError: It is not one or two positive numbers.
    """
    if size is None:
        return None
    try:
        height, width = map(operator.index, size if isinstance(size, tuple | list) else (size,) * 2)
    except (TypeError, ValueError) as error:
        raise ValueError(f"size={size!r} is neither a number of pixels nor two") from error
    if min(height, width) < 1:
        raise ValueError(f"size={size!r} is less than 1 pixel")
    return height, width


def _folders(root: str) -> list[str]:
    """Return the names of the class folders, sorted.

    Raises:
        FileNotFoundError: There is no class folder, or no ``root``.
        NotADirectoryError: ``root`` is a file.
    """
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        msg = f"no folders in {root!r}: images are expected in one folder for each class"
        raise FileNotFoundError(msg)
    return names


def _images(folder: str) -> list[str]:
    """Return the paths of a class's samples: folder by folder, and sorted within each.

    Raises:
        FileNotFoundError: There is none.
    """
    found = [
        os.path.join(parent, name)  # noqa: PTH118  # the same
        for parent, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(EXTENSIONS)
    ]
    if not found:
        raise FileNotFoundError(f"no images in {folder!r}")
    return found
