"""Datasets that threads may share, as people write them; some need torch or another package.

What a dataset keeps on itself is safe, since each worker has a copy of it.
"""

from __future__ import annotations

import io
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.made_shards import write_numbered
from support.unsafe_datasets import COPIED, ROWS, SEEDED, WIDTH, Dataset, records
from threadloader import _torch, get_worker_info, sample_rng, sample_seed
from threadloader.datasets import PerThread, TarStream


def tar_stream(folder: Path) -> Any:
    return TarStream(write_numbered(folder, [2, 2]))


class OpenedOnFirstUse(Dataset):
    def __init__(self, folder: Path) -> None:
        self.path = records(folder)
        self.file: Any = None

    def __getitem__(self, index: int) -> bytes:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(index * WIDTH)
        return self.file.read(WIDTH)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class OneForEachThread(Dataset):
    def __init__(self, folder: Path) -> None:
        self.file = PerThread(partial(open, records(folder), "rb"))

    def __getitem__(self, index: int) -> bytes:
        file = self.file()
        file.seek(index * WIDTH)
        return file.read(WIDTH)


class LockedHelper(Dataset):
    class Reader:
        def __init__(self, folder: Path) -> None:
            self.file = io.BytesIO(records(folder).read_bytes())
            self.lock = threading.RLock()
            self.reads = 0

        def read(self, index: int) -> bytes:
            with self.lock:
                self.reads += 1
                return self.at(index)

        def at(self, index: int) -> bytes:
            with self.lock:
                self.file.seek(index * WIDTH)
                return self.file.read(WIDTH)

    def __init__(self, folder: Path) -> None:
        self.reader = self.Reader(folder)

    def __getitem__(self, index: int) -> bytes:
        return self.reader.read(index)


class Cache(Dataset):
    """Two threads may compute an entry twice, which is harmless."""

    def __init__(self, _: Path) -> None:
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = np.full(3, index)
        return self.cache[index]


class LateTable(Dataset):
    """A table of a shared object, which is there only when it is whole."""

    class Table:
        def __init__(self) -> None:
            self.rows: list[int] | None = None

        def get(self, index: int) -> int:
            rows = self.rows
            if rows is None:
                rows = [3 * row for row in range(ROWS)]
                self.rows = rows
            return rows[index]

    def __init__(self, _: Path) -> None:
        self.table = self.Table()

    def __getitem__(self, index: int) -> int:
        return self.table.get(index)


class LastLoaded(Dataset):
    """Notes the last index in a shared object, which no sample reads."""

    class Note:
        last = -1

    def __init__(self, _: Path) -> None:
        self.note = self.Note()

    def __getitem__(self, index: int) -> int:
        self.note.last = index
        return index


class GlobalRandom(Dataset):
    """Draws from generators of the process, which the loader isolates."""

    def __getitem__(self, index: int) -> Any:
        return index + random.random(), np.random.rand(2), np.random.randint(5)  # noqa: NPY002


class OfTheSample(Dataset):
    def __getitem__(self, index: int) -> Any:
        own = np.random.default_rng(sample_seed())
        return sample_rng().normal(size=2) + index, own.random()


class InEachThread(Dataset):
    def __init__(self, _: Path) -> None:
        self.local = threading.local()

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self.local, "scratch"):
            self.local.scratch = np.zeros(4)
        self.local.scratch[:] = index
        return self.local.scratch.copy()


class ViewsOfData(Dataset):
    """Samples share memory with the dataset, and nobody writes it."""

    def __init__(self, _: Path) -> None:
        self.rows = np.arange(4 * ROWS).reshape(ROWS, 4)
        self.labels = {"all": np.arange(ROWS)}

    def __getitem__(self, index: int) -> Any:
        return {"x": self.rows[index], "labels": self.labels["all"]}


class Generated(_torch.IterableDataset):  # type: ignore[misc]  # Any without torch
    """A stream that each replica has its share of."""

    def __init__(self, _: Path) -> None:
        self.seen = Counter[str]()

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        for row in range(info.id, 4 * ROWS, info.num_workers):
            self.seen["rows"] += 1
            yield row, random.random()


def torch() -> Any:
    return pytest.importorskip("torch")


def subset(folder: Path) -> Any:
    data = torch().utils.data
    parts = [data.Subset(OpenedOnFirstUse(folder), [3, 1, 2]), data.Subset(Cache(folder), [5, 4])]
    return data.ConcatDataset(parts)


class Augmented(Dataset):
    def __init__(self, _: Path) -> None:
        self.rows = torch().arange(3.0 * ROWS).reshape(ROWS, 3)
        self.dropout = torch().nn.Dropout(0.5)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        row = row.flip(0) if torch().rand(1) < 0.5 else row
        return self.dropout(row + torch().randn(3))


PARTS: list[Callable[[Path], Any]] = [
    *(OpenedOnFirstUse, OneForEachThread, LockedHelper, Cache, LateTable, LastLoaded),
    *(GlobalRandom, OfTheSample, InEachThread, ViewsOfData, *SEEDED, *COPIED),
    *((subset, Augmented) if _torch.AVAILABLE else ()),
]


class Together(Dataset):
    """All of them, which takes a second and not each one."""

    def __init__(self, folder: Path) -> None:
        self.parts = [make(folder) for make in PARTS]

    def __getitem__(self, index: int) -> Any:
        return [part[index % len(part)] for part in self.parts]


SAFE: list[Callable[[Path], Any]] = [tar_stream, Generated, Together]
