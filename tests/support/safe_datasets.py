"""Datasets that threads may share, as people write them; some need torch or another package.

What a dataset keeps on itself is safe, since each worker has a copy of it.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import random
import sqlite3
import tarfile
import threading
import zipfile
from collections import Counter, deque
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.unsafe_datasets import ROWS, WIDTH, Dataset, record, records
from threadloader import _torch, get_worker_info, sample_rng, sample_seed
from threadloader.datasets import ArrayDataset, PerThread, TarShards, TarStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def rows(_: Path) -> Any:
    return [(np.full(3, i, np.float32), i % 10) for i in range(ROWS)]


def lines(_: Path) -> Any:
    return tuple(f"line {number}" for number in range(3000))


def array(_: Path) -> Any:
    return np.arange(4 * ROWS).reshape(ROWS, 4)


def array_dataset(_: Path) -> Any:
    return ArrayDataset(np.arange(4 * ROWS).reshape(ROWS, 4), np.arange(ROWS))


def memory_map(folder: Path) -> Any:
    np.save(folder / "rows.npy", np.arange(4 * ROWS).reshape(ROWS, 4))
    return ArrayDataset(np.load(folder / "rows.npy", mmap_mode="r"))


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


class Images(Dataset):
    """Decodes with Pillow, as most people do."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(pictures(folder).rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image  # noqa: PLC0415  # optional

        with Image.open(self.paths[index]) as image:
            return np.asarray(image.convert("RGB").resize((16, 16)))


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


