"""A copy of a dataset, pickled or not, reads what the dataset read before."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.child import run_child
from support.made_shards import COPIES, tar_bytes
from support.streams import Rows

import threadloader.datasets
from threadloader.datasets import (
    ArrayDataset,
    Cached,
    Lines,
    LineStream,
    Mixture,
    PerThread,
    RemoteFile,
    Retries,
    TarShards,
    TarStream,
    open_files,
)

MEMBERS = [
    (f"{n}.{extension}", text.encode())
    for n in range(3)
    for extension, text in (("cls", str(n)), ("txt", f"text {n}"))
]
URL = "memory://pickled/a.tar"
FIELDS = ("cls", "txt")
EPOCH = 10**18  # nanoseconds: an index remembers when its shard was changed


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images, a shard, and the shard behind a URL."""
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "0.ppm").write_bytes(b"P6 2 1 255\n" + bytes(range(6)))
    (tmp_path / "photos" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "a.tar").write_bytes(tar_bytes(MEMBERS))
    os.utime(tmp_path / "a.tar", ns=(EPOCH, EPOCH))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def remote_shard(files: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open(URL, "wb") as file:
        file.write((files / "a.tar").read_bytes())


def image_folder() -> Any:
    pytest.importorskip("PIL")
    return threadloader.datasets.ImageFolder("photos", size=2, decoder="pillow")


def parquet_rows() -> Any:
    pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pyarrow.table({"y": [1, 2, 3]}), "a.parquet", row_group_size=2)
    return threadloader.datasets.ParquetRows("a.parquet")


def in_third_epoch(dataset: Any) -> Any:
    dataset.set_epoch(2)
    return dataset


def rows_of(dataset: Any) -> list[Any]:
    return [dataset[row] for row in range(len(dataset))]


# How it is made, and what is read of it.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "ArrayDataset": (
        lambda: ArrayDataset({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}),
        lambda dataset: {key: row.tolist() for key, row in dataset[1].items()},
    ),
    "Cached": (lambda: Cached(range(3), "kept", key="a"), rows_of),
    "Cached in memory": (lambda: Cached(range(3), memory="1 MiB"), rows_of),
    "ImageFolder": (
        image_folder,
        lambda dataset: [(image.tolist(), label) for image, label in dataset],
    ),
    "LineStream": (
        lambda: in_third_epoch(LineStream("photos/a.txt", parse=bytes.decode, seed=5)),
        list,
    ),
    "Lines": (lambda: Lines("photos/a.txt", parse=bytes.decode), rows_of),
    "Mixture": (lambda: in_third_epoch(Mixture({"a": (range(9), 1), "b": (range(7), 2)})), rows_of),
    "MixtureStream": (
        lambda: in_third_epoch(Mixture({"a": (Rows(9), 1), "b": (range(7), 2)})),
        list,
    ),
    "ParquetRows": (parquet_rows, lambda dataset: dataset[[2, 0]]["y"].tolist()),
    "PerThread": (lambda: PerThread(list), lambda held: held()),
    "RemoteFile": (
        lambda: RemoteFile(URL, retries=Retries(attempts=2)),
        lambda file: file.read_at(0, 600),
    ),
    "Retries": (lambda: Retries(attempts=2), lambda retries: retries.attempts),
    "TarShards": (lambda: TarShards("a.tar", fields=FIELDS), rows_of),
    "TarStream": (
        lambda: in_third_epoch(TarStream("a.tar", fields=FIELDS, shuffle=2, seed=5)),
        list,
    ),
    "open_files": (
        lambda: open_files(["a.tar", URL]),
        lambda files: [file.read_at(0, 600) for file in files],
    ),
}


@pytest.mark.usefixtures("remote_shard")
@pytest.mark.parametrize("kept", COPIES)
@pytest.mark.parametrize("name", KINDS)
def test_a_copy_reads_the_same(name: str, kept: Callable[[Any], Any]) -> None:
    make, read = KINDS[name]
    made = make()
    assert read(kept(made)) == read(made)
    if hasattr(made, "close"):
        made.close()
        assert read(kept(made)) == read(made)


@pytest.mark.parametrize(
    "name", ["ArrayDataset", "ImageFolder", "RemoteFile", "Retries", "TarShards", "TarStream"]
)
def test_a_pickle_names_the_public_place_of_a_class(name: str) -> None:
    if name == "ImageFolder":
        pytest.importorskip("PIL")
    kind = getattr(threadloader.datasets, name)
    assert kind.__module__ == "threadloader.datasets"
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_asking_every_module_for_a_name_loads_no_decoder() -> None:
    code = (
        "import sys, pickle, threadloader.datasets as datasets\n"
        "before = set(sys.modules)\n"
        "for module in list(sys.modules.values()): getattr(module, 'decode_jpeg', None)\n"
        "print(*(set(sys.modules) - before))"
    )
    assert run_child(code) == (0, "", "")
