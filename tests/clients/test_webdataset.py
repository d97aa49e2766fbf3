"""webdataset: tar files, shared out by `get_worker_info`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("webdataset")

import numpy as np
import webdataset as wds
from torch.utils.data import DataLoader

from clients.points import WORKER
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Four tar files of five samples each."""
    paths = [tmp_path / f"shard-{number}.tar" for number in range(4)]
    for number, path in enumerate(paths):
        with wds.TarWriter(str(path)) as tar:
            for index in range(5 * number, 5 * number + 5):
                values = np.full(3, index, np.float32)
                tar.write({"__key__": f"{index:03}", "x.npy": values, "y.cls": index})
    return [str(path) for path in paths]


def pipeline(shards: list[str], visitors: list[str]) -> wds.DataPipeline:
    def note(sample: Any) -> Any:
        visitors.append(threading.current_thread().name)
        return sample

    return wds.DataPipeline(
        wds.SimpleShardList(shards),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.decode(),
        wds.to_tuple("x.npy", "y.cls"),
        wds.map(note),
    )


def plain(batches: Any) -> list[Any]:
    return [(np.asarray(x).tolist(), np.asarray(y).tolist()) for x, y in batches]


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_shard_is_read_by_one_worker(
    shards: list[str], workers: int, batch_size: int | None
) -> None:
    visitors: list[str] = []
    options = {"batch_size": batch_size, "num_workers": workers}
    expected = plain(DataLoader(pipeline(shards, []), **options))
    assert plain(ThreadLoader(pipeline(shards, visitors), **options)) == expected
    assert len(set(visitors)) == workers
    assert all(map(WORKER.fullmatch, visitors))


def test_the_fluid_interface_gives_the_same(shards: list[str]) -> None:
    def fluid() -> wds.WebDataset:
        dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False)
        return dataset.decode().to_tuple("x.npy", "y.cls").batched(2)

    options = {"batch_size": None, "num_workers": 2}
    assert plain(ThreadLoader(fluid(), **options)) == plain(DataLoader(fluid(), **options))
