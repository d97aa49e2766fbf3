"""A record of a cache that describes what it does not have is no record: the sample is loaded."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from threadloader.datasets import Cached

HEAD, BODY = struct.Struct("<4sI"), struct.Struct("<QQ")
BYTES = b"AAAAAAAA" * 20

FORGED: dict[str, Any] = {
    "objects": ["array", "|O", 4],
    "structures": ["array", "O,O", 1],
    "no kind": ["array", "|V0", 2**40],
    "no bytes an item": ["array", "|S0", 1],
    "long items": ["array", "<U1000000000"],
    "no character": ["scalar", "<U2"],
    "no unit of time": ["array", "<M8[0s]", 1],
    "too many items": ["array", "<f4", 2**62],
    "a negative length": ["array", "<f4", -1],
    "a length that is no number": ["tensor", "<f4", 1.0],
    "a shape that is none": ["array", "<f4", "12"],
    "too many dimensions": ["array", "<f4", *[1] * 70],
    "negative bytes": ["bytes", -8],
    "more than it has": ["list", ["bytes", 100], ["bytes", 100]],
    "a large image": ["image", "L", 10**6, 10**6],
    "a negative image": ["image", "RGB", -2, -8],
    "an image of no pixels": ["image", "L", 0, 10**9],
    "an image of no mode": ["image", "P", 4, 4],
    "another kind": ["set", "<f4", 1],
    "nothing": [],
    "a key that has no hash": ["dict", [["list"]], [1]],
    "deeper than the stack": b"[" * 100_000,
    "no JSON": b"\xff",
}


def record(head: Any) -> bytes:
    """Return a record with a checksum that is right."""
    told = head if isinstance(head, bytes) else json.dumps(head).encode()
    body = BODY.pack(0, len(told)) + told + BYTES
    return HEAD.pack(b"tls3", zlib.crc32(body)) + body


def keep(folder: Path, head: Any) -> None:
    """Put a record in the place of the first sample's, as another process could."""
    assert Cached([7], folder, key="k")[0] == 7
    (path,) = folder.rglob("*.kept")
    path.write_bytes(record(head))


@pytest.mark.parametrize("head", FORGED.values(), ids=list(FORGED))
def test_a_record_that_describes_more_than_it_has_is_none(tmp_path: Path, head: Any) -> None:
    pytest.importorskip("PIL")
    if isinstance(head, list) and "tensor" in head:
        pytest.importorskip("torch")
    keep(tmp_path, head)
    assert Cached([7], tmp_path, key="k", checks=0)[0] == 7


def test_the_same_record_with_what_it_has_is_one(tmp_path: Path) -> None:
    keep(tmp_path, ["scalar", "<i8"])
    assert Cached([7], tmp_path, key="k", checks=0)[0] == 0x4141414141414141
