"""Photo-like JPEGs for a demo without photos: made once, kept in the temporary folder.

They have what decides the size of a JPEG and the time to decode it: a 1/f spectrum (power falls
with the square of the frequency), smooth gradients, sharp and blurred edges, sensor noise.
Every photo depends on its number alone, and a file gets its name when it is complete.  So a run
after an interrupted one, or beside another, only adds missing photos.
"""

from __future__ import annotations

import math
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from threadloader.cli.errors import CommandError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator
    from numpy.typing import NDArray

__all__ = ["HEIGHT", "PHOTOS", "WIDTH", "Studio", "make_photos", "photo_folder"]

PHOTOS = 256
WIDTH, HEIGHT = 500, 375  # pixels; the most frequent size in ImageNet
QUALITY = 87  # of the JPEG; with NOISE it gives the 40 to 80 KB of real ones
NOISE = 2.5  # standard deviation of the sensor's noise, in grey levels of 256
SIDE = 1024  # pixels, of the textures that photos are cut from


def photo_folder() -> Path:
    """Open this user's folder for photos, below the system's temporary folder.

    Raises:
        CommandError: It cannot be made, or someone else may write to it: names below /tmp
            can be guessed, and files of other users are not decoded here.
    """
    user = f"-{os.getuid()}" if sys.platform != "win32" else ""  # Windows: one for each user
    root = Path(tempfile.gettempdir(), f"threadloader-demo{user}")
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        info = root.lstat()
        if sys.platform != "win32" and (
            not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022
        ):
            raise CommandError(f"{printable(root)} must be a folder that only you can write to")
        folder = root / f"photos-{WIDTH}x{HEIGHT}-v1"
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {printable(root)}: {error.strerror}") from error
    return folder


def make_photos(folder: Path, count: int = PHOTOS) -> Iterator[Path]:
    """Yield the paths of photos 0 to ``count - 1``; make those that are not there yet.

    Raises:
        CommandError: A photo cannot be written.
    """
    studio: Studio | None = None
    for number in range(count):
        path = folder / f"{number:04d}.jpg"
        if not path.exists():
            studio = studio or Studio()
            try:
                _write_whole(path, studio.photo(number))
            except OSError as error:
                reason = error.strerror or str(error)
                raise CommandError(f"cannot write {printable(path)}: {reason}") from error
        yield path


def _write_whole(path: Path, image: Image.Image) -> None:
    """Write a JPEG that gets its name when it is complete."""
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            image.save(file, "JPEG", quality=QUALITY)
        with suppress(FileExistsError, PermissionError):  # Windows: another run reads its own
            os.replace(partial, path)  # noqa: PTH105  # partial is a str
    finally:
        Path(partial).unlink(missing_ok=True)


