"""Datasets of other libraries that keep samples in chunks: each sample once, for any threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader

SAMPLES = 100


@pytest.fixture(scope="module", autouse=True)
def _threads_of_zarr(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start what zarr has for all arrays and never ends: its loop, and here one thread for it."""
    with suppress(ImportError):
        import zarr  # noqa: PLC0415

        zarr.config.set({"threading.max_workers": 1})
        zarr.create_array(tmp_path_factory.mktemp("zarr"), shape=(1,), dtype="f4")[:] = 0


def sample(index: int) -> dict[str, Any]:
    return {"x": np.full(8, index, np.float32), "y": index}


def mds(folder: Path) -> Any:
    streaming = pytest.importorskip("streaming")
    columns = {"x": "ndarray:float32:8", "y": "int"}
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=2000) as writer:
        for index in range(SAMPLES):
            writer.write(sample(index))
    return streaming.StreamingDataset(local=str(folder), batch_size=4)


def litdata(folder: Path) -> Any:
    made = pytest.importorskip("litdata")
    writer = pytest.importorskip("litdata.streaming.writer").BinaryWriter(
        str(folder), chunk_bytes=2000
    )
    for index in range(SAMPLES):
        writer[index] = sample(index)
    writer.done()
    writer.merge(1)
    return made.StreamingDataset(str(folder))


class Rows:
    """Rows of a zarr array, over one of its stores."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def __getitem__(self, index: int) -> Any:
        return {"x": self.array[index], "y": index}


def zarr(folder: Path) -> Any:
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.LocalStore(folder)
    array = zarr.create_array(store, shape=(SAMPLES, 8), chunks=(7, 8), dtype="f4")
    array[:] = np.arange(SAMPLES)[:, None]
    return Rows(array)


class MapStyle:
    """A dataset by its indices: those of MDS and litdata are iterables, too."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@pytest.mark.parametrize("make", [mds, litdata, zarr])
def test_each_sample_comes_once_and_in_the_same_order(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    dataset = MapStyle(make(tmp_path / "data"))

    def epochs(threads: int) -> list[int]:
        with ThreadLoader(dataset, 8, shuffle=True, seed=1, threads=threads) as loader:
            batches = [batch for _ in range(2) for batch in loader]
        assert all((batch["x"][:, 0] == batch["y"]).all() for batch in batches)
        return [label for batch in batches for label in batch["y"].tolist()]

    wanted = epochs(0)
    assert sorted(wanted[:SAMPLES]) == list(range(SAMPLES))
    assert wanted[:SAMPLES] != wanted[SAMPLES:]
    for threads in (2, 4):
        assert epochs(threads) == wanted
