"""PerThread with real clients: HDF5 files, LMDB transactions, SQLite connections."""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from threading import Barrier, Event, Thread, get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._threads.per_thread import PerThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THREADS = 4
ROWS = np.arange(3 * 64, dtype=np.float32).reshape(64, 3)

persistent_or_not = pytest.mark.parametrize("persistent", [False, True])


class Meeting:
    """Where all threads are at once, the first time; keeps what each of them has open."""

    def __init__(self) -> None:
        self.seen: set[tuple[Thread, int]] = set()
        self.clients: dict[int, Any] = {}
        self._barrier = Barrier(THREADS, timeout=PATIENCE)
        self._over = Event()

    def attend(self, client: Any) -> None:
        self.seen.add((threading.current_thread(), id(client)))
        self.clients[id(client)] = client
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


def load_two_epochs(dataset: Rows, *, persistent: bool) -> list[Any]:
    """Load everything twice, each thread with one client; return the clients that were made."""
    with ThreadLoader(
        dataset, batch_size=8, shuffle=True, seed=3, threads=THREADS, persistent_workers=persistent
    ) as loader:
        for _ in range(2):
            rows = np.concatenate([np.asarray(batch) for batch in loader])
            np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], ROWS)
    threads = {thread for thread, _ in dataset.meeting.seen}
    for thread in threads:
        thread.join(PATIENCE)  # those of an epoch that is over end soon after it
    assert len(dataset.meeting.seen) == len(threads) == len(dataset.meeting.clients)
    assert len(threads) == THREADS if persistent else len(threads) > THREADS
    return list(dataset.meeting.clients.values())


@persistent_or_not
def test_hdf5_files(tmp_path: Path, persistent: bool) -> None:
    h5py = pytest.importorskip("h5py", reason="needs h5py: no wheel for 3.13t")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.create_dataset("rows", data=ROWS, chunks=(8, 3), compression="gzip")
    files = PerThread(partial(h5py.File, tmp_path / "rows.h5"))
    dataset = Rows(files, lambda file, index: file["rows"][index])
    for file in load_two_epochs(dataset, persistent=persistent):
        assert not file.id.valid


@persistent_or_not
def test_lmdb_transactions_of_one_environment(tmp_path: Path, persistent: bool) -> None:
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb: no wheel for 3.13t")
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        for index, row in enumerate(ROWS):
            transaction.put(b"%d" % index, row.tobytes())
    with lmdb.open(str(tmp_path), readonly=True) as environment:
        transactions = PerThread(partial(environment.begin, buffers=True))
        dataset = Rows(
            transactions,
            lambda transaction, index: np.frombuffer(
                transaction.get(b"%d" % index), np.float32
            ).copy(),
        )
        for transaction in load_two_epochs(dataset, persistent=persistent):
            with pytest.raises(lmdb.Error, match="closed"):
                transaction.get(b"0")
        _, *readers = environment.readers().splitlines()
        assert all(reader.endswith("-") for reader in readers)  # nobody reads


def test_lmdb_refuses_an_environment_for_each_thread(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb: no wheel for 3.13t")
    environments = PerThread(partial(lmdb.open, str(tmp_path)))
    environments()
    errors: list[Exception] = []

    def use() -> None:
        try:
            environments()
        except lmdb.Error as error:
            errors.append(error)

    thread = Thread(target=use)
    thread.start()
    thread.join(PATIENCE)
    assert "already open in this process" in str(errors[0])


class Connection(sqlite3.Connection):
    """Notes by whom it was closed; SQLite refuses that to all threads but one."""

    closed_by: int | None = None

    def close(self) -> None:
        super().close()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            self.execute("select 1")
        self.closed_by = get_ident()


@persistent_or_not
def test_sqlite_connections(tmp_path: Path, persistent: bool) -> None:
    path = tmp_path / "rows.db"
    writer = sqlite3.connect(path)
    with writer:
        writer.execute("create table rows (id integer primary key, x real, y real, z real)")
        rows = [(index, *row) for index, row in enumerate(ROWS.tolist())]
        writer.executemany("insert into rows values (?, ?, ?, ?)", rows)
    writer.close()
    connections = PerThread(partial(sqlite3.connect, path, factory=Connection))

    def read(connection: Connection, index: int) -> Any:
        query = "select x, y, z from rows where id = ?"
        return np.array(connection.execute(query, (index,)).fetchone(), np.float32)

    for connection in load_two_epochs(Rows(connections, read), persistent=persistent):
        assert connection.closed_by is not None
