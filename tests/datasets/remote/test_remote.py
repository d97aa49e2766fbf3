"""Remote files against a real server that misbehaves: the right bytes, or a clear error in time."""

from __future__ import annotations

import os
import random
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.remote_server import Fault, RemoteServer, Request, Status, serving
from urllib3 import HTTPConnectionPool

from threadloader import ThreadLoader
from threadloader.datasets import RemoteFile, Retries, open_files
from threadloader.errors import ClosedError, DataError, RemoteError

CONTENT = random.Random(17).randbytes(200_000)
SAMPLE = 500  # bytes
QUICK = Retries(attempts=4, first=0.001)
PATIENT = Retries(attempts=40, first=0.001, longest=0.01)
PASSING = [
    *(Fault.DROP, Fault.STALL, Fault.TRUNCATE, Fault.DRIP, Fault.SHORT_RANGE),
    b"220 ready for something else\r\n\r\n",
    *(Status(408), Status(425), Status(429), Status(500), Status(503)),
]
STALLS = {Fault.STALL, Fault.DRIP}  # only a limit on time notices them
SOON = 0.15  # seconds, such a limit; a busy machine may be late with a right answer, too
STAYING = [Status(400), Status(403), Status(404), Fault.WHOLE]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": CONTENT, "/empty.bin": b""}) as server:
        yield server


def open_data(server: RemoteServer, **options: Any) -> RemoteFile:
    given = {"retries": QUICK, "connect_timeout": PATIENCE, "read_timeout": PATIENCE, **options}
    return RemoteFile(server.url("/data.bin"), **given)


def at_first(fault: Any) -> Callable[[Request], Any]:
    return lambda request: fault if request.number == 0 else None


def test_a_long_read_is_several_ranges(server: RemoteServer) -> None:
    content = server.files["/data.bin"] = random.Random(3).randbytes(9 << 20)
    file = open_data(server)
    assert file.read_at(5, len(content) - 10) == content[5:-5]
    assert len(server.requests) == 3
    assert file.read_at(17, 0) == b""


