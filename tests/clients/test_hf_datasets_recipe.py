"""Hugging Face datasets, as docs/tables.md uses them: whole batches, and streams."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets.arrow_dataset")  # "datasets" may be a folder of tests

from pathlib import Path

import datasets
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from clients.points import stopped
from threadloader import ThreadLoader

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


def targets(batches: Any) -> list[int]:
    return [y for batch in batches for y in np.asarray(batch["y"]).tolist()]


@each_format
def test_whole_batches_are_those_of_single_rows_in_the_same_order(
    rows: datasets.Dataset, kind: str
) -> None:
    rows = rows.with_format(kind)
    found = list(batch_by_batch(rows))
    assert all(type(column) is torch.Tensor for batch in found for column in batch.values())
    assert plain(found) == plain(row_by_row(rows))
    assert targets(found) != sorted(targets(found)) == list(range(ROWS))


def stream(rows: datasets.Dataset, kind: str = "torch", buffer: int = 0) -> Any:
    shards = rows.to_iterable_dataset(num_shards=SHARDS)
    shards = shards.shuffle(seed=3, buffer_size=buffer) if buffer else shards
    return shards.with_format(kind)


def prepare(row: dict[str, Any]) -> Any:
    return {"x": 2 * row["x"], "y": row["y"], "by": threading.current_thread().name}


@each_format
def test_a_shuffled_stream_is_read_by_one_and_prepared_by_others(
    rows: datasets.Dataset, kind: str
) -> None:
    def load(threads: int) -> ThreadLoader[Any]:
        samples = stream(rows, kind, buffer=16)
        return ThreadLoader(samples, batch_size=8, transform=prepare, threads=threads)

    expected, loader, names = targets(load(1)), load(4), set()
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        batches = list(loader)
        names.update(name for batch in batches for name in batch["by"])
        assert (targets(batches) == expected) == (epoch == 0)
        assert sorted(targets(batches)) == list(range(ROWS))
    assert names
    assert not any(name.endswith("-worker-0") for name in names)  # who reads


@pytest.mark.parametrize("workers", [1, 2, SHARDS])
def test_a_stream_shares_out_its_shards_as_among_torch_s_workers(
    rows: datasets.Dataset, workers: int
) -> None:
    def epochs(kind: type) -> list[Any]:
        samples = stream(rows, buffer=16)
        loader = kind(samples, batch_size=8, num_workers=workers)
        found = []
        for epoch in range(2):
            samples.set_epoch(epoch)
            found.append(targets(loader))
        return found

    first, second = epochs(ThreadLoader)
    assert [first, second] == epochs(DataLoader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))


# A stream with a buffer is read again from its beginning, where no state of it is kept.
RESUMED: dict[str, Any] = {
    "rows": row_by_row,
    "batches": batch_by_batch,
    "one reader": lambda rows: ThreadLoader(stream(rows), 8, transform=prepare, threads=4),
    "calling thread": lambda rows: ThreadLoader(stream(rows), 8, threads=0),
    "replicas": lambda rows: ThreadLoader(stream(rows), 8, threads=2, snapshot_every_n_steps=4),
    "kept": lambda rows: ThreadLoader(stream(rows), 8, threads=1, persistent_workers=True),
    "buffer": lambda rows: ThreadLoader(
        stream(rows, buffer=16), 8, threads=2, snapshot_every_n_steps=0, seed=3
    ),
}


@pytest.mark.parametrize("make", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("batches", [0, 1, 4, 20])
def test_a_loader_goes_on_and_its_next_epoch_is_whole(
    rows: datasets.Dataset, make: Any, batches: int
) -> None:
    rows = rows.with_format("torch")
    with make(rows) as loader:
        epochs = [targets([batch]) for batch in itertools.chain(loader, loader)]
    epochs = [epochs[: len(epochs) // 2], epochs[len(epochs) // 2 :]]
    with make(rows) as loader:
        state = stopped(loader, batches)
    with make(rows) as loader:
        loader.load_state_dict(state)
        rest = [targets([batch]) for batch in loader]
        assert rest == (epochs[0][batches:] or epochs[1])
        assert sorted(targets(loader)) == list(range(ROWS))
