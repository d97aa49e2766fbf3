"""A loader over remote files is closed at once, whatever its workers wait for."""

from __future__ import annotations

import random
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.remote_server import RemoteServer, Status, serving

from threadloader import ThreadLoader
from threadloader.datasets._remote.remote_file import RemoteFile
from threadloader.datasets._remote.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

FOR_EVER = Retries(attempts=9, longest=1000.0)


class Bytes:
    def __init__(self, file: RemoteFile) -> None:
        self.file = file

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return self.file.read_at(index, 1)[0]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": random.Random(17).randbytes(1000)}) as server:
        server.plan = lambda _: Status(503, (("Retry-After", "1000"),))
        yield server


@pytest.mark.parametrize("persistent", [True, False])
def test_closing_a_loader_does_not_wait_for_the_next_try(
    server: RemoteServer, spawn: Callable[..., Future[Any]], *, persistent: bool
) -> None:
    file = RemoteFile(server.url("/data.bin"), retries=FOR_EVER)
    loader = ThreadLoader(Bytes(file), 16, threads=4, persistent_workers=persistent)
    batches = iter(loader)
    server.wait_for(lambda: len(server.requests) >= 4)
    spawn(loader.close).result(PATIENCE)  # of the 1,000 seconds that the server asks for
    del batches


def test_dropping_an_iterator_ends_what_waits_for_the_next_try(server: RemoteServer) -> None:
    file = RemoteFile(server.url("/data.bin"), retries=FOR_EVER)
    batches = iter(ThreadLoader(Bytes(file), 16, threads=4))
    server.wait_for(lambda: len(server.requests) >= 4)
    del batches  # that no thread is left is what conftest.py looks at


def test_closing_a_loader_ends_a_worker_that_waits_for_a_stream(
    server: RemoteServer, spawn: Callable[..., Future[Any]]
) -> None:
    server.plan = lambda request: None if request.last == 0 else Status(503)
    file = RemoteFile(server.url("/data.bin"), retries=Retries(first=1000.0, longest=1000.0))
    opened = Event()

    def stream() -> Iterator[int]:
        with file.open() as stream:
            opened.set()
            yield from stream.read()

    loader = ThreadLoader(stream(), 16, threads=2, transform=int)
    batches = iter(loader)
    assert opened.wait(PATIENCE)
    server.wait_for(lambda: len(server.requests) == 2)
    spawn(loader.close).result(PATIENCE)
    del batches
