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

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> dict[str, Any]:
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


def targets(loader: ThreadLoader[Any]) -> list[list[int]]:
    return [np.asarray(batch["y"]).tolist() for batch in batches(loader, BATCH)]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_each_row_comes_once_an_epoch_with_all_its_columns(paths: list[Path], threads: int) -> None:
    loader = load(RowGroups(paths), threads)
    for _ in range(2):
        found = list(batches(loader, BATCH))
        y = np.concatenate([batch["y"] for batch in found])
        x = np.concatenate([batch["x"] for batch in found])
        names = np.concatenate([batch["name"] for batch in found])
        assert sorted(y.tolist()) == list(range(ROWS))
        np.testing.assert_array_equal(x, y.astype(np.float32) / 2)
        assert names.tolist() == [str(target) for target in y]
        assert {len(batch["y"]) for batch in found} == {BATCH, 500 % GROUP}


def test_the_order_follows_from_the_seed_and_differs_between_epochs(paths: list[Path]) -> None:
    alone, together = load(RowGroups(paths), 0), load(RowGroups(paths), 3)
    first, second = targets(alone), targets(alone)
    assert first != second
    assert [targets(together), targets(together)] == [first, second]
    rows = list(itertools.chain(*first))
    assert rows[:GROUP] != sorted(rows[:GROUP])  # mixed within a group


def test_only_the_columns_asked_for_are_read(paths: list[Path]) -> None:
    found = next(batches(load(RowGroups(paths, ["x"]), 1), BATCH))
    assert list(found) == ["x"]


def test_row_groups_are_read_by_workers(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []
    read = pq.ParquetFile.read_row_group

    def noted(*args: Any, **keywords: Any) -> Any:
        readers.append(threading.current_thread().name)
        return read(*args, **keywords)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    targets(load(RowGroups(paths), 2))
    assert readers
    assert all("-worker-" in reader for reader in readers)


def test_a_run_goes_on_at_the_next_row_group(paths: list[Path]) -> None:
    whole = [np.asarray(columns["y"]).tolist() for columns in load(RowGroups(paths), 2)]
    stopped = load(RowGroups(paths), 2)
    begun = list(itertools.islice(iter(stopped), 4))
    resumed = load(RowGroups(paths), 1)
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert [np.asarray(columns["y"]).tolist() for columns in [*begun, *resumed]] == whole
