"""Forty datasets that threads must not share, four of each of ten kinds."""

from __future__ import annotations

import ctypes
import io
import itertools
import json
import os
import random
import secrets
import signal
import socket
import sqlite3
import tarfile
import threading
import time
from collections import OrderedDict
from contextlib import redirect_stdout
from decimal import Decimal, getcontext, localcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 12
WIDTH = 16  # bytes of a record


def record(index: int) -> bytes:
    return bytes([index]) * WIDTH


def records(folder: Path) -> Path:
    path = folder / "records.bin"
    path.write_bytes(b"".join(map(record, range(ROWS))))
    return path


class Dataset:
    def __len__(self) -> int:
        return ROWS


# One handle, and its position


class SeekAndRead(Dataset):
    def __init__(self, folder: Path) -> None:
        self.file = records(folder).open("rb")

    def __getitem__(self, index: int) -> bytes:
        self.file.seek(index * WIDTH)
        return self.file.read(WIDTH)

    def __del__(self) -> None:
        self.file.close()


class SeekInHelper(Dataset):
    """The helper is no dataset, so workers share it."""

    class Reader:
        def __init__(self, folder: Path) -> None:
            self.file = io.BytesIO(records(folder).read_bytes())

        def read(self, index: int) -> bytes:
            return (self.file.seek(index * WIDTH), self.file.read(WIDTH))[1]

    def __init__(self, folder: Path) -> None:
        self.reader = self.Reader(folder)

    def __getitem__(self, index: int) -> bytes:
        return self.reader.read(index)


class MembersOfTar(Dataset):
    def __init__(self, folder: Path) -> None:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            for index in range(ROWS):
                member = tarfile.TarInfo(str(index))
                member.size = WIDTH
                archive.addfile(member, io.BytesIO(record(index)))
        (folder / "records.tar").write_bytes(made.getvalue())
        self.archive = tarfile.open(folder / "records.tar")  # noqa: SIM115
        self.members = self.archive.getmembers()

    def __getitem__(self, index: int) -> bytes:
        file = self.archive.extractfile(self.members[index])
        assert file is not None
        return file.read()

    def __del__(self) -> None:
        self.archive.close()


class Descriptor(Dataset):
    def __init__(self, folder: Path) -> None:
        self.fd = os.open(records(folder), os.O_RDONLY)

    def __getitem__(self, index: int) -> bytes:
        os.lseek(self.fd, index * WIDTH, os.SEEK_SET)
        return os.read(self.fd, WIDTH)

    def __del__(self) -> None:
        os.close(self.fd)


# A buffer that is returned twice


class Scratch(Dataset):
    def __init__(self, _: Path) -> None:
        self.scratch = np.zeros(8, np.int64)

    def __getitem__(self, index: int) -> Any:
        self.scratch[:] = index
        return self.scratch


class ViewOfScratch(Dataset):
    def __init__(self, _: Path) -> None:
        self.scratch = np.zeros((2, 8), np.float32)

    def __getitem__(self, index: int) -> Any:
        self.scratch[1] = index
        return {"x": self.scratch[1], "y": index}


class Bytes(Dataset):
    def __init__(self, folder: Path) -> None:
        self.path = records(folder)
        self.buffer = bytearray(WIDTH)

    def __getitem__(self, index: int) -> Any:
        with self.path.open("rb") as file:
            file.seek(index * WIDTH)
            file.readinto(self.buffer)
        return np.frombuffer(self.buffer, np.uint8)


class TransformWithBuffer(Dataset):
    class Fill:
        def __init__(self) -> None:
            self.row: list[int] = []

        def __call__(self, index: int) -> list[int]:
            self.row.clear()
            self.row.extend([index] * 4)
            return self.row

    def __init__(self, _: Path) -> None:
        self.transform = self.Fill()

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


# Attributes of objects that workers share


class Cursor:
    def __init__(self) -> None:
        self.position = 0

    def at(self, index: int) -> int:
        self.position = index
        return self.position


class SharedCursor(Dataset):
    def __init__(self, _: Path) -> None:
        self.cursor = Cursor()

    def __getitem__(self, index: int) -> int:
        return self.cursor.at(index)


