"""Damage image files and load them; a process of its own, which a crash or a hang ends.

``python image_fuzz.py DECODER COUNT SEED FOLDER [--lenient]`` prints how many were pictures and
how many errors, as JSON.  ``--lenient`` sets Pillow's LOAD_TRUNCATED_IMAGES.  FOLDER is made.
"""

# ruff: noqa: E402  # torch is hidden from what is imported below: importing it takes seconds

from __future__ import annotations

import faulthandler
import json
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.modules["torch"] = None  # type: ignore[assignment]

import numpy as np
from photographs import every_format
from PIL import ImageFile

from threadloader.datasets._images.decode import decode
from threadloader.datasets._images.image_folder import ImageFolder
from threadloader.datasets._images.pillow import NAME
from threadloader.errors import DataError

HANG = 120.0  # seconds, for ROUND images of less than milliseconds
ROUND = 100
SIZE = (24, 20)
JPEG = b"\xff\xd8"
LIMIT = 1 << 20  # pixels: a header that says more is a bomb


def flip_bits(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    for _bit in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def flip_header(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    for _byte in range(rng.choice((1, 1, 2, 4))):
        data[rng.randrange(min(64, len(data)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    return data


def truncate(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    return data[: rng.randrange(len(data))]


def splice(data: bytearray, rng: random.Random, others: list[bytes]) -> bytearray:
    """Another file's header, this file's body."""
    cut = rng.randrange(2, 200)
    return bytearray(rng.choice(others)[:cut]) + data[cut:]


def overwrite(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.randrange(1, 64))
    data[start:stop] = rng.randbytes(stop - start) if rng.random() < 0.5 else bytes(stop - start)
    return data


def shuffle_parts(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    first, second = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:first] + data[second:] + data[first:second]


KINDS = (flip_bits, flip_header, truncate, truncate, splice, overwrite, shuffle_parts)


def fuzz(decoder: str, count: int, seed: str, root: Path) -> Counter[str]:
    """Load damaged files one after the other.

    Raises:
        AssertionError: A picture of a wrong shape; of a JPEG, another than Pillow's; of a truncated
            file, another than of the whole one.
    """
    files = every_format(40, 33)
    names, whole = list(files), list(files.values())
    path = root / "class" / "image.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[0])
    sizes = (None, SIZE)
    folders = [ImageFolder(root, decoder=decoder, max_pixels=LIMIT, size=size) for size in sizes]
    intact = {name: decode(files[name], decoder=decoder) for name in names}
    found: Counter[str] = Counter()
    for number in range(count):
        if number % ROUND == 0:
            faulthandler.dump_traceback_later(HANG, exit=True)
        rng = random.Random(f"{seed}-{number}")
        name, damage, size = rng.choice(names), rng.choice(KINDS), rng.choice(sizes)
        data = damage(bytearray(files[name]), rng, whole)
        where = f"{name}, {damage.__name__}, number {number}"
        path.write_bytes(data)
        try:
            image, _ = folders[sizes.index(size)][0]
        except DataError as error:
            found["errors"] += str(error).startswith(f"{path}: no ")
            continue
        assert image.dtype == np.uint8, where
        assert image.shape[2] == 3, where
        assert size is None or image.shape[:2] == size, where
        if data.startswith(JPEG):  # other formats are Pillow's in any case
            same = decode(bytes(data), decoder=NAME, max_pixels=LIMIT, size=size)
            assert np.array_equal(image, same), where
        if damage is truncate:  # of what follows the picture only
            assert np.array_equal(decode(bytes(data), decoder=decoder), intact[name]), where
            found["trailers"] += 1
        found["pictures"] += 1
    faulthandler.cancel_dump_traceback_later()
    return found


if __name__ == "__main__":
    faulthandler.enable()
    warnings.simplefilter("ignore")  # Pillow's, of damaged metadata
    ImageFile.LOAD_TRUNCATED_IMAGES = "--lenient" in sys.argv
    name, count, seed, folder = sys.argv[1:5]
    print(json.dumps(fuzz(name, int(count), seed, Path(folder))))  # noqa: T201
