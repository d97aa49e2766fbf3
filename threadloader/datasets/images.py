"""A folder of images, one folder a class: torchvision's layout, decoded straight to arrays.

The same files in the same order as `torchvision.datasets.ImageFolder`, so samplers, indices and
saved states fit both.  The sample is an array, not a PIL image; see `decode` for what it holds.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader.datasets.decode import MAX_PIXELS, Layout, decode
from threadloader.datasets.decode_jpeg import find_decoder
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Dataset = _torch.Dataset[tuple[Any, Any]]
else:
    Dataset = _torch.Dataset

__all__ = ["EXTENSIONS", "ImageFolder"]

# Source: IMG_EXTENSIONS in torchvision/datasets/folder.py.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder(Dataset):
    """Images below ``root/<class>/``, as ``(array, class number)``.

    Class folders are sorted by name and numbered from 0.  Within each, all folders below are
    looked through, links to folders followed.

    Args:
        root: The folder of the class folders.
        size: Height and width of all images, in pixels, or one number for both: scaled to cover
            them, then cropped at the centre; `threadloader.datasets.decode.decode` has the filter.
            None: each as it is.
        transform: Called with the array; what it returns is the sample's first part.
        target_transform: Called with the class number; what it returns is the second.
        layout: ``"HWC"`` for arrays of shape (height, width, 3), ``"CHW"`` for (3, height, width).
        decoder: ``"auto"`` for the fastest that is installed, or ``"leanjpeg-simple"``,
            ``"simplejpeg"``, ``"pillow-simd"``, ``"pillow"``.  The fast ones decode plain JPEGs;
            Pillow, or Pillow-SIMD in its place, resizes and decodes all else.
        max_pixels: Images of more pixels (width times height) are an error.  Pillow has a limit of
            its own, ``Image.MAX_IMAGE_PIXELS``: to go beyond twice that, raise both.
        is_valid_file: Called with each path, says whether it is a sample; None for all files that
            end in one of `EXTENSIONS`.
        allow_empty: Whether a class may have no samples.

    Attributes:
        classes: Names of the classes, sorted.
        class_to_idx: Number of each class.
        samples: ``(path, class number)`` of each sample.
        targets: Class number of each sample.
        decoder: Name of the decoder that is used.

    Raises:
        FileNotFoundError: There is no such folder, or no class folder in it, or one of these has
            no samples.
        NotADirectoryError: ``root`` is a file.
        ModuleNotFoundError: Pillow, or the decoder that was asked for, is not installed.
        ValueError: ``size``, ``layout``, ``decoder`` or ``max_pixels`` is none.

    Threads:
        all: shared; nothing changes after ``__init__``.
    """

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
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> None:
        if layout not in {"HWC", "CHW"}:
            raise ValueError(f"layout={layout!r} is neither 'HWC' nor 'CHW'")
        if not max_pixels or max_pixels < 1:
            raise ValueError(f"max_pixels={max_pixels!r} is no number of pixels, at least 1")
        self.root = os.path.expanduser(root)  # noqa: PTH111  # paths as torchvision writes them
        self.size, self.layout, self.max_pixels = _height_width(size), layout, max_pixels
        self.transform, self.target_transform = transform, target_transform
        self.decoder = find_decoder(decoder).name
        self.classes = _folders(self.root)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples: list[tuple[str, int]] = []
        for name, number in self.class_to_idx.items():
            folder = os.path.join(self.root, name)  # noqa: PTH118  # the same
            paths = list(_files(folder, is_valid_file or _is_image))
            if not (paths or allow_empty):
                raise FileNotFoundError(f"no images in {folder!r}: allow_empty=True allows it")
            self.samples += [(path, number) for path in paths]
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
            image = decode(
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
    """Return the height and width that an argument asks for.

    Raises:
        ValueError: It is not one or two positive numbers.
    """
    if size is None:
        return None
    try:
        if isinstance(size, bool):
            raise TypeError
        height, width = map(operator.index, size if isinstance(size, tuple | list) else (size,) * 2)
    except (TypeError, ValueError) as error:
        raise ValueError(f"size={size!r} is neither a number of pixels nor two") from error
    if min(height, width) < 1:
        raise ValueError(f"size={size!r} is less than 1 pixel")
    return height, width


def _folders(root: str) -> list[str]:
    """Return the names of the class folders, sorted.

    Raises:
        FileNotFoundError: There is none, or no such folder.
        NotADirectoryError: It is a file.
    """
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    if not names:
        msg = f"no folders in {root!r}: images are expected in one folder for each class"
        raise FileNotFoundError(msg)
    return names


def _files(folder: str, is_valid_file: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of the samples of a class, folder by folder, each sorted."""
    for parent, _, names in sorted(os.walk(folder, followlinks=True)):
        for name in sorted(names):
            path = os.path.join(parent, name)  # noqa: PTH118  # the same
            if is_valid_file(path):
                yield path


def _is_image(path: str) -> bool:
    """Whether a path ends as those of images do."""
    return path.lower().endswith(EXTENSIONS)
