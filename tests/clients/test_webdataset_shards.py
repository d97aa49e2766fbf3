"""The shards that webdataset writes and reads, written and read by others: the same samples."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("webdataset")

import numpy as np
import webdataset as wds
from torch.utils.data import DataLoader
from webdataset.tariterators import base_plus_ext

from threadloader import ThreadLoader
from threadloader.datasets import TarShards, TarStream
from threadloader.datasets._tar.samples import split_name

ENDINGS = [".tar", ".tar.gz", *([".tar.zst"] if shutil.which("zstd") else [])]
each_ending = pytest.mark.parametrize("ending", ENDINGS)
COUNT = 23


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        "__key__": f"class{number % 3}/photo {number:03}",
        "png": rng.integers(0, 255, (5, 4, 3), np.uint8),
        "left.npy": rng.normal(size=(2, 3)).astype(np.float32),
        "npz": {"a": np.arange(number), "b": np.array(float(number))},
        "cls": number,
        "json": {"number": number, "name": "é"},
        "txt": f"text {number}\n",
        "bin": bytes(number * 50),
    }


@pytest.fixture
def plain(tmp_path: Path) -> list[str]:
    """Four shards, one of one sample, as webdataset's ShardWriter leaves them."""
    pattern = str(tmp_path / "shard-%03d.tar")
    with wds.ShardWriter(pattern, maxcount=7, verbose=0) as writer:
        for number in range(COUNT - 1):
            writer.write(sample(number))
    with wds.TarWriter(pattern % 4) as tar:
        tar.write(sample(COUNT - 1))
    return sorted(map(str, tmp_path.iterdir()))


def packed(paths: list[str], ending: str) -> tuple[list[str], list[str]]:
    """Return the shards compressed, as we read them and as webdataset does."""
    if ending == ".tar":
        return paths, paths
    found = []
    for path in paths:
        target = path.removesuffix(".tar") + ending
        if ending == ".tar.gz":
            Path(target).write_bytes(gzip.compress(Path(path).read_bytes()))
        else:
            subprocess.run(["zstd", "-q", path, "-o", target], check=True)  # noqa: S607
        found.append(target)
    return found, [f"pipe:zstd -dcq {path}" if ending == ".tar.zst" else path for path in found]


def by_webdataset(urls: list[str]) -> wds.WebDataset:
    return wds.WebDataset(urls, shardshuffle=False)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def without_place(read: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in read.items() if name not in {"__url__", "__local_path__"}
    }


@each_ending
def test_bytes_are_the_same_in_the_same_order(plain: list[str], ending: str) -> None:
    mine, theirs = packed(plain, ending)
    expected = [without_place(read) for read in by_webdataset(theirs)]
    assert len(expected) == COUNT
    assert list(TarStream(mine, decode=False)) == expected
    if ending == ".tar":
        assert list(TarShards(mine, decode=False)) == expected


@each_ending
def test_decoded_samples_are_the_same(plain: list[str], ending: str) -> None:
    mine, theirs = packed(plain, ending)
    expected = [without_place(read) for read in by_webdataset(theirs).decode("rgb8")]
    found = list(TarStream(mine))
    assert len(found) == COUNT
    assert all(map(same, found, expected))


def test_fields_are_those_of_to_tuple(plain: list[str]) -> None:
    dataset = by_webdataset(plain).decode("rgb8").to_tuple("jpg;png", "cls", "__key__")
    for found in (
        TarStream(plain, fields=("jpg;png", "cls", "__key__")),
        TarShards(plain, fields=("jpg;png", "cls", "__key__")),
    ):
        assert all(
            np.array_equal(one[0], other[0]) and one[1:] == other[1:]
            for one, other in zip(found, dataset, strict=True)
        )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_read_the_shards_that_webdataset_s_would(plain: list[str], workers: int) -> None:
    def plain_batches(batches: Any) -> list[Any]:
        return [(x.tolist(), y.tolist()) for x, y in batches]

    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers}
    theirs = by_webdataset(plain).decode().to_tuple("left.npy", "cls")
    expected = plain_batches(DataLoader(theirs, **options))
    mine = TarStream(plain, fields=("left.npy", "cls"))
    assert plain_batches(ThreadLoader(mine, **options)) == expected
    assert plain_batches(DataLoader(mine, **options)) == expected  # worker processes know them, too


def test_names_are_split_as_webdataset_does() -> None:
    names = [
        "a.b",
        "a/b.c.D",
        "./a.b",
        "a.b/c.d",
        "../a.x",
        "/a.b",
        "a",
        "a/b",
        "a.",
        ".a",
        "a b.c",
    ]
    for name in names:
        key, extension = base_plus_ext(name)
        expected = None if key is None else (key, extension.lower())
        assert split_name(name) == expected, name
    # Another on purpose: there the key is the folder, for all hidden files in it.
    assert base_plus_ext("a/.b.c") == ("a/", "b.c")
    assert split_name("a/.b.c") is None
