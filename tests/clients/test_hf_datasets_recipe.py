"""The recipe of docs/hugging-face.md: whole batches by index, and streams of shards."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets.arrow_dataset")  # "datasets" may be a folder of tests

import datasets
import torch
from torch.utils.data import BatchSampler, RandomSampler

from threadloader import EmptyReplicaWarning, ThreadLoader

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 90
SHARDS = 4

each_format = pytest.mark.parametrize("kind", ["numpy", "torch"])


@pytest.fixture
def rows(tmp_path: Path) -> datasets.Dataset:
    """A dataset on disk, mapped into memory."""
    made = {"x": [[y, y + 0.5] for y in range(ROWS)], "y": list(range(ROWS))}
    datasets.Dataset.from_dict(made).save_to_disk(tmp_path / "rows")
    return datasets.load_from_disk(tmp_path / "rows")


def row_by_row(rows: Any, threads: int = 3) -> ThreadLoader[Any]:
    return ThreadLoader(rows, batch_size=8, shuffle=True, threads=threads, seed=3)


def batch_by_batch(rows: Any, threads: int = 3) -> ThreadLoader[Any]:
    batches = BatchSampler(RandomSampler(rows), batch_size=8, drop_last=False)
    return ThreadLoader(rows, batch_size=None, sampler=batches, threads=threads, seed=3)


def plain(batches: Any) -> list[Any]:
    return [{name: np.asarray(column).tolist() for name, column in b.items()} for b in batches]


@each_format
def test_whole_batches_are_those_of_single_rows_in_the_same_order(
    rows: datasets.Dataset, kind: str
) -> None:
    rows = rows.with_format(kind)
    found = list(batch_by_batch(rows))
    assert all(type(column) is torch.Tensor for batch in found for column in batch.values())
    assert plain(found) == plain(row_by_row(rows))
    targets = [y for batch in plain(found) for y in batch["y"]]
    assert targets != sorted(targets)
    assert sorted(targets) == list(range(ROWS))


def test_whole_batches_are_read_by_workers(rows: datasets.Dataset) -> None:
    readers: list[str] = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        readers.append(threading.current_thread().name)
        return {name: np.asarray(column) for name, column in batch.items()}

    list(batch_by_batch(rows.with_transform(note)))
    assert len(readers) >= ROWS / 8  # once a batch, not once a row
    assert len(readers) < ROWS
    assert all("-worker-" in reader for reader in readers)


@each_format
@pytest.mark.parametrize("make", [row_by_row, batch_by_batch])
def test_a_map_goes_on_in_the_same_order(rows: datasets.Dataset, kind: str, make: Any) -> None:
    rows = rows.with_format(kind)
    whole = plain(make(rows))
    stopped = make(rows)
    begun = plain(itertools.islice(iter(stopped), 4))
    resumed = make(rows, threads=1)
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert begun + plain(resumed) == whole


def stream(rows: datasets.Dataset, kind: str, buffer: int = 0) -> Any:
    shards = rows.to_iterable_dataset(num_shards=SHARDS)
    if buffer:
        shards = shards.shuffle(seed=3, buffer_size=buffer)
    return shards.with_format(kind)


def prepare(row: dict[str, Any]) -> Any:
    return {"x": 2 * row["x"], "y": row["y"], "by": threading.current_thread().name}


def read_by_one(rows: Any, kind: str, buffer: int = 0, threads: int = 4) -> ThreadLoader[Any]:
    samples = stream(rows, kind, buffer)
    return ThreadLoader(samples, batch_size=8, transform=prepare, threads=threads)


def columns(loader: Any, names: str = "xy") -> list[Any]:
    return plain({name: batch[name] for name in names} for batch in loader)


@each_format
def test_a_shuffled_stream_is_read_by_one_and_prepared_by_others(
    rows: datasets.Dataset, kind: str
) -> None:
    loader = read_by_one(rows, kind, buffer=16)
    expected = columns(read_by_one(rows, kind, buffer=16, threads=1))
    names: set[str] = set()
    orders = []
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        batches = list(loader)
        names.update(name for batch in batches for name in batch["by"])
        assert epoch or columns(batches) == expected
        orders.append([y for batch in plain({"y": b["y"]} for b in batches) for y in batch["y"]])
        assert sorted(orders[-1]) == list(range(ROWS))
    assert orders[0] != orders[1]
    assert names
    assert not any(name.endswith("-worker-0") for name in names)  # who reads


@each_format
def test_a_stream_that_one_reads_goes_on(rows: datasets.Dataset, kind: str) -> None:
    whole = columns(read_by_one(rows, kind))
    stopped = read_by_one(rows, kind)
    begun = columns(itertools.islice(iter(stopped), 4))
    resumed = read_by_one(rows, kind, threads=2)
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert begun + columns(resumed) == whole


def test_a_replica_without_a_shard_is_warned_of(rows: datasets.Dataset) -> None:
    samples = rows.to_iterable_dataset(num_shards=2).with_format("numpy")
    with pytest.warns(EmptyReplicaWarning, match=r"1 of 3 \(worker 2\)"):
        found = plain(ThreadLoader(samples, batch_size=8, num_workers=3))
    assert sorted(y for batch in found for y in batch["y"]) == list(range(ROWS))


@each_format
@pytest.mark.parametrize("threads", [1, 2, SHARDS])
def test_a_stream_gives_each_row_once_an_epoch_and_each_epoch_in_another_order(
    rows: datasets.Dataset, kind: str, threads: int
) -> None:
    samples = stream(rows, kind, buffer=16)
    loader = ThreadLoader(samples, batch_size=8, num_workers=threads)
    orders = []
    for epoch in range(2):
        samples.set_epoch(epoch)
        orders.append([y for batch in plain(loader) for y in batch["y"]])
        assert sorted(orders[-1]) == list(range(ROWS))
    assert orders[0] != orders[1]


@each_format
def test_a_stream_goes_on(rows: datasets.Dataset, kind: str) -> None:
    def loader() -> ThreadLoader[Any]:
        samples = stream(rows, kind)
        samples.set_epoch(1)
        return ThreadLoader(samples, batch_size=8, num_workers=2)

    whole = plain(loader())
    stopped = loader()
    begun = plain(itertools.islice(iter(stopped), 4))
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert begun + plain(resumed) == whole
