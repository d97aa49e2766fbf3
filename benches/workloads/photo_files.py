"""The photo files: crops of real photos, re-encoded to 500x375, made once.

scikit-image and scikit-learn ship the photos in their wheels, so no network is
needed. They are not on every interpreter that is measured, so one that has them
makes the files and all others only read them.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image as Photo

__all__ = ["count_photo_files", "make_photo_files", "photo_files"]

COUNT = 256
SIZE = (500, 375)  # the average of ImageNet, about
QUALITY = 92
# A folder's name says what is in it: files of another recipe are never mixed in.
NAME = f"photos-{SIZE[0]}x{SIZE[1]}-q{QUALITY}-{COUNT}-v1"
# In the wheels of scikit-image 0.19 and later; colour photos of things, not textures.
SKIMAGE_FILES = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)
SKLEARN_FILES = ("china.jpg", "flower.jpg")


def cache_folder() -> Path:
    """Return the folder for files that benchmarks share.

    ``THREADLOADER_BENCH_CACHE`` where it is set, else the user's cache folder.
    """
    if chosen := os.environ.get("THREADLOADER_BENCH_CACHE"):
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "threadloader-bench"


def photo_files() -> list[Path]:
    """Return the files in order.

    Raises:
        FileNotFoundError: They have not been made yet.
    """
    files = sorted((cache_folder() / NAME).glob("*.jpg"))
    if len(files) != COUNT:
        raise FileNotFoundError(
            f"found {len(files)} of {COUNT} photos in {cache_folder() / NAME}: run "
            "`python -m benches.workloads.photo_files` with an interpreter that has "
            "pillow, scikit-image and scikit-learn"
        )
    return files


def make_photo_files() -> list[Path]:
    """Make the files where they are missing, and return them.

    The crops are drawn with a fixed seed. The folder appears complete or not at
    all, so that two processes may try at the same time.

    Raises:
        ModuleNotFoundError: This interpreter lacks Pillow, scikit-image or
            scikit-learn.
    """
    try:
        return photo_files()
    except FileNotFoundError:
        pass
    originals = list(_originals())
    target = cache_folder() / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / NAME
        made.mkdir()
        for number in range(COUNT):
            crop = _crop(originals[number % len(originals)], rng)
            crop.save(made / f"{number:04}.jpg", quality=QUALITY)
        shutil.rmtree(target, ignore_errors=True)  # incomplete, from elsewhere
        try:
            made.rename(target)
        except OSError:
            photo_files()  # another process was first; raises if it was not
    return photo_files()


def count_photo_files() -> int:
    """Make the files where they are missing; return how many there are."""
    return len(make_photo_files())


def _originals() -> Iterator[Photo]:
    """Open the photos that the two packages ship."""
    from importlib import resources

    from PIL import Image

    for package, names in (
        ("skimage.data", SKIMAGE_FILES),
        ("sklearn.datasets.images", SKLEARN_FILES),
    ):
        for name in names:
            with resources.as_file(resources.files(package) / name) as path:
                yield Image.open(path).convert("RGB")


def _crop(photo: Photo, rng: random.Random) -> Photo:
    """Return a random 4:3 crop of most of the photo, mirrored half of the time."""
    from PIL import Image

    width = min(photo.width, photo.height * 4 // 3) * rng.uniform(0.75, 1.0)
    height = width * 3 / 4
    left = rng.uniform(0, photo.width - width)
    top = rng.uniform(0, photo.height - height)
    crop = photo.resize(SIZE, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


if __name__ == "__main__":
    files = make_photo_files()
    size = sum(file.stat().st_size for file in files) / len(files)
    print(f"{len(files)} photos of {size / 1024:.0f} KiB on average in {files[0].parent}")
