"""The recipe of docs/parquet.md: a sample is a row group, a batch a slice of it."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from threadloader import ThreadLoader, sample_rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

ROWS, GROUP, BATCH = 1000, 96, 32  # the last group of each file is smaller


class RowGroups:
    """Sample i: the columns of one row group, its rows in random order."""

    def __init__(self, paths: Iterable[Path], columns: Sequence[str] | None = None) -> None:
        files = [(path, pq.read_metadata(path)) for path in paths]
        self.groups = [(*file, group) for file in files for group in range(file[1].num_row_groups)]
        self.columns = columns
        self.readers: set[str] = set()

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.readers.add(threading.current_thread().name)
        path, metadata, group = self.groups[index]
        with pq.ParquetFile(path, metadata=metadata) as file:
            table = file.read_row_group(group, self.columns, use_threads=False)
        order = sample_rng().permutation(len(table))
        return {name: table[name].to_numpy()[order] for name in table.column_names}


def batches(groups: Iterable[dict[str, Any]], size: int) -> Iterator[dict[str, Any]]:
    for columns in groups:
        rows = len(next(iter(columns.values())))
        for first in range(0, rows, size):
            yield {name: column[first : first + size] for name, column in columns.items()}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = []
    for number, rows in enumerate(np.split(np.arange(ROWS), 2)):
        columns = {"y": rows, "x": rows.astype(np.float32) / 2, "name": [str(y) for y in rows]}
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=GROUP, compression="zstd")
        found.append(path)
    return found


def load(dataset: RowGroups, threads: int) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, batch_size=None, shuffle=True, threads=threads, seed=3)


def targets(groups: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [np.asarray(columns["y"]).tolist() for columns in groups]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_each_row_comes_once_an_epoch_in_an_order_that_follows_from_the_seed(
    paths: list[Path], threads: int
) -> None:
    dataset = RowGroups(paths)
    loader, alone = load(dataset, threads), load(RowGroups(paths), 0)
    epochs = []
    for _ in range(2):
        found = list(batches(loader, BATCH))
        y, x, names = (
            np.concatenate([each[name] for each in found]) for name in ("y", "x", "name")
        )
        assert sorted(y.tolist()) == list(range(ROWS))
        np.testing.assert_array_equal(x, y.astype(np.float32) / 2)
        assert names.tolist() == [str(target) for target in y]
        assert {len(batch["y"]) for batch in found} == {BATCH, 500 % GROUP}
        epochs.append(targets(found))
        assert epochs[-1] == targets(batches(alone, BATCH))
    assert epochs[0] != epochs[1]
    assert epochs[0][0] != sorted(epochs[0][0])  # mixed within a group
    assert all(("-worker-" in name) == (threads > 0) for name in dataset.readers)


def test_a_run_goes_on_at_the_next_row_group(paths: list[Path]) -> None:
    whole = targets(load(RowGroups(paths), 2))
    stopped = load(RowGroups(paths), 2)
    begun = list(itertools.islice(iter(stopped), 4))
    resumed = load(RowGroups(paths), 1)
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert targets([*begun, *resumed]) == whole
