"""The only dataset module that imports Pillow: open a picture, load it whole, make it RGB.

Pillow and this module decide what a picture means.  A faster decoder gives the same pixels, so it
changes nothing but the time.  Pillow's switch to accept broken files
(``ImageFile.LOAD_TRUNCATED_IMAGES``) is the user's: if it is on, they are accepted here, too.
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

try:
    from PIL import (  # the plug-ins, because Pillow opens only formats that are registered
        BmpImagePlugin,  # noqa: F401
        GifImagePlugin,  # noqa: F401
        Image,
        ImageFile,
        JpegImagePlugin,  # noqa: F401
        MpoImagePlugin,  # noqa: F401
        PngImagePlugin,  # noqa: F401
        PpmImagePlugin,  # noqa: F401
        TiffImagePlugin,  # noqa: F401
        UnidentifiedImageError,
        WebPImagePlugin,  # noqa: F401
    )
except ModuleNotFoundError as error:
    error.add_note("images are decoded with Pillow: pip install pillow (extra: images)")
    raise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = Image.Image | NDArray[np.uint8]  # RGB; an array has shape (height, width, 3)

__all__ = ["Picture", "UnidentifiedImageError", "image_of", "resize"]

# No format that runs a program (EPS) or opens another file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")

# Some releases of libjpeg accept a file without it, and make the rest of the picture grey.
END_OF_IMAGE = b"\xff\xd9"

ORIENTATION = 0x0112  # the tag's number in EXIF and TIFF


class Picture:
    """A picture: its header is read, its pixels are not yet.

    Args:
        data: The file's bytes.
        max_pixels: Most pixels (width times height) that are decoded.

    Raises:
        ValueError: It has more pixels, or is a JPEG without an end.
        Exception: Pillow can't read the header; it raises many kinds.

    Threads:
        all: distinct, one object a call.
    """

    def __init__(self, data: bytes, max_pixels: int) -> None:
        file = io.BytesIO(data)
        self._image = Image.open(file, formats=FORMATS)
        self.width, self.height = self._image.size
        if self.width * self.height > max_pixels:
            msg = (
                f"{self.width:,} x {self.height:,} pixels are more than {max_pixels=:,}: "
                "a decompression bomb, or raise the limit"
            )
            raise ValueError(msg)
        if ImageFile.LOAD_TRUNCATED_IMAGES:
            return
        if self.is_jpeg and data.rfind(END_OF_IMAGE, file.tell()) < 0:
            raise ValueError("the JPEG ends before its end marker: truncated, or filled up")
        if self._image.format == "PNG":  # Pillow itself skips the check sums of the pixels
            self._image.verify()
            self._image = Image.open(io.BytesIO(data), formats=("PNG",))

    @property
    def is_jpeg(self) -> bool:
        """Whether the picture can be made smaller while it is decoded."""
        return self._image.format in {"JPEG", "MPO"}

    @property
    def is_plain_jpeg(self) -> bool:
        """Whether any JPEG decoder gives the same pixels as Pillow: grey or colour, 8 bits."""
        return self.is_jpeg and self._image.mode in {"L", "RGB"}

    @property
    def orientation(self) -> int:
        """EXIF's orientation, 1 to 8; 1 if there is none, or it can't be read."""
        if self._image.format == "TIFF":  # Pillow turns it itself
            return 1
        found = 1
        with suppress(Exception):  # damaged metadata does not damage the picture
            found = self._image.getexif().get(ORIENTATION, 1)
        return found if found in range(1, 9) else 1

    def load(self, scale: int = 1) -> Image.Image:
        """Return the picture, decoded, in RGB.

        Args:
            scale: 1, 2, 4 or 8: how many times smaller a JPEG is made while it is decoded, with
                sides rounded up.  Other formats are decoded as they are.

        Raises:
            Exception: Pillow can't decode the pixels; it raises many kinds.
        """
        image = self._image
        if scale > 1:  # draft() decodes to at least the size that is asked for: round down
            image.draft(None, (max(1, self.width // scale), max(1, self.height // scale)))
        image.load()
        return _to_rgb(image)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return a picture in 8-bit RGB; the function `decode_image` states the rules.

    Raises:
        ValueError: Its samples have no scale: floats, or integers beyond 16 bits.
    """
    mode = image.mode
    if mode == "RGB":
        return image
    if mode.startswith("I"):
        image = _high_bytes(image)
    elif mode == "F":
        raise ValueError("floating-point samples have no scale that makes 8 bits of them")
    # Pillow would warn of some kinds of transparency; all kinds are dropped.
    image.info.pop("transparency", None)
    return image.convert("RGB")


def _high_bytes(image: Image.Image) -> Image.Image:
    """Return a grey picture of 16 bits in 8: the high bytes, as Pillow reads 16-bit colour."""
    samples = np.asarray(image)
    if image.mode == "I" and (samples.min() < 0 or samples.max() > 0xFFFF):
        raise ValueError("integer samples beyond 16 bits have no scale that makes 8 bits of them")
    return Image.fromarray((samples >> 8).astype(np.uint8))


def resize(
    image: Pixels, size: tuple[int, int], box: tuple[float, float, float, float]
) -> Image.Image:
    """Return a part of a picture in another size.

    Args:
        image: The picture.
        size: Height and width, in pixels.
        box: Left, top, right and bottom of the part, in pixels of ``image``.
    """
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    return image.resize(size[::-1], Image.Resampling.BILINEAR, box=box)


def image_of(mode: str, size: tuple[int, int], data: bytes) -> Image.Image:
    """Return an image of these pixels.

    Args:
        mode: Pillow's.
        size: Width and height.
        data: As ``Image.tobytes`` returned it.
    """
    return Image.frombytes(mode, size, data)