class Slotted(Dataset):
    class State:
        __slots__ = ("angle",)

    def __init__(self, _: Path) -> None:
        self.state = self.State()

    def __getitem__(self, index: int) -> float:
        self.state.angle = index / 7
        return self.turned()

    def turned(self) -> float:
        return 2 * self.state.angle


class Counted(Dataset):
    """An update is lost, and no sample is wrong."""

    class Counter:
        def __init__(self) -> None:
            self.loaded = 0

    def __init__(self, _: Path) -> None:
        self.counter = self.Counter()

    def __getitem__(self, index: int) -> int:
        self.counter.loaded += 1
        return index


class HalfMade(Dataset):
    """A table is found by others before it is filled."""

    class Table:
        def __init__(self) -> None:
            self.rows: list[int] | None = None

        def get(self, index: int) -> int:
            if self.rows is None:
                self.rows = []
                for row in range(ROWS):
                    self.rows.append(3 * row)
            return self.rows[index]

    def __init__(self, _: Path) -> None:
        self.table = self.Table()

    def __getitem__(self, index: int) -> int:
        return self.table.get(index)


# Attributes of classes


class ClassCursor(Dataset):
    position: ClassVar = 0

    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        ClassCursor.position = index
        return ClassCursor.position


class ClassCounter(Dataset):
    loaded: ClassVar = 0

    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        type(self).loaded += 1
        return index


class Parsing:
    options: ClassVar[Any] = None

    @classmethod
    def parse(cls, text: str) -> int:
        value = int(text, cls.options["base"])
        cls.options = None
        return value


