"""Datasets that threads may share, as people write them; some need torch or another package.

What a dataset keeps on itself is safe, since each worker has a copy of it.
"""

from __future__ import annotations

import io
import random
import sqlite3
import tarfile
import threading
from collections import Counter, deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.unsafe_datasets import ROWS, WIDTH, Dataset, records
from threadloader import _torch, get_worker_info, sample_rng, sample_seed
from threadloader.datasets import PerThread, TarShards, TarStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def rows(_: Path) -> Any:
    return [(np.full(3, i, np.float32), i % 10) for i in range(ROWS)]


def pictures(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for label in "ab":
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(4):
            colour = (40 * number, 100, 200)
            image.new("RGB", (50, 40), colour).save(folder / "photos" / label / f"{number}.jpg")
    return folder / "photos"


def image_folder(folder: Path) -> Any:
    pytest.importorskip("PIL")
    from threadloader.datasets import ImageFolder  # noqa: PLC0415  # it needs Pillow

    return ImageFolder(pictures(folder), size=24)


def shards(folder: Path) -> list[str]:
    paths = []
    for shard in range(2):
        paths.append(str(folder / f"train-{shard}.tar"))
        with tarfile.open(paths[-1], "w") as archive:
            for row in range(6):
                member = tarfile.TarInfo(f"{row}.cls")
                data = str(6 * shard + row).encode()
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return paths


def tar_shards(folder: Path) -> Any:
    return TarShards(shards(folder))


def tar_stream(folder: Path) -> Any:
    return TarStream(shards(folder))


class Cursor(Dataset):
    """Keeps on itself what it is at."""

    def __init__(self, _: Path) -> None:
        self.current = 0

    def __getitem__(self, index: int) -> int:
        self.current = index
        return self.double()

    def double(self) -> int:
        return 2 * self.current


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


class SQLite(Dataset):
    def __init__(self, folder: Path) -> None:
        path = folder / "rows.db"
        with sqlite3.connect(path) as connection:
            connection.execute("create table rows (number)")
            connection.executemany("insert into rows values (?)", [(i,) for i in range(ROWS)])
        connection.close()
        self.connection = PerThread(partial(sqlite3.connect, path))

    def __getitem__(self, index: int) -> int:
        query = "select number from rows where number = ?"
        return int(self.connection().execute(query, (index,)).fetchone()[0])


class Cache(Dataset):
    """Two threads may compute an entry twice, which is harmless."""

    def __init__(self, _: Path) -> None:
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = np.full(3, index)
        return self.cache[index]


@lru_cache(maxsize=4)
def squared(index: int) -> int:
    return index * index


class Remembered(Dataset):
    def __init__(self, _: Path) -> None:
        self.offset = 1

    def __getitem__(self, index: int) -> int:
        return squared(index) + self.offset


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


class Log(Dataset):
    """Notes what was loaded; the order is chance, and nothing depends on it."""

    def __init__(self, _: Path) -> None:
        self.loaded: deque[int] = deque()
        self.seen: set[int] = set()

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        self.seen.add(index)
        return index


class LastLoaded(Dataset):
    """Notes the last index in a shared object, which no sample reads."""

    class Note:
        last = -1

    def __init__(self, _: Path) -> None:
        self.note = self.Note()

    def __getitem__(self, index: int) -> int:
        self.note.last = index
        return index


class Turn:
    """A transform with parameters on itself, as torchvision's first ones."""

    def __init__(self) -> None:
        self.angle = 0.0

    def __call__(self, value: Any) -> Any:
        self.angle = random.uniform(-10, 10)
        return self.turned(value)

    def turned(self, value: Any) -> Any:
        return value * self.angle


class Transformed(Dataset):
    def __init__(self, _: Path) -> None:
        self.transforms = [Turn(), partial(np.multiply, 2.0), Turn()]

    def __getitem__(self, index: int) -> Any:
        value: Any = np.full(3, float(index))
        for transform in self.transforms:
            value = transform(value)
        return value


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


def stacked(folder: Path) -> Any:
    return torch().utils.data.StackDataset(x=Cursor(folder), y=GlobalRandom(folder))


class Augmented(Dataset):
    def __init__(self, _: Path) -> None:
        self.rows = torch().arange(3.0 * ROWS).reshape(ROWS, 3)
        self.dropout = torch().nn.Dropout(0.5)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        row = row.flip(0) if torch().rand(1) < 0.5 else row
        return self.dropout(row + torch().randn(3))


class HDF5(Dataset):
    def __init__(self, folder: Path) -> None:
        self.h5py = pytest.importorskip("h5py")
        with self.h5py.File(folder / "rows.h5", "w") as file:
            file["rows"] = np.arange(4 * ROWS).reshape(ROWS, 4)
        self.file = PerThread(partial(self.h5py.File, folder / "rows.h5"))

    def __getitem__(self, index: int) -> Any:
        return self.file()["rows"][index]


def vision(name: str) -> Any:
    """Return a module of torchvision's, which may be for another build of torch."""
    try:
        return pytest.importorskip(f"torchvision.{name}", exc_type=ImportError)
    except RuntimeError as error:
        pytest.skip(str(error))


def vision_images(folder: Path) -> Any:
    transforms = vision("transforms")
    steps = [transforms.RandomHorizontalFlip(), transforms.Resize(16), transforms.ToTensor()]
    composed = transforms.Compose(steps)
    return vision("datasets").ImageFolder(str(pictures(folder)), transform=composed)


SAFE: list[Callable[[Path], Any]] = [
    *(rows, image_folder, tar_shards, tar_stream),
    *(Cursor, OpenedOnFirstUse, OneForEachThread, LockedHelper),
    *(SQLite, Cache, Remembered),
    *(LateTable, Log, LastLoaded, Transformed, GlobalRandom, OfTheSample),
    *(InEachThread, ViewsOfData, Generated),
    *(subset, stacked, Augmented, HDF5, vision_images),
]
