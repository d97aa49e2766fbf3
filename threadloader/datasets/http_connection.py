"""One connection to a web server: a request, its answer, the next request.

Not `http.client`, which reads each head with the parser for e-mail: a read of 4 KiB took 130 us of
CPU with it and takes 65 without on 3.11, 220 and 75 on 3.13t, and threads wait for one another's
(against a server without latency, two runs on 2 shared cores).
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from threadloader.datasets.parts import TransferError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from io import BufferedReader

__all__ = ["Answer", "Connection"]

PORTS = {"http": 80, "https": 443}
LONGEST_LINE = 1 << 16  # bytes
MOST_INTERIM = 20
MOST_LINES = 200  # of a head: a server that never ends it must not fill the memory
BUFFER = 1 << 14  # bytes; has room for a head and a small range
_STATUS = re.compile(rb"HTTP/1\.(\d) (\d{3})(?: ([^\r\n]*))?\r?\n")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


class Connection:
    """A connection to a server.

    Args:
        scheme: ``http`` or ``https``.
        host: With its port, unless that is the scheme's.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds to wait for a byte.
        context: For ``https``.

    Raises:
        OSError: There is no connection, or not in time, or the server is not the one it should be.

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
        self._host = host
        self._socket = socket.create_connection(address, connect_timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=address[0])
            self._socket.settimeout(read_timeout)
            self._file = cast("BufferedReader", self._socket.makefile("rb", BUFFER))
        except BaseException:
            self._socket.close()
            raise

    def get(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Send a request; return the answer, without its body.

        Args:
            path: With the query, quoted.
            headers: All but ``Host``.

        Raises:
            OSError: The connection ended, or the answer does not come in time.
            TransferError: The answer is not HTTP.
        """
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n{''.join(lines)}\r\n"
        self._socket.sendall(head.encode("latin-1"))
        for _ in range(MOST_INTERIM):  # words in between: "Continue", "Early Hints"
            answer = Answer(self._file)
            if answer.status >= 200:
                return answer
        msg = f"{MOST_INTERIM} interim answers, and no answer"
        raise TransferError(msg)

    def close(self) -> None:
        """End the connection.  Idempotent."""
        self._file.close()
        self._socket.close()


class Answer:
    """An answer, whose body is read bit by bit.

    Args:
        file: What the server sends.

    Attributes:
        status: HTTP's.
        reason: The same in words, maybe empty.
        headers: By name in lower case.
        length: Of the body, in bytes; None if the server does not tell.

    Raises:
        ConnectionError: There is none.
        TransferError: It is not HTTP.
    """

    __slots__ = (
        "_chunked",
        "_file",
        "_kept_open",
        "_left",
        "headers",
        "length",
        "reason",
        "status",
    )

    def __init__(self, file: BufferedReader) -> None:
        line = file.readline(LONGEST_LINE)
        if not line:
            msg = "the server ended the connection without an answer"
            raise ConnectionResetError(msg)
        found = _STATUS.fullmatch(line)
        if found is None:
            msg = f"this is no answer of a web server: {line[:40]!r}"
            raise TransferError(msg)
        version, status, reason = found.groups(b"")
        self.status, self.reason = int(status), reason.decode("latin-1")
        self.headers = headers = _read_headers(file)
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        told = headers.get("content-length", "")
        self.length = int(told) if told.isdecimal() and not self._chunked else None
        self._kept_open = version != b"0" and headers.get("connection", "").lower() != "close"
        self._file = file
        # Bytes to come, of the body or the chunk; None if the connection's end is the body's.
        self._left = 0 if self._chunked else self.length

    @property
    def reusable(self) -> bool:
        """Whether the body was read to its end, and the connection can have another request."""
        return self._kept_open and self.length is not None and not self._left

    def read1(self, nbytes: int) -> bytes:
        """Return some bytes of the body, at most ``nbytes``; none at its end.

        Raises:
            OSError: The connection broke, or they do not come in time.
            TransferError: It is not HTTP.
        """
        if self._chunked and not self._left:
            self._left = _read_chunk_size(self._file)
        if self._left is None:
            return self._file.read1(nbytes)
        data = self._file.read1(min(nbytes, self._left))
        self._left -= len(data)
        if self._chunked and data and not self._left:
            self._file.readline(LONGEST_LINE)  # what ends a chunk
        return data


def _read_headers(file: BufferedReader) -> dict[str, str]:
    """Return the headers of an answer, of those that come twice the last."""
    headers: dict[str, str] = {}
    for _ in range(MOST_LINES):
        line = file.readline(LONGEST_LINE)
        if line in {b"\r\n", b"\n"}:
            return headers
        name, mark, value = line.decode("latin-1").partition(":")
        if not mark:
            break
        headers[name.lower()] = value.strip()
    msg = "the head of the answer breaks off, or is no HTTP"
    raise TransferError(msg)


def _read_chunk_size(file: BufferedReader) -> int:
    """Return how long the next chunk is, in bytes; 0 after the last."""
    line = file.readline(LONGEST_LINE)
    found = _CHUNK.fullmatch(line)
    if found is None:
        msg = f"the answer breaks off, or {line[:40]!r} is no size of a chunk"
        raise TransferError(msg)
    return int(found[1], 16)