class OpenedInTheCall(Dataset):
    def __init__(self, folder: Path) -> None:
        self.path = records(folder)

    def __getitem__(self, index: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(index * WIDTH)
            return file.read(WIDTH)


class OneForEachThread(Dataset):
    def __init__(self, folder: Path) -> None:
        self.file = PerThread(partial(open, records(folder), "rb"))

    def __getitem__(self, index: int) -> bytes:
        file = self.file()
        file.seek(index * WIDTH)
        return file.read(WIDTH)


class Locked(Dataset):
    def __init__(self, folder: Path) -> None:
        self.file = io.BytesIO(records(folder).read_bytes())
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> bytes:
        with self.lock:
            self.file.seek(index * WIDTH)
            return self.file.read(WIDTH)


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


class Positioned(Dataset):
    """Reads without a position."""

    def __init__(self, folder: Path) -> None:
        self.fd = os.open(records(folder), os.O_RDONLY)

    def __getitem__(self, index: int) -> bytes:
        return os.pread(self.fd, WIDTH, index * WIDTH)

    def __del__(self) -> None:
        os.close(self.fd)


class Mapped(Dataset):
    def __init__(self, folder: Path) -> None:
        with records(folder).open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __getitem__(self, index: int) -> bytes:
        return self.map[index * WIDTH : (index + 1) * WIDTH]

    def __del__(self) -> None:
        self.map.close()


class JsonLines(Dataset):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.jsonl"
        self.offsets = []
        with self.path.open("wb") as file:
            for index in range(ROWS):
                self.offsets.append(file.tell())
                file.write(json.dumps({"index": index}).encode() + b"\n")

    def __getitem__(self, index: int) -> Any:
        with self.path.open("rb") as file:
            file.seek(self.offsets[index])
            return json.loads(file.readline())


class Zip(Dataset):
    """A zip file has a lock of its own."""

    def __init__(self, folder: Path) -> None:
        with zipfile.ZipFile(folder / "rows.zip", "w") as archive:
            for index in range(ROWS):
                archive.writestr(str(index), record(index))
        self.path = folder / "rows.zip"
        self.archive: Any = None

    def __getitem__(self, index: int) -> bytes:
        if self.archive is None:
            self.archive = zipfile.ZipFile(self.path)
        return bytes(self.archive.read(str(index)))

    def __del__(self) -> None:
        if self.archive is not None:
            self.archive.close()


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


class LockedCache(Dataset):
    class Store:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.rows: dict[int, int] = {}
            self.hits = self.misses = 0

        def get(self, index: int) -> int | None:
            with self.lock:
                found = self.rows.get(index)
                self.hits += found is not None
                self.misses += found is None
                return found

        def put(self, index: int, row: int) -> None:
            with self.lock:
                self.rows[index] = row
                while len(self.rows) > 3:
                    del self.rows[next(iter(self.rows))]

    def __init__(self, _: Path) -> None:
        self.store = self.Store()

    def __getitem__(self, index: int) -> int:
        row = self.store.get(index)
        if row is None:
            row = index * index
            self.store.put(index, row)
        return row


@lru_cache(maxsize=4)
def squared(index: int) -> int:
    return index * index


class Remembered(Dataset):
    def __init__(self, _: Path) -> None:
        self.offset = 1

    def __getitem__(self, index: int) -> int:
        return squared(index) + self.offset


class Property(Dataset):
    @cached_property
    def table(self) -> list[int]:
        return [3 * row for row in range(ROWS)]

    def __getitem__(self, index: int) -> int:
        return self.table[index]


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


class SeededByIndex(Dataset):
    def __init__(self, _: Path) -> None:
        self.seed = 3

    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng(self.seed + index).normal(size=3)


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


class Words(Dataset):
    def __init__(self, _: Path) -> None:
        self.vocabulary = {f"w{number}": number for number in range(2000)}
        self.texts = [f"w{row} w{2 * row} none" for row in range(ROWS)]

    def __getitem__(self, index: int) -> list[int]:
        words = self.texts[index].split()
        return list(map(self.number, words))

    def number(self, word: str) -> int:
        return self.vocabulary[word] if word in self.vocabulary else 0  # noqa: SIM401  # slow on 3.13t


class Windows(Dataset):
    """A dataset of a dataset, with indices of its own."""

    def __init__(self, folder: Path) -> None:
        self.inner = OpenedOnFirstUse(folder)
        self.order = list(reversed(range(ROWS)))

    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        return self.inner[self.order[index]], self.inner[self.order[index - 1]]


class WholeBatches(Dataset):
    def __init__(self, _: Path) -> None:
        self.rows = np.arange(ROWS)

    def __getitem__(self, index: int) -> int:
        return int(self.rows[index])

    def __getitems__(self, indices: list[int]) -> list[int]:
        return self.rows[indices].tolist()


class Generated(_torch.IterableDataset):  # type: ignore[misc]  # Any without torch
    """A stream that each replica has its share of."""

    def __init__(self, _: Path) -> None:
        self.seen = Counter[str]()

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        for row in range(info.id, 4 * ROWS, info.num_workers):
            self.seen["rows"] += 1
            yield row, random.random()


def closure(_: Path) -> Any:
    scale = {"factor": 3}

    class Scaled(Dataset):
        def __getitem__(self, index: int) -> int:
            return apply(index)

    def apply(value: int) -> int:
        return value * scale["factor"]

    return Scaled()


def torch() -> Any:
    return pytest.importorskip("torch")


def tensors(_: Path) -> Any:
    data = torch().utils.data
    return data.TensorDataset(torch().arange(4 * ROWS).reshape(ROWS, 4), torch().arange(ROWS))


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


class LMDB(Dataset):
    def __init__(self, folder: Path) -> None:
        self.environment = pytest.importorskip("lmdb").open(str(folder / "lmdb"))
        with self.environment.begin(write=True) as write:
            for index in range(ROWS):
                write.put(str(index).encode(), record(index))

    def __getitem__(self, index: int) -> bytes:
        with self.environment.begin() as read:
            return bytes(read.get(str(index).encode()))


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
    *(rows, lines, array, array_dataset, memory_map, image_folder, tar_shards, tar_stream),
    *(Images, Cursor, OpenedOnFirstUse, OpenedInTheCall, OneForEachThread, Locked, LockedHelper),
    *(Positioned, Mapped, JsonLines, Zip, SQLite, Cache, LockedCache, Remembered, Property),
    *(LateTable, Log, LastLoaded, Transformed, GlobalRandom, OfTheSample, SeededByIndex),
    *(InEachThread, ViewsOfData, Words, Windows, WholeBatches, Generated, closure),
    *(tensors, subset, stacked, Augmented, HDF5, LMDB),
    vision_images,
]
