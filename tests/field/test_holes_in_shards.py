"""Shards with zeros where data was: an error that names the place, and never an early end."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.made_shards import ENDINGS, compressed, tar_bytes

from threadloader import ThreadLoader
from threadloader.datasets import TarShards, TarStream
from threadloader.errors import DataError

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
RECORD = tarfile.RECORDSIZE  # bytes
each_ending = pytest.mark.parametrize("ending", ENDINGS)


def archive(first: int, stop: int, format_: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return an archive in which each sample takes 1 KiB."""
    return tar_bytes([(f"{n:03d}.cls", b"%d" % n) for n in range(first, stop)], format_)


def hole(data: bytes, start: int, stop: int) -> bytes:
    return data[:start] + bytes(stop - start) + data[stop:]


def written(folder: Path, data: bytes, ending: str = ".tar") -> Path:
    path = folder / f"it{ending}"
    path.write_bytes(compressed(data, ending))
    return path


def readers(path: Path) -> list[Callable[[], list[int]]]:
    """Return functions that read a shard's samples in one worker, in each way that there is."""

    def read(dataset: Any) -> list[int]:
        samples = ThreadLoader(dataset(path), batch_size=None, threads=1)
        return [sample["cls"] for sample in samples]

    plain = path.suffix == ".tar"
    return [partial(read, dataset) for dataset in (TarStream, *([TarShards] if plain else []))]


@each_ending
@pytest.mark.parametrize("blocks", [1, 2, 20])
def test_a_hole_between_samples_is_an_error_that_names_file_and_offset(
    tmp_path: Path, ending: str, blocks: int
) -> None:
    start = 20 << 10
    path = written(tmp_path, hole(archive(0, 100), start, start + 512 * blocks), ending)
    behind = start + 512 * blocks
    for read in readers(path):
        with pytest.raises(DataError, match=re.escape(f"it{ending}, offset {behind:,}: data")):
            read()


@each_ending
def test_a_hole_up_to_the_end_is_an_error(tmp_path: Path, ending: str) -> None:
    data = archive(0, 100)
    path = written(tmp_path, hole(data, 20 << 10, len(data)), ending)
    for read in readers(path):
        with pytest.raises(DataError, match=r"offset 20,480: 92,160 bytes of zeros follow"):
            read()


def test_a_file_of_zeros_alone_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, bytes(100_000))
    for read in readers(path):
        with pytest.raises(DataError, match="zeros follow the last member"):
            read()


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("block", [1, 2], ids=["name", "header"])
def test_a_hole_in_a_long_name_is_an_error(tmp_path: Path, format_: int, block: int) -> None:
    members = [(f"{'n' * 150}{n}.cls", b"%d" % n) for n in range(4)]
    data = tar_bytes(members, format_)
    path = written(tmp_path, hole(data, 512 * block, 512 * (block + 1)))
    for read in readers(path):
        with pytest.raises(DataError, match="offset"):
            read()


@each_ending
@pytest.mark.parametrize("rest", [b"x", archive(3, 50)], ids=["a byte", "an archive"])
def test_what_follows_an_archive_is_an_error(tmp_path: Path, ending: str, rest: bytes) -> None:
    path = written(tmp_path, archive(0, 3) + rest, ending)
    for read in readers(path):
        with pytest.raises(DataError, match=r"offset 10,240: data follows .*several archives"):
            read()


@each_ending
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("count", [0, 9, 25])
def test_an_end_as_writers_make_it_is_none_to_speak_of(
    tmp_path: Path, ending: str, format_: int, count: int
) -> None:
    data = archive(0, count, format_)
    assert len(data) % RECORD == 0
    end = len(data.rstrip(b"\0"))
    end += -end % 512
    for size in (end + 512, end + 1024, len(data), len(data) + -len(data) % (128 << 10)):
        path = written(tmp_path, data[:size].ljust(size, b"\0"), ending)
        for read in readers(path):
            assert read() == list(range(count))
