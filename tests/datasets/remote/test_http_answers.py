"""What web servers may send, written out: read as it is meant, or refused; and what is too much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.patience import PATIENCE
from support.remote_server import Last, RemoteServer, Status, serving

from threadloader.datasets import RemoteFile, Retries
from threadloader.errors import RemoteError

RANGE = b"Content-Range: bytes 10-14/1000\r\n"
FIVE = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n" + RANGE

CODED = b"HTTP/1.1 206 x\r\nTransfer-Encoding: %b\r\n" + RANGE
CHUNKED = CODED % b"chunked"
CHUNKS = b"\r\n5\r\nhello\r\n0\r\n\r\n"

RIGHT = {
    "plain": FIVE + b"\r\nhello",
    "a word in between": b"HTTP/1.1 100 Continue\r\n\r\n" + FIVE + b"\r\nhello",
}
WRONG = {
    "a head without an end": Last(FIVE + b"X-Y: z\r\n"),
    "an early end": Last(FIVE + b"\r\nhell"),
    "another length": FIVE.replace(b": 5", b": 6") + b"\r\nhello!",
    "another range": FIVE.replace(b"10-14", b"11-15") + b"\r\nhello",
    "no range": FIVE.replace(RANGE, b"") + b"\r\nhello",
    "a range that is none": FIVE.replace(b"10-14", b"14-10") + b"\r\nhello",
    "a range beyond the file": FIVE.replace(b"/1000", b"/12") + b"\r\nhello",
    "chunks": CHUNKED + CHUNKS,
    "until the end": Last(b"HTTP/1.0 206 x\r\n" + RANGE + b"\r\nhello"),
    "another coding": CODED % b"gzip" + CHUNKS,
    "another protocol": Last(b"SSH-2.0-OpenSSH_9.6\r\n"),
}
SURPLUS = {
    "a right answer": FIVE.replace(b"10-14", b"0-4") + b"\r\nwrong",
    "much": bytes(1 << 20),
}


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": bytes(1000)}) as server:
        yield server


def open_data(server: RemoteServer, **options: Any) -> RemoteFile:
    limits = {"retries": Retries(attempts=1), "read_timeout": PATIENCE}
    return RemoteFile(server.url("/data.bin"), **limits | options)


@pytest.mark.parametrize("answer", RIGHT.values(), ids=RIGHT)
def test_a_range_is_read_as_it_is_meant(server: RemoteServer, answer: bytes) -> None:
    server.plan = lambda request: answer if request.first == 10 else None
    file = open_data(server)
    assert file.read_at(10, 5) == b"hello"
    assert file.read_at(20, 5) == bytes(5)  # nothing of the answer before is left


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_what_is_no_such_range_is_an_error(server: RemoteServer, answer: bytes) -> None:
    server.plan = lambda request: answer if request.first == 10 else None
    file = open_data(server)
    with pytest.raises(RemoteError) as raised:
        file.read_at(10, 5)
    assert (raised.value.path, raised.value.offset) == (server.url("/data.bin"), 10)
    assert file.read_at(20, 5) == bytes(5)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS)
def test_bytes_behind_an_answer_are_not_taken_for_the_next(
    server: RemoteServer, surplus: bytes, late: bool
) -> None:
    answer = RIGHT["plain"] + surplus * (not late)
    server.plan = lambda request: answer if request.first == 10 else None
    file = open_data(server)
    assert file.read_at(10, 5) == b"hello"
    if late:
        server.send(surplus)
    for offset in (0, 7, 90):
        assert file.read_at(offset, 5) == bytes(5)


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://host/x", "http://[", "http://host:70000/"]
)
def test_a_redirect_elsewhere_is_an_error_that_says_so(server: RemoteServer, location: str) -> None:
    server.plan = lambda _: Status(302, (("Location", location),))
    file = open_data(server, retries=3)
    for _ in range(2):
        with pytest.raises(RemoteError, match=r"a redirect to .*no URL of http or https"):
            file.read_at(0, 3)


def test_a_weak_etag_counts_less_than_the_time_of_the_last_change(server: RemoteServer) -> None:
    weak = b'ETag: W/"1"\r\n'
    changed = b"Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n"
    for headers, stamp in [
        (weak, '1000-W/"1"'),
        (weak + changed, "1000-Wed, 21 Oct 2015 07:28:00 GMT"),
        (b'ETag: "1"\r\n' + changed, '1000-"1"'),
        (b"", "1000-"),
    ]:
        head = b"HTTP/1.1 206 x\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/1000\r\n"
        answer = head + headers + b"\r\n\0"
        server.plan = lambda _, answer=answer: answer  # type: ignore[misc]
        assert open_data(server).stamp() == stamp


def test_a_path_is_quoted_once(server: RemoteServer) -> None:
    server.files["/a%20b%C3%BC.tar"] = b"hello"
    for path in ("/a%20b%C3%BC.tar", "/a bü.tar"):
        assert RemoteFile(server.url(path)).read_at(0, 5) == b"hello"
