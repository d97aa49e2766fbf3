"""What one read, one stream or one cached block has of a remote file is of one version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.remote_server import RemoteServer, Request, serving

from threadloader.datasets import RemoteFile, open_files
from threadloader.errors import ClosedError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANGE = 4 << 20  # bytes of one request
SIZE = 5 * RANGE


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({}) as server:
        put(server, b"A")
        yield server


def put(server: RemoteServer, letter: bytes) -> None:
    """Write the file anew."""
    server.files["/data.bin"], server.etags["/data.bin"] = letter * SIZE, f'"{letter.decode()}"'


def test_a_stream_ends_when_another_thread_closes_its_file(server: RemoteServer) -> None:
    file = RemoteFile(server.url("/data.bin"))

    def plan(request: Request) -> None:
        if request.first == 2 * RANGE:
            file.close()
        elif request.first > 2 * RANGE:
            put(server, b"B")

    server.plan = plan
    with file.open() as stream:
        assert stream.read(3 * RANGE) == b"A" * 3 * RANGE
        with pytest.raises(ClosedError):
            stream.read(1)
    server.plan = lambda _: None
    assert file.read_at(0, 1) == b"A"


def test_a_block_is_not_kept_under_the_name_of_another_version(
    server: RemoteServer, tmp_path: Path
) -> None:
    file = RemoteFile(server.url("/data.bin"), cache_folder=tmp_path)
    assert file.size() == SIZE

    def plan(_: Request) -> None:
        file.close()
        put(server, b"B")

    server.plan = plan
    with pytest.raises((ClosedError, DataError)):
        file.read_at(0, 10)
    server.plan = lambda _: None
    put(server, b"A")
    assert RemoteFile(server.url("/data.bin"), cache_folder=tmp_path).read_at(0, 10) == b"A" * 10


def test_a_block_whose_version_the_server_does_not_tell_is_not_kept(
    server: RemoteServer, tmp_path: Path
) -> None:
    file = RemoteFile(server.url("/data.bin"), cache_folder=tmp_path)
    assert file.stamp() == f'{SIZE}-"A"'
    del server.etags["/data.bin"]
    assert file.read_at(RANGE - 5, 10) == b"A" * 10
    assert not list(tmp_path.rglob("*.kept"))


@pytest.mark.parametrize("shared", [True, False])
def test_a_file_that_is_expected_stays_so_after_closing(
    server: RemoteServer, *, shared: bool
) -> None:
    url = server.url("/data.bin")
    file = open_files([url])[0] if shared else RemoteFile(url)
    file.expect(file.stamp())
    stream = file.open()
    file.close()
    with stream, pytest.raises(ClosedError):
        stream.read()
    assert file.read_at(0, 10) == b"A" * 10
    put(server, b"B")
    file.close()
    with pytest.raises(DataError, match="make its dataset anew"):
        file.read_at(0, 10)
    with file.open() as stream, pytest.raises(DataError, match="make its dataset anew"):
        stream.read()
