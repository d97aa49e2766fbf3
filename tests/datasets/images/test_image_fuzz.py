"""Damaged image files: a picture of the right shape or a DataError, and nothing else ever.

``THREADLOADER_FUZZ_SEED`` (0) makes another choice of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("PIL")

from pathlib import Path

from photographs import every_format
from support.damage import DAMAGES, Damage

from threadloader.datasets import ImageFolder
from threadloader.datasets._images.decode import decode_image, installed_decoders
from threadloader.errors import DataError

COUNT = 150  # for each decoder
SEED = os.environ.get("THREADLOADER_FUZZ_SEED", "0")
SIZES = (None, (24, 20))
LIMIT = 1 << 20  # pixels: a header that says more is a bomb
FILES = every_format(40, 33)


def flip_header(data: bytes, rng: random.Random) -> Damage:
    """Put what is rare in numbers into some of the first bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        changed[rng.randrange(min(64, len(data)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(changed), range(64)


def splice(data: bytes, rng: random.Random) -> Damage:
    """Another file's header, this file's body."""
    cut = rng.randrange(2, 200)
    return rng.choice(list(FILES.values()))[:cut] + data[cut:], range(cut)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged metadata
@pytest.mark.parametrize("decoder", installed_decoders())
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
        name, damage, size = (
            rng.choice(list(FILES)),
            rng.choice([*DAMAGES, flip_header, splice]),
            rng.choice(SIZES),
        )
        data, _ = damage(FILES[name], rng)
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
        same = decode_image(data, decoder="pillow", max_pixels=LIMIT, size=size)
        assert np.array_equal(image, same), where
    assert found["errors"] + found["pictures"] == COUNT
    assert found["errors"] > COUNT / 2
    assert found["pictures"] > COUNT / 10