class ClassOptions(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        Parsing.options = {"base": 10 if index % 2 else 16}
        return Parsing.parse("11")


class ClassBuffer(Dataset):
    row: ClassVar = np.zeros(4)

    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> Any:
        self.row[:] = index
        return self.row.copy()


# Global variables

current = 0
loaded_rows = 0
settings: dict[str, Any] = {}
stack: list[int] = []


class GlobalCursor(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        global current  # noqa: PLW0603
        current = index
        return double_current()


def double_current() -> int:
    return 2 * current


class GlobalCounter(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        global loaded_rows  # noqa: PLW0603
        loaded_rows = loaded_rows + 1
        return index


class GlobalSettings(Dataset):
    def __init__(self, _: Path) -> None:
        settings.clear()

    def __getitem__(self, index: int) -> str:
        settings["index"] = index
        return json.dumps(settings)


class GlobalStack(Dataset):
    def __init__(self, _: Path) -> None:
        stack.clear()

    def __getitem__(self, index: int) -> int:
        stack.append(index)
        self.grow()
        return sum(stack.pop() for _ in range(2))

    def grow(self) -> None:
        stack.append(stack[-1] + 1)


# Containers on the dataset


class SmallCache(Dataset):
    def __init__(self, _: Path) -> None:
        self.cache: OrderedDict[int, int] = OrderedDict()

    def __getitem__(self, index: int) -> int:
        if index not in self.cache:
            self.cache[index] = index * index
            while len(self.cache) > 2:
                self.cache.popitem(last=False)
        return self.cache[index]


class CountsInDict(Dataset):
    def __init__(self, _: Path) -> None:
        self.counts = {"loaded": 0}

    def __getitem__(self, index: int) -> int:
        self.counts["loaded"] += 1
        return index


class Histogram(Dataset):
    def __init__(self, _: Path) -> None:
        self.counts = np.zeros(4, np.int64)

    def __getitem__(self, index: int) -> int:
        self.counts[index % 2] += 1
        return index


class SharedIterator(Dataset):
    def __init__(self, _: Path) -> None:
        self.rows = itertools.cycle(range(ROWS))

    def __getitem__(self, index: int) -> int:
        return next(self.rows)


# Generators of their own


class OwnNumPy(Dataset):
    def __init__(self, _: Path) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> float:
        return float(self.rng.normal())


class OwnRandom(Dataset):
    def __init__(self, _: Path) -> None:
        self.rng = random.Random(0)

    def __getitem__(self, index: int) -> int:
        return self.rng.randrange(1000)


class OwnLegacy(Dataset):
    class Flip:
        def __init__(self) -> None:
            self.state = np.random.RandomState(0)

        def __call__(self, value: int) -> float:
            return value * self.state.rand()

    def __init__(self, _: Path) -> None:
        self.transform = self.Flip()

    def __getitem__(self, index: int) -> float:
        return self.transform(index)


module_rng = np.random.Generator(np.random.PCG64(0))


class OfTheModule(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> float:
        return index + float(module_rng.random())


# Random state that nobody can isolate


class OfC(Dataset):
    def __init__(self, _: Path) -> None:
        self.draw = ctypes.CDLL(None).rand

    def __getitem__(self, index: int) -> int:
        return self.draw()


class OfTheSystem(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        return secrets.randbits(60)


class Unseeded(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng().normal(size=3)


class OfTheClock(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        return random.Random(time.perf_counter_ns()).getrandbits(60)


# What belongs to one thread


class Connection(Dataset):
    def __init__(self, _: Path) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table rows (number)")
        self.connection.executemany("insert into rows values (?)", [(i,) for i in range(ROWS)])

    def __getitem__(self, index: int) -> int:
        query = "select number from rows where number = ?"
        return int(self.connection.execute(query, (index,)).fetchone()[0])


class Local(Dataset):
    def __init__(self, _: Path) -> None:
        self.local = threading.local()
        self.local.factor = 3

    def __getitem__(self, index: int) -> int:
        return index * self.local.factor


class Alarm(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> int:
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, before)
        return index


class Context(Dataset):
    """The precision of a thread's context is not that of the thread that made the dataset."""

    def __init__(self, _: Path) -> None:
        self.thread = threading.get_ident()

    def __getitem__(self, index: int) -> str:
        with localcontext() as context:
            context.prec = 5 if threading.get_ident() == self.thread else getcontext().prec
            return str(Decimal(index) / 7)


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
        try:
            with open("row", "rb") as file:  # noqa: PTH123
                return file.read()
        finally:
            os.chdir(before)


class Environment(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> str:
        os.environ["THREADLOADER_TEST_ROW"] = str(index)
        return os.environ["THREADLOADER_TEST_ROW"]


class Output(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> str:
        with redirect_stdout(io.StringIO()) as caught:
            print(index)  # noqa: T201  # what is caught
        return caught.getvalue()


class Timeout(Dataset):
    def __init__(self, _: Path) -> None:
        pass

    def __getitem__(self, index: int) -> float | None:
        socket.setdefaulttimeout(1.0 + index)
        return socket.getdefaulttimeout()


# Each worker has these for itself, but with ``dataset_copy="shared"``.
COPIED: list[Callable[[Path], Any]] = [SeekAndRead, MembersOfTar, SharedCursor, HalfMade]
# Seeded for each sample.
SEEDED: list[Callable[[Path], Any]] = [OwnNumPy, OwnRandom, OwnLegacy]

UNSAFE: dict[str, tuple[set[str], list[Callable[[Path], Any]]]] = {
    "one handle": ({"shared-handle"}, [SeekAndRead, SeekInHelper, MembersOfTar, Descriptor]),
    "a buffer twice": ({"shared-buffer"}, [Scratch, ViewOfScratch, Bytes, TransformWithBuffer]),
    "a shared object": (
        {"shared-attribute", "shared-container"},
        [SharedCursor, Slotted, Counted, HalfMade],
    ),
    "a class": (
        {"class-attribute", "shared-container"},
        [ClassCursor, ClassCounter, ClassOptions, ClassBuffer],
    ),
    "a global": (
        {"global-variable", "shared-container"},
        [GlobalCursor, GlobalCounter, GlobalSettings, GlobalStack],
    ),
    "a container": ({"shared-container"}, [SmallCache, CountsInDict, Histogram, SharedIterator]),
    "a generator": ({"random-state"}, [OfTheModule]),
    "hidden randomness": ({"not-repeatable"}, [OfC, OfTheSystem, Unseeded, OfTheClock]),
    "one thread": ({"thread-bound"}, [Connection, Local, Alarm, Context]),
    "the process": ({"process-state"}, [Folder, Environment, Output, Timeout]),
}