class Studio:
    """Makes photos, each from its number alone.

    The 1/f fields, which cost time, are made once and cut up; Pillow's C code puts a photo
    together.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        light = [_pink(rng) for _ in range(4)]
        tint = [_pink(rng) for _ in range(3)]
        self._textures = [
            _texture(light[number % 4], tint[number % 3], tint[(number + 1) % 3], rng)
            for number in range(8)
        ]
        self._noise = rng.normal(0.0, NOISE, (SIDE, SIDE, 3)).astype(np.int8)

    def photo(self, number: int) -> Image.Image:
        """Compose one photo of `WIDTH` x `HEIGHT` pixels, RGB."""
        rng = np.random.default_rng((1, number))
        image = Image.blend(self._cut(rng, WIDTH, HEIGHT), _gradient(rng), rng.uniform(0.35, 0.75))
        for _ in range(int(rng.integers(6, 16))):
            mask = _shape(rng)
            plain = Image.new("RGB", mask.size, _colour(rng))
            surface = Image.blend(self._cut(rng, *mask.size), plain, rng.uniform(0.2, 0.8))
            left = int(rng.integers(WIDTH)) - mask.width // 2
            top = int(rng.integers(HEIGHT)) - mask.height // 2
            image.paste(surface, (left, top), mask)
        top, left = _corner(rng, WIDTH, HEIGHT)
        noise = self._noise[top : top + HEIGHT, left : left + WIDTH]
        pixels = np.asarray(image, dtype=np.int16) + noise
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def _cut(self, rng: Generator, width: int, height: int) -> Image.Image:
        texture = self._textures[int(rng.integers(len(self._textures)))]
        top, left = _corner(rng, width, height)
        return texture.crop((left, top, left + width, top + height))


def _pink(rng: Generator) -> NDArray[np.float32]:
    """Draw a field of shape (SIDE, SIDE), mean 0 and deviation 1, whose amplitude falls as 1/f.

    Source: D. J. Field, "Relations between the statistics of natural images and the response
    properties of cortical cells", JOSA A 4 (1987).
    """
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :])
    frequency[0, 0] = math.inf  # no constant part
    phase = rng.uniform(0.0, 2 * math.pi, frequency.shape)
    field = np.fft.irfft2(np.exp(1j * phase) / frequency, (SIDE, SIDE))
    return np.asarray(field / field.std(), dtype=np.float32)


def _texture(
    light: NDArray[np.float32],
    warm: NDArray[np.float32],
    green: NDArray[np.float32],
    rng: Generator,
) -> Image.Image:
    """Colour a field; colours vary much less than brightness, as in photos."""
    ground = rng.uniform(70, 180, 3).astype(np.float32)
    contrast, colour = rng.uniform(35, 60), rng.uniform(6, 14)
    planes = (
        light * contrast + warm * colour,
        light * contrast + green * colour,
        light * contrast - warm * colour,
    )
    pixels = np.stack(planes, axis=-1) + ground
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _gradient(rng: Generator) -> Image.Image:
    """Blend two colours across the picture in a random direction, as sky and walls do."""
    angle = rng.uniform(0, 2 * math.pi)
    across = np.linspace(-0.5, 0.5, WIDTH) * math.cos(angle)
    down = np.linspace(-0.5, 0.5, HEIGHT) * math.sin(angle)
    share = (down[:, None] + across[None, :] + 0.71) / 1.42
    mask = Image.fromarray((share * 255).astype(np.uint8))
    size = (WIDTH, HEIGHT)
    return Image.composite(
        Image.new("RGB", size, _colour(rng)), Image.new("RGB", size, _colour(rng)), mask
    )


def _shape(rng: Generator) -> Image.Image:
    """Draw the mask of an ellipse or a polygon, in focus or out of it."""
    radius = rng.uniform(10, 130)  # pixels
    blur = max(0.0, rng.normal(0.5, 1.5))  # pixels
    middle = math.ceil(radius + 3 * blur)
    mask = Image.new("L", (2 * middle, 2 * middle))
    draw = ImageDraw.Draw(mask)
    if rng.random() < 0.5:
        wide, high = (radius * rng.uniform(0.4, 1.0, 2)).tolist()
        box = (middle - wide, middle - high, middle + wide, middle + high)
        draw.ellipse(box, fill=255)
    else:
        turns = np.sort(rng.uniform(0, 2 * math.pi, int(rng.integers(3, 9))))
        draw.polygon(
            [
                (middle + radius * math.cos(turn), middle + radius * math.sin(turn))
                for turn in turns.tolist()
            ],
            fill=255,
        )
    return mask.filter(ImageFilter.GaussianBlur(blur)) if blur else mask


def _colour(rng: Generator) -> tuple[int, int, int]:
    red, green, blue = (rng.integers(20, 235) + rng.integers(-20, 21, 3)).tolist()
    return red, green, blue


def _corner(rng: Generator, width: int, height: int) -> tuple[int, int]:
    return int(rng.integers(SIDE - height)), int(rng.integers(SIDE - width))
