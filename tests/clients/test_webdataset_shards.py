"""webdataset's pipelines, and its shards written and read by others: the same samples."""

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

from threadloader import ThreadLoader
from threadloader.datasets import TarShards, TarStream

ENDINGS = [".tar", ".tar.gz", *([".tar.zst"] if shutil.which("zstd") else [])]
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
def shards(tmp_path: Path) -> list[str]:
    """Four shards, one of one sample, as webdataset's ShardWriter leaves them."""
    pattern = str(tmp_path / "shard-%03d.tar")
    with wds.ShardWriter(pattern, maxcount=7, verbose=0) as writer:
        for number in range(COUNT - 1):
            writer.write(sample(number))
    with wds.TarWriter(pattern % 4) as tar:
        tar.write(sample(COUNT - 1))
    return sorted(map(str, tmp_path.iterdir()))


def pipeline(shards: list[str]) -> wds.DataPipeline:
    steps = (wds.SimpleShardList(shards), wds.split_by_worker, wds.tarfile_to_samples())
    return wds.DataPipeline(*steps, wds.decode(), wds.to_tuple("left.npy", "cls"))


def fluid(shards: list[str]) -> wds.WebDataset:
    dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False)
    return dataset.decode().to_tuple("left.npy", "cls")


def plain(batches: Any) -> list[Any]:
    return [(np.asarray(x).tolist(), np.asarray(y).tolist()) for x, y in batches]


@pytest.mark.parametrize("make", [pipeline, fluid])
@pytest.mark.parametrize(("workers", "batch_size"), [(1, 3), (2, None), (3, 3)])
def test_batches_are_those_of_torch_s_loader(
    shards: list[str], make: Any, workers: int, batch_size: int | None
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
    expected = plain(DataLoader(make(shards), **options))
    assert plain(ThreadLoader(make(shards), **options)) == expected
    mine = TarStream(shards, fields=("left.npy", "cls"))
    assert plain(ThreadLoader(mine, **options)) == expected
    assert plain(DataLoader(mine, **options)) == expected  # worker processes know them, too


# Its shards by our readers


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


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def without_place(read: dict[str, Any]) -> dict[str, Any]:
    place = ("__url__", "__local_path__")
    return {name: value for name, value in read.items() if name not in place}


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_samples_are_the_same_in_the_same_order(
    shards: list[str], ending: str, decode: bool
) -> None:
    mine, theirs = packed(shards, ending)
    dataset = wds.WebDataset(theirs, shardshuffle=False)
    expected = list(map(without_place, dataset.decode("rgb8") if decode else dataset))
    for kind in (TarStream, TarShards) if ending == ".tar" else (TarStream,):
        found = list(kind(mine, decode=decode))
        assert len(found) == len(expected) == COUNT
        assert all(map(same, found, expected))
