"""PerThread with real clients: HDF5 files, LMDB transactions, SQLite connections."""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from threading import Barrier, Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader.datasets import PerThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THREADS = 4
Client = tuple[Any, Any, Any]  # how it is opened and read, and whether it is closed
ROWS = np.arange(3 * 64, dtype=np.float32).reshape(64, 3)


class Meeting:
    """Where all threads are at once, the first time; keeps what each of them has open."""

    def __init__(self) -> None:
        self.clients: dict[tuple[Thread, int], Any] = {}
        self._barrier = Barrier(THREADS, timeout=PATIENCE)
        self._over = Event()

    def attend(self, client: Any) -> None:
        self.clients[threading.current_thread(), id(client)] = client
        if not self._over.is_set():
            self._barrier.wait()
            self._over.set()


class Rows:
    """A dataset that reads row ``i`` by the calling thread's client."""

    def __init__(self, client: PerThread[Any], read: Callable[[Any, int], Any]) -> None:
        self.client = client
        self.read = read
        self.meeting = Meeting()

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        client = self.client()
        self.meeting.attend(client)
        return self.read(client, index)


def hdf5_file(path: Path) -> Client:
    h5py = pytest.importorskip("h5py", reason="needs h5py: no wheel for 3.13t")
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=ROWS, chunks=(8, 3), compression="gzip")
    return (
        partial(h5py.File, path),
        lambda file, index: file["rows"][index],
        lambda file: not file.id.valid,
    )


def lmdb_transaction(path: Path) -> Client:
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb: no wheel for 3.13t")
    environment = lmdb.open(str(path))  # LMDB refuses one for each thread
    with environment.begin(write=True) as transaction:
        for index, row in enumerate(ROWS):
            transaction.put(b"%d" % index, row.tobytes())

    def read(transaction: Any, index: int) -> Any:
        return np.frombuffer(transaction.get(b"%d" % index), np.float32).copy()

    def is_closed(transaction: Any) -> bool:
        with pytest.raises(lmdb.Error, match="closed"):
            transaction.get(b"0")
        return True

    return partial(environment.begin, buffers=True), read, is_closed


class Connection(sqlite3.Connection):
    """Notes that it was closed; SQLite refuses that to all threads but its own."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


def sqlite_connection(path: Path) -> Client:
    writer = sqlite3.connect(path)
    with writer:
        writer.execute("create table rows (id integer primary key, x real, y real, z real)")
        rows = [(index, *row) for index, row in enumerate(ROWS.tolist())]
        writer.executemany("insert into rows values (?, ?, ?, ?)", rows)
    writer.close()

    def read(connection: sqlite3.Connection, index: int) -> Any:
        query = "select x, y, z from rows where id = ?"
        return np.array(connection.execute(query, (index,)).fetchone(), np.float32)

    return partial(sqlite3.connect, path, factory=Connection), read, lambda each: each.closed


@pytest.mark.parametrize("client", [hdf5_file, lmdb_transaction, sqlite_connection])
@pytest.mark.parametrize("persistent", [False, True])
def test_each_thread_reads_with_a_client_of_its_own_that_is_closed_in_the_end(
    client: Callable[..., Any], persistent: bool, tmp_path: Path
) -> None:
    open_, read, is_closed = client(tmp_path / "rows")
    dataset = Rows(PerThread(open_), read)
    with ThreadLoader(
        dataset, 8, shuffle=True, seed=3, threads=THREADS, persistent_workers=persistent
    ) as loader:
        for _ in range(2):
            rows = np.concatenate([np.asarray(batch) for batch in loader])
            np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], ROWS)
    here = threading.current_thread()  # which may have made batches, too, and goes on
    clients = {key: client for key, client in dataset.meeting.clients.items() if key[0] is not here}
    threads = {thread for thread, _ in clients}
    for thread in threads:
        thread.join(PATIENCE)  # those of an epoch that is over end soon after it
    assert len(threads) == len(clients) == len({number for _, number in clients})
    assert len(threads) <= THREADS if persistent else len(threads) > 1
    assert all(map(is_closed, clients.values()))
