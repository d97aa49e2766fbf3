"""Image decoding: a file's bytes become an array of RGB, upright, of one size.

Pillow reads each header and decides what the picture means.  A faster decoder may give the pixels
of a plain JPEG, which take most of the time; what it refuses, Pillow decodes or refuses.  So all
decoders give the same picture, bit for bit if they have the same libjpeg-turbo.

The fast ones are wrappers of libjpeg-turbo with one API.  leanjpeg-simple is a fork of simplejpeg
for Python 3.13 and later that runs without the GIL.  simplejpeg would switch the GIL back on for
the whole process, so a free-threaded build never imports it.

This is the only dataset module that imports Pillow.  Its switch to accept broken files
(``ImageFile.LOAD_TRUNCATED_IMAGES``) is the user's: if it is on, they are accepted here, too.

Source: https://github.com/jfolz/simplejpeg, https://github.com/vxlk/leanjpeg
"""

from __future__ import annotations

import functools
import importlib
import io
import sysconfig
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

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
    from collections.abc import Callable

    from numpy.typing import NDArray

    Pixels = Image.Image | NDArray[np.uint8]  # RGB; an array has shape (height, width, 3)


Layout = Literal["HWC", "CHW"]

# 256 MiB of RGB.  Source: Pillow warns of larger ones, Image.MAX_IMAGE_PIXELS.
MAX_PIXELS = 89_478_485

# A JPEG that is made smaller while it is decoded stays at least this many times larger than the
# target.  The resize filter makes the last reduction, so pictures look alike.
# Source: `reducing_gap` of Pillow's Image.thumbnail, with its default.
GAP = 2.0


# Distribution and module of decoders of JPEGs, the fastest first.
FAST = {"leanjpeg-simple": "leanjpeg_simple", "simplejpeg": "simplejpeg"}
NEEDS_GIL = {"simplejpeg"}


@functools.cache
def jpeg_decoder(name: str) -> Callable[..., Any] | None:
    """Return what decodes plain JPEGs.

    Args:
        name: Of a distribution.

    Returns:
        A function of the bytes and ``"RGB"``, with ``min_height=`` and ``min_width=`` it decodes at
        the smallest of libjpeg-turbo's scales that reaches them.  None if Pillow decodes them as it
        does everything else.

    Raises:
        ModuleNotFoundError: The decoder is not installed.
        ValueError: There is no such decoder, or it would switch the GIL back on.
    """
    if name == "pillow":
        return None
    if name not in FAST:
        raise ValueError(
            f"decoder={name!r} is none of 'auto', {', '.join(map(repr, FAST))}, 'pillow'"
        )
    if name in NEEDS_GIL and sysconfig.get_config_var("Py_GIL_DISABLED"):
        msg = f"decoder={name!r} would switch the GIL back on: use leanjpeg-simple"
        raise ValueError(msg)
    try:
        module = importlib.import_module(FAST[name])
    except ModuleNotFoundError as error:
        error.add_note(f"decoder={name!r}: pip install {name}")
        raise
    if hasattr(module, "set_handle_pool_size"):
        # leanjpeg-simple 0.1.0 keeps the tables of the last image in a handle that it uses again.
        # A damaged image without tables would be decoded with them, to a wrong picture.
        module.set_handle_pool_size(0)
    found: Callable[..., Any] = module.decode_jpeg
    return found


@functools.cache
def installed_decoders() -> tuple[str, ...]:
    """Return the decoders that this interpreter can use, the fastest first."""
    found = []
    for name in FAST:
        with suppress(ImportError, ValueError):  # missing, broken, or not for this build
            jpeg_decoder(name)
            found.append(name)
    return (*found, "pillow")


def checked_decoder(name: str) -> str:
    """Return the name of a decoder, of the fastest one for ``"auto"``; raises as `jpeg_decoder`."""
    name = installed_decoders()[0] if name == "auto" else name
    jpeg_decoder(name)
    return name


