"""A web server on loopback that serves files from memory, and misbehaves when told to.

It runs in a thread of the test's process, on real sockets.  A test gives it a plan: a function
from each request to the fault that it meets, the bytes that are sent instead of an answer, or None
for a right one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from ssl import SSLContext
from threading import Condition, Thread
from typing import TypeAlias

from support.patience import PATIENCE

__all__ = ["Fault", "RemoteServer", "Request", "Status", "serving"]


class Fault(Enum):
    """What may happen to a request."""

    DROP = "the connection ends without an answer"
    STALL = "the answer stops in the middle of the body, and the connection stays open"
    TRUNCATE = "the connection ends in the middle of the body"
    DRIP = "the body comes byte by byte"
    WHOLE = "the range is ignored: 200, and the whole file"
    SHORT_RANGE = "206 with less than was asked for, and right about it"
    CLOSE = "a right answer, after which the connection ends"
    SILENT_CLOSE = "the same, without `Connection: close`"


@dataclass(frozen=True, slots=True)
class Status:
    """An answer with a status and no file."""

    code: int
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for."""

    number: int  # from 0, of this server
    connection: int  # from 0
    path: str  # without the query
    query: str
    first: int  # of the range; 0 without one
    last: int | None  # inclusive
    headers: dict[str, str]  # names in lower case


class Last(bytes):
    """What is sent before the connection is closed."""

    __slots__ = ()


Plan: TypeAlias = "Callable[[Request], Fault | Status | bytes | None]"


@dataclass(slots=True)
class RemoteServer:
    """What is served, and how; a test may change it at any time."""

    files: dict[str, bytes]  # by path, "/a.tar"
    plan: Plan = lambda _: None
    etags: dict[str, str] = field(default_factory=dict)
    scheme: str = "http"
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0  # opened so far
    open: set[int] = field(default_factory=set)  # connections that are open
    last: asyncio.StreamWriter | None = None  # of the connection that was opened last
    loop: asyncio.AbstractEventLoop | None = None
    changed: Condition = field(default_factory=Condition)  # a request, or a connection's end

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until something is so; fail the test if it takes too long."""
        with self.changed:
            assert self.changed.wait_for(predicate, PATIENCE)

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def send(self, data: bytes) -> None:
        """Send what nobody asked for, on the last connection; return once it is on its way."""

        async def write() -> None:
            assert self.last is not None
            self.last.write(data)

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(write(), self.loop).result(PATIENCE)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.last = writer
        connection, self.connections = self.connections, self.connections + 1
        self.open.add(connection)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(connection, reader, writer):
                    pass
        finally:
            writer.close()
            if self.scheme == "http":  # https: the client may never answer to the end of TLS
                with suppress(ConnectionError):
                    await writer.wait_closed()
            with self.changed:
                self.open.discard(connection)
                self.changed.notify_all()

    async def _answer(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether the connection stays open."""
        request = self._parse(connection, await reader.readuntil(b"\r\n\r\n"))
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        fault = self.plan(request)
        if fault is None and request.path not in self.files:
            fault = Status(404)
        if isinstance(fault, Status):
            writer.write(_head(fault.code, 0, dict(fault.headers)))
            return True
        if isinstance(fault, bytes):
            writer.write(fault)
            return not isinstance(fault, Last)
        if fault is Fault.DROP:
            return False
        return await self._file(request, fault, reader, writer)

    async def _file(
        self,
        request: Request,
        fault: Fault | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer with a file or a part of it; return whether the connection stays open."""
        status, headers, body = self._range(request, fault)
        if etag := self.etags.get(request.path):
            headers["ETag"] = etag
        if fault is Fault.CLOSE:
            headers["Connection"] = "close"
        writer.write(_head(status, len(body), headers))
        if fault is Fault.DRIP:
            return await _drip(body, writer)
        if fault in {Fault.TRUNCATE, Fault.STALL}:
            writer.write(body[: len(body) // 2])
            if fault is Fault.STALL:
                await reader.read()
            return False
        writer.write(body)
        await writer.drain()
        return fault not in {Fault.CLOSE, Fault.SILENT_CLOSE}

    def _range(self, request: Request, fault: Fault | None) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        content = self.files[request.path]
        size = len(content)
        if fault is Fault.WHOLE or request.last is None:
            return 200, {}, content
        if request.first >= size:
            return 416, {"Content-Range": f"bytes */{size}"}, b""
        first, last = request.first, min(request.last, size - 1)
        if fault is Fault.SHORT_RANGE:
            last = (first + last) // 2
        told = {"Content-Range": f"bytes {first}-{last}/{size}"}
        return 206, told, content[first : last + 1]

    def _parse(self, connection: int, head: bytes) -> Request:
        """Return what was asked for."""
        line, *lines = head.decode("latin-1").split("\r\n")
        _, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        pairs = (line.partition(": ") for line in lines if line)
        headers = {name.lower(): value for name, _, value in pairs}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        first = int(found[1]) if found else 0
        last = int(found[2]) if found and found[2] else None
        number = len(self.requests)
        return Request(number, connection, path, query, first, last, headers)


async def _drip(body: bytes, writer: asyncio.StreamWriter) -> bool:
    """Send a body byte by byte, 50 a second."""
    for number in range(len(body)):
        writer.write(body[number : number + 1])
        await writer.drain()
        await asyncio.sleep(0.02)
    return True


def _head(status: int, length: int, headers: dict[str, str]) -> bytes:
    """Return an answer as far as its body."""
    headers = {"Content-Length": str(length), **headers}
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@contextmanager
def serving(files: dict[str, bytes], context: SSLContext | None = None) -> Iterator[RemoteServer]:
    """Run a server for as long as the context lasts, for https with a ``context`` of ssl."""
    server = RemoteServer(files, scheme="http" if context is None else "https")
    started: Future[asyncio.Event] = Future()
    run = _run(server, context, started)
    thread = Thread(target=asyncio.run, args=(run,), name="server", daemon=True)
    thread.start()
    ended = started.result(PATIENCE)
    assert server.loop is not None
    try:
        yield server
    finally:
        server.loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE)


async def _run(
    server: RemoteServer, context: SSLContext | None, started: Future[asyncio.Event]
) -> None:
    """Serve until told to end; then close all connections."""
    ended = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await server.serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()  # or what is not sent yet would keep it open at the end
            tasks.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=256, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    server.loop = asyncio.get_running_loop()
    started.set_result(ended)
    await ended.wait()
    listener.close()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # the loop's next round is when transports that were aborted close
