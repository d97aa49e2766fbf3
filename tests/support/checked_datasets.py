"""Datasets that threads must not share, with what `check` says of each; and some that they may.

What a dataset keeps on itself is safe, since each worker has a copy of it.
"""

from __future__ import annotations

import io
import json
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from support.made_shards import write_numbered
from threadloader import _torch, get_worker_info, sample_rng, sample_seed
from threadloader.datasets import PerThread, TarStream

ROWS = 12
WIDTH = 16  # bytes of a record


def record(index: int) -> bytes:
    return bytes([index]) * WIDTH


def records(folder: Path) -> Path:
    path = folder / "records.bin"
    path.write_bytes(b"".join(map(record, range(ROWS))))
    return path


def others_run() -> None:
    """Wait as long as a read takes, so that other threads run."""
    time.sleep(1e-4)


class Dataset:
    def __init__(self, _: Path | None = None) -> None:
        pass

    def __len__(self) -> int:
        return ROWS


# One handle, and its position


class SeekAndRead(Dataset):
    def __init__(self, folder: Path) -> None:
        self.file = records(folder).open("rb")

    def __getitem__(self, index: int) -> bytes:
        self.file.seek(index * WIDTH)
        others_run()
        return self.file.read(WIDTH)

    def __del__(self) -> None:
        self.file.close()


class Descriptor(Dataset):
    def __init__(self, folder: Path) -> None:
        self.fd = os.open(records(folder), os.O_RDONLY)

    def __getitem__(self, index: int) -> bytes:
        os.lseek(self.fd, index * WIDTH, os.SEEK_SET)
        others_run()
        return os.read(self.fd, WIDTH)

    def __del__(self) -> None:
        os.close(self.fd)


# A buffer that is returned twice


class ViewOfScratch(Dataset):
    def __init__(self, _: Path) -> None:
        self.scratch = np.zeros((2, 8), np.float32)

    def __getitem__(self, index: int) -> Any:
        self.scratch[1] = index
        return {"x": self.scratch[1], "y": index}


# Attributes of objects that workers share


class Cursor:
    def __init__(self) -> None:
        self.position = 0

    def at(self, index: int) -> int:
        self.position = index
        others_run()
        return self.position


class SharedCursor(Dataset):
    def __init__(self, _: Path) -> None:
        self.cursor = Cursor()

    def __getitem__(self, index: int) -> int:
        return self.cursor.at(index)


# Data, which workers share


class LargeList(Dataset):
    def __init__(self, _: Path) -> None:
        self.rows = [[index] for index in range(20_000)]

    def __getitem__(self, index: int) -> int:
        self.rows[15_000] = [index]
        others_run()
        return self.rows[15_000][0]


class InLargeList(LargeList):
    def __getitem__(self, index: int) -> int:
        self.rows[7][0] = index
        others_run()
        return self.rows[7][0]


class LargeArray(Dataset):
    def __init__(self, _: Path) -> None:
        self.table = np.zeros((ROWS, 50_000))

    def __getitem__(self, index: int) -> Any:
        self.table[0] = index
        others_run()
        return self.table[0].copy()


# What a function holds


class DefaultBuffer(Dataset):
    def __getitem__(self, index: int, row: list[int] = [0]) -> int:  # noqa: B006
        return fill(row, index)


def fill(row: list[int], index: int) -> int:
    row[0] = index
    others_run()
    return row[0]


def around(row: list[int]) -> Any:
    return lambda _, index: fill(row, index)


class AroundBuffer(Dataset):
    __getitem__ = around([0])


filled = partial(fill, [0])


class PartialBuffer(Dataset):
    def __getitem__(self, index: int) -> int:
        return filled(index)


# Attributes of classes


class ClassCursor(Dataset):
    position: ClassVar = 0

    def __getitem__(self, index: int) -> int:
        ClassCursor.position = index
        others_run()
        return ClassCursor.position


class ClassBuffer(Dataset):
    row: ClassVar = np.zeros(4)

    def __getitem__(self, index: int) -> Any:
        self.row[:] = index
        others_run()
        return self.row.copy()


# Global variables

current = 0
settings: dict[str, Any] = {}


class GlobalCursor(Dataset):
    def __getitem__(self, index: int) -> int:
        global current  # noqa: PLW0603
        current = index
        others_run()
        return double_current()


def double_current() -> int:
    return 2 * current


class GlobalSettings(Dataset):
    def __init__(self, _: Path) -> None:
        settings.clear()

    def __getitem__(self, index: int) -> str:
        settings["index"] = index
        others_run()
        return json.dumps(settings)


# A generator of its own


