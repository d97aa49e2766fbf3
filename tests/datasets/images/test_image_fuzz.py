"""Damaged image files: a picture of the right shape or a DataError, and nothing else ever.

``THREADLOADER_FUZZ_SEED`` (0) makes another choice of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("PIL")

from photographs import every_format

from threadloader.datasets import ImageFolder
from threadloader.datasets._images.decode import decode
from threadloader.datasets._images.jpeg_decoders import installed_decoders
from threadloader.datasets._images.pillow import NAME
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT = 500  # for each decoder
SEED = os.environ.get("THREADLOADER_FUZZ_SEED", "0")
SIZES = (None, (24, 20))
LIMIT = 1 << 20  # pixels: a header that says more is a bomb
FILES = every_format(40, 33)


def flip_bits(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def flip_header(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 4))):
        data[rng.randrange(min(64, len(data)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    return data


def truncate(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def splice(data: bytearray, rng: random.Random) -> bytearray:
    """Another file's header, this file's body."""
    cut = rng.randrange(2, 200)
    return bytearray(rng.choice(list(FILES.values()))[:cut]) + data[cut:]


def overwrite(data: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.randrange(1, 64))
    data[start:stop] = rng.randbytes(stop - start) if rng.random() < 0.5 else bytes(stop - start)
    return data


def shuffle_parts(data: bytearray, rng: random.Random) -> bytearray:
    first, second = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:first] + data[second:] + data[first:second]


DAMAGES: list[Callable[[bytearray, random.Random], bytearray]] = [
    *(flip_bits, flip_header, truncate, truncate, splice, overwrite, shuffle_parts)
]


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged metadata
@pytest.mark.parametrize("decoder", [decoder.name for decoder in installed_decoders()])
def test_a_damaged_image_is_a_picture_or_an_error_with_its_path(
    tmp_path: Path, decoder: str
) -> None:
    path = tmp_path / "class" / "image.jpg"
    path.parent.mkdir()
    path.touch()
    folders = {
        size: ImageFolder(tmp_path, decoder=decoder, max_pixels=LIMIT, size=size) for size in SIZES
    }
    found: Counter[str] = Counter()
    for number in range(COUNT):
        rng = random.Random(f"{SEED}-{number}")
        name, damage, size = rng.choice(list(FILES)), rng.choice(DAMAGES), rng.choice(SIZES)
        data = bytes(damage(bytearray(FILES[name]), rng))
        path.write_bytes(data)
        where = f"{name}, {damage.__name__}, number {number}"
        try:
            image, _ = folders[size][0]
        except DataError as error:
            found["errors"] += str(error).startswith(f"{path}: no ")
            continue
        found["pictures"] += 1
        assert image.dtype == np.uint8, where
        assert image.shape[2] == 3, where
        assert size is None or image.shape[:2] == size, where
        # Pillow's picture; of a truncated file that of the whole one: only a trailer may lack.
        same = decode(data, decoder=NAME, max_pixels=LIMIT, size=size)
        assert np.array_equal(image, same), where
        if damage is truncate:
            whole = decode(FILES[name], decoder=decoder, size=size)
            assert np.array_equal(image, whole), where
            found["trailers"] += 1
    assert found["errors"] + found["pictures"] == COUNT
    assert found["errors"] > COUNT / 2
    assert found["pictures"] > COUNT / 10
    assert found["trailers"] < COUNT / 100
