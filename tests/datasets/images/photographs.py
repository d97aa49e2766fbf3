"""Pictures for the tests of decoders: made here, like photographs, in every format and mode."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

__all__ = ["encoded", "every_format", "photograph", "png16"]


@functools.cache
def photograph(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return RGB with what photographs have: soft colour, edges, noise, no symmetry."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[0:height, 0:width] / max(height, width)
    waves = rng.uniform(1, 9, (3, 2))
    soft = np.stack([np.sin(a * down + b * across + a) for a, b in waves], axis=-1)
    disc = (down - 0.3) ** 2 + (across - 0.6) ** 2 < 0.04
    pixels = 120 + 70 * soft + 60 * disc[..., None] + rng.normal(0, 4, (height, width, 1))
    pixels[down > 0.7 + 0.2 * across] *= (0.4, 0.7, 1.0)
    photo = pixels.clip(0, 255).astype(np.uint8)
    photo.flags.writeable = False  # the tests share it
    return photo


def encoded(picture: Image.Image | NDArray[Any], form: str = "JPEG", **options: Any) -> bytes:
    """Return a file's bytes."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png16(samples: NDArray[np.uint16]) -> bytes:
    """Return a PNG of 16 bits: grey, grey and alpha, RGB or RGBA, which Pillow can't all write."""
    height, width, channels = samples.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


@functools.cache
def every_format(height: int, width: int) -> dict[str, bytes]:
    """Return one picture in all formats and modes that this Pillow can write."""
    image = Image.fromarray(photograph(height, width))
    grey, palette = image.convert("L"), image.quantize(64)
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    alpha = image.copy()
    alpha.putalpha(grey)
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {
        "444.jpg": encoded(image, subsampling=0),
        "progressive.jpg": encoded(image, progressive=True),
        "turned.jpg": encoded(image, exif=turned),
        "cmyk.jpg": encoded(image.convert("CMYK")),
        "rgb.png": encoded(image, "PNG"),
        "rgba.png": encoded(alpha, "PNG"),
        "grey16.png": encoded(deep, "PNG"),
        "rgb16.png": png16(photograph(height, width).astype(np.uint16) * 257),
        "palette.png": encoded(palette, "PNG", transparency=bytes(range(64))),
        "bits.png": encoded(grey.convert("1"), "PNG"),
        "palette.gif": encoded(palette, "GIF"),
        "rgb.bmp": encoded(image, "BMP"),
        "grey.pgm": encoded(grey, "PPM"),
        "grey16.tif": encoded(deep, "TIFF"),
    }
    if features.check("webp"):
        files["lossy.webp"] = encoded(image, "WEBP")
        files["alpha.webp"] = encoded(alpha, "WEBP", lossless=True)
    if features.check("libtiff"):
        files["lzw.tif"] = encoded(image, "TIFF", compression="tiff_lzw")
        files["jpeg.tif"] = encoded(image, "TIFF", compression="jpeg")
        files["deflate.tif"] = encoded(palette, "TIFF", compression="tiff_adobe_deflate")
    return files