def test_a_read_beyond_the_end_is_an_error_with_url_and_offset(server: RemoteServer) -> None:
    for path, size in (("/data.bin", len(CONTENT)), ("/empty.bin", 0)):
        file = RemoteFile(server.url(path))
        for offset, nbytes in [(size - size // 9, size), (size, 1), (10**9, 1)]:
            with pytest.raises(DataError, match=f"ends at {size:,}") as raised:
                file.read_at(offset, nbytes or 1)
            assert (raised.value.path, raised.value.offset) == (server.url(path), offset)


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_a_fault_that_passes_is_not_noticed(server: RemoteServer, fault: Any) -> None:
    server.plan = at_first(fault)
    before = random.getstate()
    limits = {"retries": PATIENT, "read_timeout": SOON} if fault in STALLS else {}
    assert open_data(server, **limits).read_at(1000, SAMPLE) == CONTENT[1000 : 1000 + SAMPLE]
    assert random.getstate() == before  # waits draw no random number of the sample's
    assert len(server.requests) == 2 or (fault in STALLS and len(server.requests) > 2)


@pytest.mark.parametrize("fault", [Fault.DRIP, Fault.TRUNCATE, Status(503)], ids=str)
def test_a_fault_that_does_not_pass_is_an_error_with_url_and_offset(
    server: RemoteServer, fault: Any, spawn: Spawn
) -> None:
    server.plan = lambda _: fault
    limit = SOON if fault in STALLS else PATIENCE
    file = open_data(server, retries=Retries(attempts=3, first=0.001), read_timeout=limit)
    with pytest.raises(RemoteError, match="after 3 tries") as raised:
        spawn(file.read_at, 1000, SAMPLE).result(PATIENCE)
    assert (raised.value.path, raised.value.offset) == (server.url("/data.bin"), 1000)
    assert isinstance(raised.value.__cause__, Exception)
    server.wait_for(lambda: len(server.requests) == 3)


@pytest.mark.parametrize("fault", STAYING, ids=str)
def test_what_another_try_can_not_help_is_an_error_at_once(
    server: RemoteServer, fault: Any
) -> None:
    server.plan = lambda _: fault
    with pytest.raises(RemoteError) as raised:
        open_data(server).read_at(1000, SAMPLE)
    assert (raised.value.path, raised.value.offset) == (server.url("/data.bin"), 1000)
    assert len(server.requests) == 1


@pytest.mark.parametrize("fault", [Fault.CLOSE, Fault.SILENT_CLOSE], ids=str)
def test_a_connection_that_the_server_closes_is_no_failure(
    server: RemoteServer, fault: Fault
) -> None:
    server.plan = lambda _: fault
    file = open_data(server, retries=1)
    for number in range(3):
        assert file.read_at(number, 10) == CONTENT[number : number + 10]
        server.wait_for(lambda: not server.open)
    assert server.connections == 3


def test_a_wait_is_random_below_a_bound_that_doubles_and_the_servers_time_counts() -> None:
    retries = Retries(attempts=9, first=0.5, longest=3.0)
    bounds = [retries.wait_s(failed, None, lambda: 1.0) for failed in range(1, 6)]
    assert bounds == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert retries.wait_s(3, None, lambda: 0.25) == 0.5
    assert retries.wait_s(1, 2.0, lambda: 0.5) == 2.25  # not before it, and not all at once
    assert retries.wait_s(1, 3600.0, lambda: 0.0) == 3.0  # up to the limit


def test_a_server_may_ask_to_come_back_at_once(server: RemoteServer) -> None:
    server.plan = at_first(Status(503, (("Retry-After", "0"),)))
    file = open_data(server, retries=Retries(attempts=2, first=0.0, longest=PATIENCE))
    assert file.read_at(0, 10) == CONTENT[:10]


@pytest.mark.skipif(sys.platform != "linux", reason="how long a backlog is differs")
def test_a_connection_that_does_not_come_about_is_given_up_in_time(
    spawn: Spawn,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        full = [socket.socket() for _ in range(4)]
        for caller in full:
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        once = Retries(attempts=1)
        file = RemoteFile(f"http://127.0.0.1:{port}/", connect_timeout=0.2, retries=once)
        with pytest.raises(RemoteError, match="timed out"):
            spawn(file.read_at, 0, 1).result(PATIENCE)  # the system gives up after 130 seconds
        for caller in full:
            caller.close()


def test_a_file_that_changes_is_an_error_and_not_a_mixture(server: RemoteServer) -> None:
    server.etags["/data.bin"] = '"1"'
    file = open_data(server)
    assert file.read_at(0, 10) == CONTENT[:10]
    before = file.stamp()
    server.files["/data.bin"], server.etags["/data.bin"] = CONTENT[::-1], '"2"'
    with pytest.raises(DataError, match="changed") as raised:
        file.read_at(10, 10)
    assert raised.value.offset == 10
    file.close()  # which changes nothing in that
    with pytest.raises(DataError, match="changed"):
        file.read_at(10, 10)
    file = open_data(server)
    assert file.read_at(10, 10) == CONTENT[::-1][10:20]
    assert file.stamp() != before


def test_blocks_of_another_version_or_one_that_is_not_told_are_not_kept(
    server: RemoteServer, tmp_path: Path
) -> None:
    def put(content: bytes, etag: str) -> None:
        server.files["/data.bin"], server.etags["/data.bin"] = content, etag

    def change(_: Request) -> None:
        file.close()
        put(CONTENT[::-1], '"B"')

    put(CONTENT, '"A"')
    file = open_data(server, cache_folder=tmp_path)
    assert file.stamp() == f'{len(CONTENT)}-"A"'
    server.plan = change  # between the question for the version and the block
    with pytest.raises((ClosedError, DataError)):
        file.read_at(0, 10)
    server.plan = lambda _: None
    put(CONTENT, '"A"')
    file = open_data(server, cache_folder=tmp_path)
    file.size()
    del server.etags["/data.bin"]
    assert file.read_at(5, 10) == CONTENT[5:15]
    assert not list(tmp_path.rglob("*.kept"))


def test_closing_the_file_ends_waiting_for_the_next_try(server: RemoteServer, spawn: Spawn) -> None:
    server.plan = lambda _: Status(503, (("Retry-After", "1000"),))
    file = open_data(server, retries=Retries(longest=1000.0))
    reads = [spawn(file.read_at, number, 1) for number in range(8)]
    server.wait_for(lambda: len(server.requests) == 8)
    file.close()
    for read in reads:
        with pytest.raises(ClosedError):
            read.result(PATIENCE)
    server.plan = lambda _: None
    assert file.read_at(0, 10) == CONTENT[:10]


def test_connections_are_closed_with_a_file_and_opened_again(server: RemoteServer) -> None:
    files = open_files([server.url("/data.bin")] * 3)
    for turn in (1, 2):
        for each in files:
            each.read_at(0, 10)
        assert (server.connections, len(server.open)) == (turn, 1)  # one is for all of them
        files[0].close()
        server.wait_for(lambda: not server.open)
    files[0].read_at(0, 10)
    del files, each
    server.wait_for(lambda: not server.open)


def test_closing_a_file_does_not_end_the_reads_of_another_one(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = open_files([server.url("/data.bin")] * 2, retries=1)
    urlopen = HTTPConnectionPool.urlopen

    def close_other(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        other.close()
        return urlopen(*arguments, **options)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", close_other)
    assert file.read_at(5, 10) == CONTENT[5:15]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_reads_on_connections_of_its_own(server: RemoteServer, spawn: Spawn) -> None:
    file = open_data(server)
    file.read_at(0, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, 3.12
        child = os.fork()
    if not child:
        status = 1
        try:
            status = int(file.read_at(20, 10) != CONTENT[20:30])
        finally:
            os._exit(status)
    assert file.read_at(10, 10) == CONTENT[10:20]
    assert spawn(os.waitpid, child, 0).result(PATIENCE)[1] == 0
    assert file.read_at(30, 10) == CONTENT[30:40]
    by_offset = {request.first: request.connection for request in server.requests}
    assert by_offset[0] == by_offset[10] == by_offset[30] != by_offset[20]


def test_what_was_read_is_read_from_the_cache(server: RemoteServer, tmp_path: Path) -> None:
    server.etags["/data.bin"] = '"1"'

    def signed(number: int) -> RemoteFile:
        url = server.url(f"/data.bin?X-Amz-Signature={number}")
        return RemoteFile(url, cache_folder=tmp_path)

    assert signed(1).read_at(5, 1000) == CONTENT[5:1005]
    asked = len(server.requests)
    again = signed(2)
    assert again.read_at(0, len(CONTENT)) == CONTENT
    assert len(server.requests) == asked + 1  # whether it is still the same file
    assert again.read_at(9, 5) == CONTENT[9:14]
    assert len(server.requests) == asked + 1
    server.files["/data.bin"], server.etags["/data.bin"] = CONTENT[::-1], '"2"'
    assert signed(1).read_at(9, 5) == CONTENT[::-1][9:14]


def test_of_many_that_share_a_cache_folder_one_requests_a_range(
    server: RemoteServer, tmp_path: Path, spawn: Spawn
) -> None:
    server.etags["/data.bin"] = '"1"'
    files = [open_data(server, cache_folder=tmp_path) for _ in range(8)]
    reads = [spawn(file.read_at, 5, 1000) for file in files]
    assert {read.result(PATIENCE) for read in reads} == {CONTENT[5:1005]}
    assert sum(request.last != 0 for request in server.requests) == 1  # one byte tells the version


@pytest.mark.parametrize("how", ["closed", "closed, with kept workers", "dropped"])
@pytest.mark.usefixtures("first_sample_waits")
def test_a_loader_that_ends_does_not_wait_for_the_next_try(
    server: RemoteServer, spawn: Spawn, how: str
) -> None:
    server.plan = lambda _: Status(503, (("Retry-After", "1000"),))
    file = open_data(server, retries=Retries(attempts=9, longest=1000.0))
    samples = Acting(1000, sample=lambda index: file.read_at(index, 1)[0])
    loader = ThreadLoader(samples, 16, threads=4, persistent_workers="kept" in how)
    batches = iter(loader)
    server.wait_for(lambda: len(server.requests) >= 4)
    if how != "dropped":
        spawn(loader.close).result(PATIENCE)  # of the 1,000 seconds that the server asks for
    del batches, loader  # that no thread is left is what conftest.py looks at
