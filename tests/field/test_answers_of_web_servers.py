"""Web servers that send more than they were asked for, or send their clients elsewhere."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, TypeAlias

import pytest
from support.patience import PATIENCE

from threadloader.datasets import RemoteFile, Retries
from threadloader.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator

Served: TypeAlias = tuple[str, threading.Event, threading.Event]

DATA = bytes(range(100))
ANSWER = b"HTTP/1.1 206 OK\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/100\r\n\r\n???"
SURPLUS = {
    "an answer": b"HTTP/1.1 206 OK\r\nContent-Length: 0\r\n\r\n",
    "a right answer": ANSWER,
    "an error": b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n",
    "a redirect": b"HTTP/1.1 302 x\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n",
    "a line": b"\r\n",
    "a byte": b"\0",
    "much": bytes(1 << 20),
}


@contextmanager
def serving(location: str = "", surplus: bytes = b"", *, late: bool = False) -> Iterator[Served]:
    """Serve a redirect, or the data with more bytes behind the first range.

    Yields:
        The URL; what is set once the range was read, so that late bytes come; and once they came.
    """
    read, sent = threading.Event(), threading.Event()
    left = [surplus]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(302 if location else 206)
            if location:
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            part = DATA[int(first) : int(last) + 1]
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
            self.end_headers()
            more = left.pop() if left else b""
            self.wfile.write(part + more * (not late))
            if more and late:
                read.wait(PATIENCE)
                self.wfile.write(more)
            sent.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that leave
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/x", read, sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=list(SURPLUS))
def test_bytes_behind_an_answer_are_not_taken_for_the_next(surplus: bytes, late: bool) -> None:
    with serving(surplus=surplus, late=late) as (url, read, sent):
        file = RemoteFile(url, retries=Retries(attempts=1))
        assert file.read_at(0, 3) == DATA[:3]
        if late:
            read.set()
            sent.wait(PATIENCE)
        for offset in (0, 7, 90):
            assert file.read_at(offset, 3) == DATA[offset : offset + 3]
        file.close()


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://host/x", "http://[", "http://host:70000/"],
)
def test_a_redirect_elsewhere_is_an_error_that_says_so(location: str) -> None:
    with serving(location) as (url, _, _):
        file = RemoteFile(url, retries=Retries(attempts=3))
        for _ in range(2):
            with pytest.raises(RemoteError, match=r"a redirect to .*no URL of http or https"):
                file.read_at(0, 3)
        file.close()
