"""Streams over remote files: in order, ahead of who reads, and gone when they are dropped."""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.remote_server import Fault, RemoteServer, Status, serving

from threadloader.datasets import RemoteFile, Retries
from threadloader.errors import ClosedError, RemoteError

RANGE = 4 << 20  # bytes of one request
CONTENT = random.Random(17).randbytes(5 * RANGE + 1234)
QUICK = Retries(attempts=4, first=0.001)


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": CONTENT, "/empty.bin": b""}) as server:
        yield server


def open_data(server: RemoteServer, **options: Any) -> RemoteFile:
    limits = {"retries": QUICK, "read_timeout": PATIENCE}
    return RemoteFile(server.url("/data.bin"), **limits | options)


def threads_ahead() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tl-ahead"]


def test_a_stream_has_all_bytes_in_order(server: RemoteServer) -> None:
    draw = random.Random(3)
    with open_data(server).open() as stream:
        parts = []
        while part := stream.read(draw.choice([1, 100, 70_000, 3 << 20])):
            parts.append(part)
        assert stream.read(1) == b""
    with RemoteFile(server.url("/empty.bin")).open() as empty:
        assert empty.read() == b""
    assert b"".join(parts) == CONTENT
    asked = [request.first for request in server.requests if request.path == "/data.bin"]
    assert asked[1:] == list(range(0, len(CONTENT), RANGE))


def test_two_ranges_are_read_ahead_and_no_more(server: RemoteServer) -> None:
    file = open_data(server)

    def ahead() -> int:
        return max(request.first for request in server.requests) // RANGE

    with file.open() as stream:
        server.wait_for(lambda: ahead() == 1)  # before anything is consumed
        file.read_at(0, 2 * RANGE)  # takes as long as a third would
        assert ahead() == 1
        stream.read(1)
        server.wait_for(lambda: ahead() == 2)
        stream.read(RANGE - 200_000)
        file.read_at(0, 2 * RANGE)
        assert ahead() == 2
        stream.read(400_000)
        server.wait_for(lambda: ahead() == 3)


@pytest.mark.parametrize("fault", [Fault.DROP, Status(503)])
def test_a_stream_gets_over_faults(server: RemoteServer, fault: Fault | Status) -> None:
    server.plan = lambda request: fault if request.number % 2 else None
    with open_data(server).open() as stream:
        assert stream.read() == CONTENT


def test_an_error_comes_in_its_place_and_stays(server: RemoteServer) -> None:
    server.plan = lambda request: Status(503) if request.first == RANGE else None
    with open_data(server).open() as stream:
        assert stream.read(RANGE) == CONTENT[:RANGE]
        for _ in range(2):
            with pytest.raises(RemoteError) as raised:
                stream.read(1)
            assert raised.value.offset == RANGE


def test_a_stream_that_is_dropped_leaves_no_thread(server: RemoteServer) -> None:
    stream = open_data(server).open()
    stream.read(1)
    (ahead,) = threads_ahead()
    del stream
    ahead.join(PATIENCE)
    assert not ahead.is_alive()


def test_closing_the_file_ends_who_waits_for_a_stream(server: RemoteServer, spawn: Spawn) -> None:
    server.plan = lambda request: Status(503) if request.first else None
    file = open_data(server, retries=Retries(first=1000.0, longest=1000.0))
    with file.open() as stream:
        reading = spawn(stream.read)
        server.wait_for(lambda: len(server.requests) == 3)
        file.close()
        with pytest.raises(ClosedError):
            reading.result(PATIENCE)


def test_streams_of_one_file_are_independent(server: RemoteServer, tmp_path: Path) -> None:
    server.etags["/data.bin"] = '"1"'
    file = open_data(server, cache_folder=tmp_path)
    with file.open() as one, file.open() as other:
        assert one.read(100_000) == other.read(100_000) == CONTENT[:100_000]
        assert other.read() == CONTENT[100_000:]
        assert one.read() == CONTENT[100_000:]
    assert len(server.requests) == 1 + 6  # by way of the cache


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_stream_is_not_for_a_forked_child(server: RemoteServer, spawn: Spawn) -> None:
    with open_data(server).open() as stream:
        stream.read(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, 3.12
            child = os.fork()
        if not child:
            try:
                stream.read()
            except ClosedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert spawn(os.waitpid, child, 0).result(PATIENCE)[1] == 0
        assert stream.read() == CONTENT[1:]
