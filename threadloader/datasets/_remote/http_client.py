"""Ranges over http and https, on connections that are kept open: one for each read in progress.

The thread that reads makes the request itself.  fsspec's own client makes all requests of a process
in one thread; ``benches/remote_reads.py`` measures what that costs.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from threadloader._lifetime.dropping import when_dropped
from threadloader.datasets._remote.client import FetchedRange, TransferError
from threadloader.datasets._remote.http_connection import Answer, Connection
from threadloader.datasets._remote.http_range import read_range

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HttpClient", "understands"]

# A forked child must not use its parent's connections: two processes would read one stream.
Origin: TypeAlias = "tuple[int, str, str]"  # process, scheme, host and port
Idle: TypeAlias = "dict[Origin, deque[Connection]]"

MOST_REDIRECTS = 10
UNQUOTED = "%/:=&?~+!$,;'@()*[]"  # stay as they are in a URL's path and query
# Options of fsspec's http file system that do not matter for reading a range.
WITHOUT_EFFECT = frozenset({"block_size", "cache_options", "cache_type", "simple_links"})


def understands(options: Mapping[str, Any]) -> bool:
    """Whether this module knows all of these options of fsspec's for http."""
    client = options.get("client_kwargs") or {}
    rest = options.keys() - {"client_kwargs", "headers"} - WITHOUT_EFFECT
    return not rest and client.keys() <= {"auth", "headers"}


class HttpClient:
    """Reads ranges of files on web servers.

    Args:
        options: fsspec's, see `understands`.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds without a byte, and for each MiB, after which a read has failed.

    Threads:
        all: shared.  One thread at a time uses a connection.
    """

    def __init__(
        self, options: Mapping[str, Any], connect_timeout: float, read_timeout: float
    ) -> None:
        self._headers, self._auth = _credentials(options)
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._context: ssl.SSLContext | None = None
        # No lock: setting, popping and appending are atomic on both builds.
        self._idle: Idle = {}
        # Targets of redirects, by URL: requests go there directly until that fails.
        self._moved: dict[str, str] = {}
        when_dropped(self, _close, self._idle, at_exit=True)

    def read(self, url: str, offset: int, nbytes: int) -> FetchedRange:
        """Return a range; see `Client`.

        Raises:
            TransferError: An error status, or an answer that is not the range.
            OSError: The connection failed, or took too long.
        """
        moved = target = self._moved.get(url, url)
        for _ in range(MOST_REDIRECTS):
            try:
                answer = self._ask(url, target, offset, nbytes)
            except OSError:
                # The target of a redirect is often signed for minutes only: ask anew, once.
                self._moved.pop(url, None)
                if moved == url:
                    raise
                moved = target = url
                continue
            if isinstance(answer, FetchedRange):
                if target != url:
                    self._moved[url] = target
                return answer
            target = urljoin(target, answer)
        msg = f"{MOST_REDIRECTS} redirects, and no answer"
        raise TransferError(msg, 310)

    def forget(self, url: str) -> None:
        """Forget the target of a URL's redirects."""
        self._moved.pop(url, None)

    def close(self) -> None:
        """Close idle connections."""
        _close(self._idle)

    def _ask(self, url: str, target: str, offset: int, nbytes: int) -> FetchedRange | str:
        """Make one request; return the range, or the target of a redirect.

        Args:
            url: The URL that the credentials are for; no other host gets them.
            target: The URL that is requested: ``url``, or the target of its redirects.
            offset: In bytes.
            nbytes: At least 1.
        """
        place, trusted = urlsplit(target), urlsplit(url)
        host = _host(place)
        headers = {"Range": f"bytes={offset}-{offset + nbytes - 1}", "Accept-Encoding": "identity"}
        if (place.scheme, host) == (trusted.scheme, _host(trusted)):
            headers |= self._headers
            if auth := _basic(trusted.username, trusted.password) or self._auth:
                headers["Authorization"] = auth
        origin = os.getpid(), place.scheme, host
        connection, answer = self._get(origin, _path(place), headers)
        try:
            found = read_range(answer, offset, nbytes)
        except BaseException:
            connection.close()
            raise
        if answer.reusable:
            self._idle.setdefault(origin, deque()).append(connection)
        else:
            connection.close()
        return found

    def _get(self, origin: Origin, path: str, headers: dict[str, str]) -> tuple[Connection, Answer]:
        """Send a request; return the connection, and the answer without its body.

        An idle connection may have been closed by the server meanwhile, which is no failure.
        """
        if (idle := self._take(origin)) is not None:
            try:
                return idle, _get(idle, path, headers)
            except TimeoutError:  # a router forgot this connection, and so all that are as old
                self._drop(origin)
                raise
            except (ConnectionError, ssl.SSLError):
                pass
        _, scheme, host = origin
        if scheme == "https" and self._context is None:
            self._context = ssl.create_default_context()
        context = self._context if scheme == "https" else None
        fresh = Connection(scheme, host, self._connect_timeout, self._read_timeout, context)
        return fresh, _get(fresh, path, headers)

    def _drop(self, origin: Origin) -> None:
        _close({origin: self._idle.pop(origin, deque())})

    def _take(self, origin: Origin) -> Connection | None:
        """Return the idle connection that was used last, or None."""
        try:
            return self._idle[origin].pop()
        except (KeyError, IndexError):
            return None


def _get(connection: Connection, path: str, headers: dict[str, str]) -> Answer:
    """Send a request; on failure close the connection."""
    try:
        return connection.get(path, headers)
    except BaseException:
        connection.close()
        raise


def _close(idle: Idle) -> None:
    """Close all idle connections; other threads may add and take some meanwhile."""
    for connections in list(idle.values()):
        with suppress(IndexError):
            while True:
                connections.pop().close()


def _host(place: SplitResult) -> str:
    """Return host and port, without user and password."""
    return place.netloc.rpartition("@")[2]


def _path(place: SplitResult) -> str:
    """Return path and query, quoted where they are not yet."""
    query = f"?{place.query}" if place.query else ""
    return quote(f"{place.path or '/'}{query}", safe=UNQUOTED)


def _credentials(options: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return the headers that fsspec's options ask for, and the value of ``Authorization``."""
    client = options.get("client_kwargs") or {}
    headers = {**(client.get("headers") or {}), **(options.get("headers") or {})}
    if any(mark in text for text in (*headers, *headers.values()) for mark in "\r\n"):
        msg = f"a header must be one line; look at those named {sorted(headers)}"
        raise ValueError(msg)
    user, password, *_ = client.get("auth") or (None, None)
    return headers, _basic(user, password)


def _basic(user: str | None, password: str | None) -> str:
    """Return the value of ``Authorization``, "" without a user; both may be quoted."""
    if user is None:
        return ""
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return f"Basic {b64encode(pair.encode()).decode('ascii')}"