class OwnNumPy(Dataset):
    def __init__(self, _: Path) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> float:
        return float(self.rng.normal())


module_rng = np.random.Generator(np.random.PCG64(0))


class OfTheModule(Dataset):
    def __getitem__(self, index: int) -> float:
        return index + float(module_rng.random())


# Random state that nobody can isolate


class Unseeded(Dataset):
    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng().normal(size=3)


# What belongs to one thread


class Connection(Dataset):
    def __init__(self, _: Path) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table rows (number)")
        self.connection.executemany("insert into rows values (?)", [(i,) for i in range(ROWS)])

    def __getitem__(self, index: int) -> int:
        query = "select number from rows where number = ?"
        return int(self.connection.execute(query, (index,)).fetchone()[0])


# What belongs to the process


class Folder(Dataset):
    def __init__(self, folder: Path) -> None:
        self.folders = [folder / str(index) for index in range(ROWS)]
        for index, path in enumerate(self.folders):
            path.mkdir()
            (path / "row").write_bytes(record(index))

    def __getitem__(self, index: int) -> bytes:
        before = os.getcwd()  # noqa: PTH109
        os.chdir(self.folders[index])
        others_run()
        try:
            with open("row", "rb") as file:  # noqa: PTH123
                return file.read()
        finally:
            os.chdir(before)


class Environment(Dataset):
    def __getitem__(self, index: int) -> str:
        os.environ["THREADLOADER_TEST_ROW"] = str(index)
        others_run()
        return os.environ["THREADLOADER_TEST_ROW"]


class Output(Dataset):
    def __getitem__(self, index: int) -> str:
        with redirect_stdout(io.StringIO()) as caught:
            print(index)  # noqa: T201  # what is caught
            others_run()
        return caught.getvalue()


# What hides: in default values, and in what was loaded before


class DependsOnOthers(Dataset):
    """What a worker has loaded before decides about a sample."""

    loaded = 0

    def __getitem__(self, index: int) -> int:
        self.loaded += 1
        return self.loaded


class Source:
    """One for all replicas."""

    row = 0

    def __deepcopy__(self, _: Any) -> Source:
        return self

    def next_row(self) -> int:
        self.row += 1
        return self.row


class Replicas:
    """An iterable dataset."""

    def __init__(self, _: Path) -> None:
        self.source = Source()

    def __iter__(self) -> Iterator[int]:
        for _ in range(5):
            yield self.source.next_row()


# Each worker has these for itself, but with ``dataset_copy="shared"``.
COPIED: list[Callable[[Path], Any]] = [SeekAndRead, SharedCursor]
# Seeded for each sample.
SEEDED: list[Callable[[Path], Any]] = [OwnNumPy]

# The kind of the finding, its message, "..." for more words, and the datasets of which it is found.
UNSAFE: list[tuple[str, str, list[Callable[[Path], Any]]]] = [
    ("shared-handle", "dataset.file is shared", [SeekAndRead]),
    ("shared-buffer", "sample['x'] of index 0 was different after others", [ViewOfScratch]),
    ("shared-attribute", "dataset.cursor.position is shared", [SharedCursor]),
    ("class-attribute", "ClassCursor.position is shared", [ClassCursor]),
    ("global-variable", f"{__name__}.current is shared", [GlobalCursor]),
    ("shared-container", f"{__name__}.settings is shared", [GlobalSettings]),
    ("shared-container", "ClassBuffer.row is shared", [ClassBuffer]),
    ("shared-container", "DefaultBuffer.__getitem__.row is shared", [DefaultBuffer]),
    ("shared-container", "AroundBuffer.__getitem__.row is shared", [AroundBuffer]),
    ("shared-container", f"{__name__}.filled.args[0] is shared", [PartialBuffer]),
    ("shared-container", "dataset.rows is shared", [LargeList]),
    ("shared-container", "dataset.rows[7] is shared", [InLargeList]),
    ("shared-container", "dataset.table is shared", [LargeArray]),
    ("random-state", f"index 11: {__name__}.module_rng is shared", [OfTheModule]),
    ("not-repeatable", "index 11: loaded again", [Unseeded]),
    ("not-repeatable", "index 11: loaded again", [DependsOnOthers]),
    ("not-repeatable", "index 1: ...; samples change dataset.source.row, which", [Replicas]),
    ("mixed-samples", "index ... came out wrong", [Descriptor]),
    ("thread-bound", "index 11: in a worker's thread", [Connection]),
    ("process-state", "samples change the working directory", [Folder]),
    ("process-state", "samples change the environment", [Environment]),
    ("process-state", "samples change the standard output", [Output]),
]


# What threads may share, as people write it; some need torch or another package


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
