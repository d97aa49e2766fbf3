"""What a dataset keeps, each worker has for itself: as in reports of users of worker processes."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
import socket
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.worker_copies import THREADS, Mapped, Meeting, together

from threadloader import ThreadLoader

EACH = list(range(THREADS))


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file with the number ``n`` in its byte ``n``."""
    path = tmp_path / "numbers"
    path.write_bytes(bytes(EACH))
    return path


class Reads:
    """A dataset over a file: all workers seek before one of them reads."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.sought = Meeting()

    def __len__(self) -> int:
        return THREADS

    def __getitem__(self, index: int) -> int:
        return self.read(self.file, index)

    def read(self, file: Any, index: int) -> int:
        file.seek(index)
        self.sought.wait()
        return ord(file.read(1))


# Handles that were opened before the loop


def test_a_handle_that_is_opened_anew_in_another_process_is_opened_by_each_worker(
    numbers: Path,
) -> None:
    class Unknown:
        """A handle that does not say how it was opened."""

        def __init__(self) -> None:
            self.fd = os.open(numbers, os.O_RDONLY)
            self.place = 0

        def __copy__(self) -> Any:
            raise TypeError("a handle")

        def __del__(self) -> None:
            os.close(self.fd)

        def seek(self, place: int) -> None:
            self.place = place

        def read(self, count: int) -> bytes:
            return os.pread(self.fd, count, self.place)

    class Guards(Reads):
        pid: int | None = None

        def __getitem__(self, index: int) -> int:
            if self.pid != os.getpid():
                self.file, self.pid = Unknown(), os.getpid()
            return self.read(self.file, index)

    dataset = Guards(None)
    dataset.sought = Meeting(1)
    assert dataset[3] == 3
    first = dataset.file
    dataset.sought = Meeting()
    assert together(dataset) == EACH
    assert dataset.file is first
    assert dataset.pid == os.getpid()


COMPRESSED: dict[str, Any] = {"gzip": gzip, "bz2": bz2, "lzma": lzma}


@pytest.mark.parametrize("module", COMPRESSED.values(), ids=COMPRESSED)
def test_a_compressed_part_of_another_file_is_named(module: Any, numbers: Path) -> None:
    numbers.write_bytes(b"".join(map(module.compress, (b"before it", bytes(EACH)))))
    with numbers.open("rb") as file:
        file.seek(len(module.compress(b"before it")))
        dataset = Reads(module.open(file))
        with pytest.warns(UserWarning, match=r"dataset\.file \(.*File\)"):
            iter(ThreadLoader(dataset, threads=THREADS))


def test_a_file_that_is_written_is_one_for_all(tmp_path: Path) -> None:
    class Logs(Mapped):
        def __getitem__(self, index: int) -> int:
            self.transform.write(f"{index}\n")
            return index

    with (tmp_path / "log").open("w") as log:
        assert together(Logs(log)) == EACH
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(set(lines)) == [str(index) for index in EACH]


def test_members_of_an_archive_are_read_from_each_workers_own(tmp_path: Path) -> None:
    for number in EACH:
        (tmp_path / str(number)).write_bytes(bytes([number]))
    with tarfile.open(tmp_path / "it.tar", "w") as archive:
        for number in EACH:
            archive.add(tmp_path / str(number), str(number))

    files: dict[int, Any] = {}

    class Members(Reads):
        def __getitem__(self, index: int) -> int:
            files[index] = self.file.fileobj
            self.sought.wait()
            return ord(self.file.extractfile(str(index)).read())

    with tarfile.open(tmp_path / "it.tar") as archive:
        assert together(Members(archive)) == EACH
        files[-1] = archive.fileobj
        assert archive.getnames() == list(map(str, EACH))
    assert len({id(file) for file in files.values()}) == THREADS + 1


@pytest.mark.parametrize("kind", ["connection", "cursor"])
def test_a_database_is_opened_again_for_each_worker(kind: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "it.db")
    connection.execute("CREATE TABLE rows (value INTEGER)")
    connection.executemany("INSERT INTO rows VALUES (?)", [(number,) for number in EACH])
    connection.commit()
    # As tutorials have it.
    connection.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }

    class Rows(Reads):
        def __getitem__(self, index: int) -> int:
            cursor = self.file.execute("SELECT value FROM rows WHERE value = ?", (index,))
            self.sought.wait()
            return cursor.fetchone()["value"]  # type: ignore[no-any-return]

    handle = connection if kind == "connection" else connection.cursor()
    assert together(Rows(handle)) == EACH
    connection.close()


def test_an_event_loop_is_each_workers_own() -> None:
    class Remote(Mapped):
        def __getitem__(self, index: int) -> Any:
            async def read() -> int:
                await asyncio.sleep(0)
                self.transform[1].wait()
                return index

            return self.transform[0].run_until_complete(read())

    loop = asyncio.new_event_loop()
    assert together(Remote([loop, Meeting()])) == EACH
    assert not loop.is_closed()
    loop.close()


@pytest.mark.parametrize("looks", [False, True])
def test_frames_of_a_picture_are_each_workers_own(looks: bool, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    frames = [image.new("L", (8, 8), 10 * number) for number in EACH]
    frames[0].save(tmp_path / "it.tif", save_all=True, append_images=frames[1:])

    class Frames(Reads):
        def read(self, file: Any, index: int) -> int:
            file.seek(index)
            self.sought.wait()
            return int(np.asarray(file)[0, 0])

    with image.open(tmp_path / "it.tif") as file:
        dataset = Frames(file)
        if looks:
            np.asarray(file)  # which reads the first frame
        assert together(dataset) == [10 * number for number in EACH]


# What stays shared


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def _of_file(column: str = "seen TEXT", detect_types: int = 0) -> sqlite3.Connection:
    """Return a connection that does not say all of how it was opened."""
    path = Path(tempfile.mkdtemp(), "it.db")
    connection = sqlite3.connect(path, detect_types=detect_types)
    connection.execute(f"CREATE TABLE rows ({column})")
    connection.commit()
    if not detect_types:
        connection.create_function("twice", 1, lambda value: 2 * value)
    return connection


SHARED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "socket": (lambda ends: ends[0], r"dataset\.part \(socket\.socket\)"),
    "iteration": (lambda _: (n for n in [1]), r"dataset\.part \(builtins\.generator\)"),
    "inside": (lambda ends: Mapped(ends[0]), r"dataset\.part\.transform \(socket\.socket\)"),
    "with functions": (lambda _: _of_file(), r"dataset\.part \(sqlite3\.Connection\)"),
    "to convert": (
        lambda _: _of_file("seen TIMESTAMP", sqlite3.PARSE_DECLTYPES),
        r"dataset\.part \(sqlite3\.Connection\)",
    ),
}


@pytest.mark.parametrize(("make", "named"), SHARED.values(), ids=SHARED)
def test_what_cannot_be_copied_is_named(make: Any, named: str, ends: Any) -> None:
    dataset = Mapped(float)
    dataset.part = part = make(ends)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=f"all workers share {named}") as caught:
        assert together(dataset) == EACH
    assert len(caught) == 1
    if isinstance(part, sqlite3.Connection):
        part.close()


def test_what_a_collate_function_shares_is_named(ends: Any) -> None:
    def collate(samples: Any, end: Any = ends[0]) -> Any:
        return end and samples

    with pytest.warns(UserWarning, match=r"collate_fn\.end \(socket\.socket\)"):
        assert list(ThreadLoader(range(4), 4, threads=2, collate_fn=collate)) == [EACH]
