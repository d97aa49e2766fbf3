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
from threadloader.datasets._remote.http_connection import PORTS, Connection
from threadloader.datasets._remote.http_range import read_range
from threadloader.datasets._urls import shown_url
from threadloader.errors import shortened

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
            target = _redirected(target, answer)
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
        origin, path = (os.getpid(), place.scheme, host), _path(place)
        if (idle := self._take(origin)) is not None:
            try:
                return self._ask_by(idle, origin, path, headers, offset, nbytes)
            except TimeoutError:  # a router forgot this connection, and so all that are as old
                _close({origin: self._idle.pop(origin, deque())})
                raise
            except (ConnectionError, ssl.SSLError):
                pass  # the server has closed it meanwhile, which is no failure
            except TransferError as error:  # perhaps bytes behind the last answer, and no answer
                if error.status is not None and error.status >= 400:
                    raise
        fresh = self._connect(place.scheme, host)
        return self._ask_by(fresh, origin, path, headers, offset, nbytes)

    def _ask_by(
        self,
        connection: Connection,
        origin: Origin,
        path: str,
        headers: Mapping[str, str],
        offset: int,
        nbytes: int,
    ) -> FetchedRange | str:
        """Make a request by a connection, and keep that if it can take another one."""
        try:
            answer = connection.get(path, headers)
            found = read_range(answer, offset, nbytes)
        except BaseException:
            connection.close()
            raise
        if answer.reusable:
            self._idle.setdefault(origin, deque()).append(connection)
        else:
            connection.close()
        return found

    def _connect(self, scheme: str, host: str) -> Connection:
        if scheme == "https" and self._context is None:
            self._context = ssl.create_default_context()
        context = self._context if scheme == "https" else None
        return Connection(scheme, host, self._connect_timeout, self._read_timeout, context)

    def _take(self, origin: Origin) -> Connection | None:
        """Return the idle connection that was used last, or None.

        One on which the server has sent something since is closed.
        """
        try:
            while not (connection := self._idle[origin].pop()).is_quiet():
                connection.close()
        except (KeyError, IndexError):
            return None
        return connection


def _close(idle: Idle) -> None:
    """Close all idle connections; other threads may add and take some meanwhile."""
    for connections in list(idle.values()):
        with suppress(IndexError):
            while True:
                connections.pop().close()


def _redirected(target: str, location: str) -> str:
    """Return where a redirect leads to.

    Raises:
        TransferError: It is no URL that can be read here.
    """
    with suppress(ValueError):
        target = urljoin(target, location)
        place = urlsplit(target)
        if place.scheme in PORTS and place.hostname and place.port != 0:
            return target
    msg = f"a redirect to {shortened(shown_url(target))}, which is no URL of http or https"
    raise TransferError(msg, 310)


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