def decode_image(
    data: bytes,
    *,
    size: tuple[int, int] | None = None,
    layout: Layout = "HWC",
    decoder: str = "auto",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """Decode an image: JPEG, PNG, WebP, GIF, BMP, PPM and PGM, or TIFF.

    - EXIF's orientation is applied.
    - Grey becomes three equal channels, palettes their colours.  CMYK is converted by Pillow's
      formula, without a colour profile.
    - Samples of 16 bits keep their high byte, in grey and in colour.  Floats and integers beyond
      16 bits are an error, since nothing says which values are black and white.
    - Transparency is dropped, as by torchvision and OpenCV: the colours below it are seen.
    - An animation, or a file of several pages, gives its first picture.

    Args:
        data: The file's bytes, all of them.
        size: Height and width, in pixels.  The picture is scaled so that it just covers them, by
            Pillow's ``BILINEAR`` (a triangle as wide as the reduction, so without aliasing), and
            cropped evenly on both sides.  A JPEG may be made 2, 4 or 8 times smaller while it is
            decoded, but not below twice the size.  None: as it is.
        layout: ``"HWC"`` for (height, width, 3), ``"CHW"`` for (3, height, width).
        decoder: ``"auto"`` for the fastest that is installed, or a name; see `ImageFolder`.
        max_pixels: Most pixels (width times height) that are decoded.

    Returns:
        A new array, C-contiguous and writable.

    Raises:
        ModuleNotFoundError: That decoder is not installed.
        ValueError: The data is no image, is damaged or truncated, or has more than ``max_pixels``;
            or there is no decoder of that name.  The caller knows the file, and adds its path.
    """
    decode_jpeg = jpeg_decoder(checked_decoder(decoder))
    try:
        picture = Picture(data, max_pixels)
        orientation = picture.orientation
        if size is None:
            image = _load(picture, data, decode_jpeg, 1)
        else:
            turned = size if orientation < 5 else size[::-1]  # of the picture in the file
            scale, box = _covering(picture, turned)
            loaded = _load(picture, data, decode_jpeg, scale)
            whole = Image.fromarray(loaded) if isinstance(loaded, np.ndarray) else loaded
            image = whole.resize(turned[::-1], Image.Resampling.BILINEAR, box=box)
        pixels = image if isinstance(image, np.ndarray) else np.array(image)
    except Exception as error:  # Pillow's: SyntaxError, struct.error, EOFError, many more
        raise ValueError(_reason(error)) from error
    pixels = _upright(pixels, orientation)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1) if layout == "CHW" else pixels)


def _load(
    picture: Picture, data: bytes, decode_jpeg: Callable[..., Any] | None, scale: int
) -> Pixels:
    """Decode the pixels; of a JPEG each side is divided by ``scale`` and rounded up."""
    if decode_jpeg is not None and picture.is_plain_jpeg:
        height, width = -(-picture.height // scale), -(-picture.width // scale)
        least = {"min_height": height, "min_width": width} if scale > 1 else {}
        # A file that a fast decoder refuses may be odd or damaged: Pillow finds out.
        with suppress(Exception):
            pixels: NDArray[np.uint8] = decode_jpeg(data, "RGB", **least)
            if pixels.shape == (height, width, 3):
                return pixels
    return picture.load(scale)


def _covering(
    picture: Picture, size: tuple[int, int]
) -> tuple[int, tuple[float, float, float, float]]:
    """Return the scale to decode at, and the box of the decoded picture that becomes ``size``."""
    height, width = picture.height, picture.width
    ratio = min(height / size[0], width / size[1])  # of the picture's pixels to the target's
    scale = 1
    if picture.is_jpeg:
        scale = next((power for power in (8, 4, 2) if ratio >= GAP * power), 1)
    box_height, box_width = min(height, size[0] * ratio), min(width, size[1] * ratio)
    left, top = (width - box_width) / 2, (height - box_height) / 2
    right, bottom = left + box_width, top + box_height
    return scale, (left / scale, top / scale, right / scale, bottom / scale)


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return the picture upright, as a view.

    Source: the table of the tag Orientation in the EXIF standard (CIPA DC-008).
    """
    if orientation > 4:  # rows are columns
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return pixels


def _reason(error: Exception) -> str:
    """Return one line on what is wrong."""
    if isinstance(error, UnidentifiedImageError):  # its message is an address in memory
        return "no image that Pillow can read"
    line = next(iter(str(error).splitlines()), "")
    return f"no whole image: {line or type(error).__name__}"


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


def image_of(mode: str, size: tuple[int, int], data: bytes) -> Image.Image:
    """Return an image of these pixels.

    Args:
        mode: Pillow's.
        size: Width and height.
        data: As ``Image.tobytes`` returned it.
    """
    return Image.frombytes(mode, size, data)
