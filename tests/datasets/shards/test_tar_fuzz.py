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
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.damage import DAMAGES
from support.made_shards import ENDINGS, compressed, members_of, tar_bytes

from threadloader.datasets import TarShards, TarStream
from threadloader.errors import DataError

FILES = 120  # of each kind
FORMATS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]


def originals(rng: Random) -> dict[str, dict[str, bytes]]:
    """Return samples, one of which has a name that needs headers of its own."""
    names = ["a/0", "a/1", f"{'f' * 70}/{'k' * 60}", "caf\u00e9/2"]
    return {
        name: {"cls": b"7", "bin": rng.randbytes(rng.randrange(3000)), "txt": b"text " * 30}
        for name in names[: rng.randint(1, 4)]
    }


def whole(samples: dict[str, dict[str, bytes]], rng: Random) -> bytes:
    return tar_bytes(members_of(samples), rng.choice(FORMATS)).rstrip(b"\0") + bytes(1024)


def read(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], DataError | None]:
    """Return the samples of a shard up to an error, and the error."""
    reading = TarStream(path).read_shard(0)
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
