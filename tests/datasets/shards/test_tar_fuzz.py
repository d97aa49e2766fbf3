"""Damaged shards give the right samples or an error that says where, and nothing else.

What can be detected:

- In a compressed shard everything: zstd (with a checksum, as the command line writes it) and gzip
  tell at the end of the file, if not before.  Samples may have come by then; the error comes all
  the same.
- In a plain tar all that matters in headers, but for changes that leave the sum of their bytes as
  it was.  Data has no checksum, nor have long names, which are data of a header before: what was
  changed there is delivered, unless the decoder notices.  So is what was cut off or doubled, if it
  is whole members.
"""

from __future__ import annotations

import tarfile
import tracemalloc
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from support.made_shards import ENDINGS, compressed, members_of, tar_bytes

from threadloader.datasets import TarShards, TarStream
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = 200  # of each kind
LIMIT = 1 << 20
FORMATS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]

Damage = tuple[bytes, range]  # the file, and where it is not what it was, or begins to be shifted


def originals(rng: Random) -> dict[str, dict[str, bytes]]:
    """Return samples, one of which has a name that needs headers of its own."""
    names = ["a/0", "a/1", f"{'f' * 70}/{'k' * 60}", "caf\u00e9/2"]
    return {
        name: {"cls": b"7", "bin": rng.randbytes(rng.randrange(3000)), "txt": b"text " * 30}
        for name in names[: rng.randint(1, 4)]
    }


def whole(samples: dict[str, dict[str, bytes]], rng: Random) -> bytes:
    return tar_bytes(members_of(samples), rng.choice(FORMATS)).rstrip(b"\0") + bytes(1024)


def flipped(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :], range(at, at + 1)


def overwritten(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    new = rng.choice([rng.randbytes, bytes])(min(rng.randint(1, 700), len(data) - at))
    return data[:at] + new + data[at + len(new) :], range(at, at + len(new))


def cut_off(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    return data[:at], range(at, len(data))


def cut_out(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 1500) :], range(at, at + 1)


def doubled(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    again = data[at : at + rng.randint(1, 1500)]
    return data[:at] + again + data[at:], range(at, at + len(again) + 1)


def declared(data: bytes, rng: Random) -> Damage:
    """Put random octal digits in a block's size, with a checksum that is right."""
    at = rng.randrange(len(data) // 512) * 512
    block = bytearray(data[at : at + 512])
    block[124:135] = b"%011o" % rng.choice([rng.randrange(8**11), rng.randrange(5000)])
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + block + data[at + 512 :], range(at, len(data))


DAMAGES: list[Callable[[bytes, Random], Damage]] = [flipped, overwritten, cut_off, cut_out, doubled]


def read(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], DataError | None]:
    """Return the samples of a shard up to an error, and the error."""
    reading = TarStream(path, sample_limit=LIMIT).read_shard(0)
    samples: list[tuple[str, dict[str, Any]]] = []
    error = None
    try:
        samples.extend((sample.key, sample.members) for sample in reading)
    except DataError as caught:
        error = caught
    assert error is None or (error.path == str(path) and error.offset is not None)
    return samples, error


def as_written(samples: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    return {key: {ext: part.data for ext, part in parts.items()} for key, parts in samples}


def test_a_damaged_archive_gives_right_samples_or_an_error_at_random_and_in_order(
    tmp_path: Path,
) -> None:
    rng, path, errors = Random(17), tmp_path / "a.tar", 0
    for _ in range(FILES):
        samples = originals(rng)
        damaged, where = rng.choice(DAMAGES)(whole(samples, rng), rng)
        path.write_bytes(damaged)
        found, error = read(path)
        errors += error is not None
        end = 0  # of the member before: from there on are the headers of this one
        for key, parts in found:
            for ext, part in parts.items():
                if part.data != samples.get(key, {}).get(ext):
                    assert end <= where.stop
                    assert where.start < part.offset + part.size
                end = part.offset + part.size
        if error is None:
            dataset = TarShards(path, decode=False)
            assert {sample.pop("__key__"): sample for sample in dataset} == as_written(found)
        else:
            with pytest.raises(DataError):
                TarShards(path)
    assert errors > FILES / 3


def test_sizes_that_somebody_made_up_give_an_error_and_take_no_memory(tmp_path: Path) -> None:
    rng, path, errors = Random(18), tmp_path / "a.tar", 0
    tracemalloc.start()
    for _ in range(FILES // 5):
        path.write_bytes(declared(tar_bytes(members_of(originals(rng))), rng)[0])
        tracemalloc.reset_peak()
        errors += read(path)[1] is not None
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    tracemalloc.stop()
    assert errors > FILES / 40


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_a_damaged_compressed_archive_gives_right_samples_or_an_error(
    tmp_path: Path, ending: str
) -> None:
    rng, path, errors = Random(20), tmp_path / f"a{ending}", 0
    for _ in range(FILES):
        samples = originals(rng)
        path.write_bytes(rng.choice(DAMAGES)(compressed(whole(samples, rng), ending), rng)[0])
        found, error = read(path)
        errors += error is not None
        if error is None:
            assert as_written(found) == samples
    assert errors > FILES / 2
