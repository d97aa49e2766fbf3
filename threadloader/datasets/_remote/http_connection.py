"""One connection to a web server: a request, its answer, the next request.

`http.client` is not used, since it reads each head with the parser for e-mail.  A read of 4 KiB
took 130 us of CPU with it and takes 65 without on 3.11, 220 and 75 on 3.13t, and threads wait for
each other's (against a server without latency, two runs on 2 shared cores).
"""

from __future__ import annotations

import re
import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from threadloader.datasets._remote.client import MIB, TransferError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PORTS", "Answer", "Connection"]

PORTS = {"http": 80, "https": 443}
LONGEST_LINE = 1 << 16  # bytes
MOST_INTERIM = 20
MOST_LINES = 200  # of a head: one that never ends must not fill the memory
BUFFER = 1 << 14  # bytes: room for a head and a small range
LINE_ENDS = frozenset({b"\r\n", b"\n"})
_STATUS = re.compile(rb"HTTP/1\.(\d) (\d{3})(?: ([^\r\n]*))?\r?\n")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


class Connection:
    """A connection to a server.

    Args:
        scheme: ``http`` or ``https``.
        host: With the port, unless it is the scheme's default.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds to wait for a byte, and for a whole answer from its request on;
            `Answer.allow` adds as many for each MiB of the body.
        context: For ``https``.

    Raises:
        OSError: There is no connection in time, or the server has a wrong certificate.

    Threads:
        all: compatible.
    """

    def __init__(
        self,
        scheme: str,
        host: str,
        connect_timeout: float,
        read_timeout: float,
        context: ssl.SSLContext | None,
    ) -> None:
        place = urlsplit(f"//{host}")
        address = place.hostname or "", place.port or PORTS[scheme]
        self._host, self._timeout = host, read_timeout
        self._socket = socket.create_connection(address, connect_timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=address[0])
            self._socket.settimeout(read_timeout)
            self._incoming = _Incoming(self._socket, read_timeout)
        except BaseException:
            self._socket.close()
            raise

    def get(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Send a request; return the answer, without its body.

        Args:
            path: With the query, quoted.
            headers: All but ``Host``.

        Raises:
            OSError: The connection ended, or the answer is late.
            TransferError: The answer is not HTTP.
        """
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n{''.join(lines)}\r\n"
        self._incoming.begin()
        self._socket.sendall(head.encode("latin-1"))
        for _ in range(MOST_INTERIM):  # interim answers: "Continue", "Early Hints"
            answer = Answer(self._incoming)
            if answer.status >= 200:
                return answer
        msg = f"{MOST_INTERIM} interim answers, and no answer"
        raise TransferError(msg)

    def is_quiet(self) -> bool:
        """Whether nothing came behind the last answer: no bytes, and no end of the connection."""
        if self._incoming.has_data:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(self._timeout)
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """End the connection.  Idempotent."""
        self._socket.close()


class _Incoming:
    """The bytes that a server sends, until a deadline.

    A `BufferedReader` has no deadline: while a byte comes now and then, which keeps within the
    socket's limit, its `readline` would wait forever for the end of a line.

    Args:
        connection: Its own limit is on the time without a byte.  The deadline may be missed by so
            much, since it is checked before each wait.
        seconds: For a request and the head of its answer, and for each MiB of the body.

    Threads:
        all: compatible.
    """

    __slots__ = ("_at", "_begun", "_data", "_deadline", "_seconds", "_socket")

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._socket, self._seconds = connection, seconds
        self._data, self._at = b"", 0  # bytes that came, and the offset of those not yet read
        self.begin()

    def begin(self) -> None:
        """Start the time of a request."""
        self._begun = monotonic()
        self._deadline = self._begun + self._seconds

    def allow(self, nbytes: int) -> None:
        """Allow the time for a body of so many bytes, counted from the request on."""
        self._deadline = self._begun + self._seconds * (1 + nbytes / MIB)

    @property
    def has_data(self) -> bool:
        """Whether bytes came that were not read."""
        return self._at < len(self._data)

    def line(self) -> bytes:
        """Return the next line with its end; less if the connection ends or the line is too long.

        Raises:
            OSError: The connection broke, or the line is late.
        """
        end = self._data.find(b"\n", self._at) + 1
        while not end:
            came = self._data[self._at :]
            room = min(BUFFER, LONGEST_LINE - len(came))
            self._check_time()
            more = self._socket.recv(room) if room else b""
            if not more:
                self._data, self._at = b"", 0
                return came
            self._data, self._at = came + more, 0
            end = self._data.find(b"\n", len(came)) + 1
        line = self._data[self._at : end]
        self._at = end
        return line

    def read_into(self, target: memoryview) -> int:
        """Write some bytes; return how many, 0 at the end.

        Raises:
            OSError: The connection broke, or the bytes are late.
        """
        begin = self._at
        if begin == len(self._data):
            self._check_time()
            return self._socket.recv_into(target)
        data = self._data[begin : begin + len(target)]
        target[: len(data)] = data
        self._at = begin + len(data)
        if self._at == len(self._data):
            self._data, self._at = b"", 0  # an idle connection keeps no memory
        return len(data)

    def _check_time(self) -> None:
        """Check the deadline, before a wait."""
        if monotonic() > self._deadline:
            msg = f"the answer takes too long: it had {self._deadline - self._begun:.1f} s"
            raise TimeoutError(msg)


class Answer:
    """An answer: its head is read at once, its body piece by piece.

    Args:
        incoming: The bytes that the server sends.

    Attributes:
        status: HTTP's.
        reason: The status in words, maybe empty.
        headers: By name in lower case.
        length: Of the body, in bytes; None if the server does not tell.

    Raises:
        ConnectionError: The connection ended without an answer.
        TimeoutError: The head is late.
        TransferError: The answer is not HTTP, or its body has a coding that was not asked for.
    """

    __slots__ = (
        "_chunked",
        "_incoming",
        "_kept_open",
        "_left",
        "headers",
        "length",
        "reason",
        "status",
    )

    def __init__(self, incoming: _Incoming) -> None:
        line = incoming.line()
        if not line:
            msg = "the server ended the connection without an answer"
            raise ConnectionResetError(msg)
        found = _STATUS.fullmatch(line)
        if found is None:
            msg = f"this is no answer of a web server: {line[:40]!r}"
            raise TransferError(msg)
        version, status, reason = found.groups(b"")
        self.status, self.reason = int(status), reason.decode("latin-1")
        self.headers = headers = _read_headers(incoming)
        coding = headers.get("transfer-encoding", "").lower()
        if coding not in {"", "chunked"}:  # its framing would be taken for the file's bytes
            msg = f"the server codes the body as {coding[:40]!r}, which was not asked for"
            raise TransferError(msg, self.status)
        self._chunked = coding == "chunked"
        told = headers.get("content-length", "")
        self.length = int(told) if told.isdecimal() and not self._chunked else None
        self._kept_open = version != b"0" and headers.get("connection", "").lower() != "close"
        self._incoming = incoming
        # Bytes to come, of the body or of the chunk; None if the body ends with the connection.
        self._left = 0 if self._chunked else self.length

    @property
    def reusable(self) -> bool:
        """Whether the body was read to its end, and the connection can take another request."""
        return self._kept_open and self.length is not None and not self._left

    def allow(self, nbytes: int) -> None:
        """Allow the time for so many bytes of the body; without it there is only the head's."""
        self._incoming.allow(nbytes)

    def read_into(self, target: memoryview) -> int:
        """Write some bytes of the body; return how many, 0 at its end.

        Raises:
            OSError: The connection broke, or the bytes are late.
            TransferError: The body is not HTTP.
        """
        if self._chunked and not self._left:
            self._left = _read_chunk_size(self._incoming)
        if self._left is None:
            return self._incoming.read_into(target)
        if not self._left:
            return 0
        if len(target) <= self._left:
            count = self._incoming.read_into(target)
        else:
            with target[: self._left] as room:
                count = self._incoming.read_into(room)
        self._left -= count
        if self._chunked and count and not self._left and self._incoming.line() not in LINE_ENDS:
            msg = "a chunk of the answer is longer than it is said to be, or breaks off"
            raise TransferError(msg)
        return count


def _read_headers(incoming: _Incoming) -> dict[str, str]:
    """Return the headers; if one comes twice the last value counts, but all codings do."""
    headers: dict[str, str] = {}
    for _ in range(MOST_LINES):
        line = incoming.line()
        if line in LINE_ENDS:
            return headers
        name, mark, value = line.decode("latin-1").partition(":")
        # The last condition finds a continued line, or a name that others may read differently.
        if not mark or not line.endswith(b"\n") or name != name.strip():
            break
        name, value = name.lower(), value.strip()
        if name == "transfer-encoding" and name in headers:
            value = f"{headers[name]}, {value}"
        headers[name] = value
    msg = "the head of the answer breaks off, or is no HTTP"
    raise TransferError(msg)


def _read_chunk_size(incoming: _Incoming) -> int:
    """Return the length of the next chunk in bytes; 0 after the last."""
    line = incoming.line()
    found = _CHUNK.fullmatch(line)
    if found is None:
        msg = f"the answer breaks off, or {line[:40]!r} is no size of a chunk"
        raise TransferError(msg)
    return int(found[1], 16)
