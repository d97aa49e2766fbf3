"""Ranges over http and https, by urllib3: the thread that reads makes the request itself.

fsspec's own client makes all requests of a process in one thread; ``benches/stores.py`` measures
what that costs.

Nothing in an answer is taken on trust.  A server may ignore the range, send another one or only a
part, break off in the middle, or send a byte now and then.  A body must have a length: one in
chunks is refused.
"""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64encode
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from threadloader.datasets._remote.requests import MIB, FetchedRange, TransferError, Version
from threadloader.datasets._urls import is_web, shown_url
from threadloader.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping


MOST_REDIRECTS = 10
MOST_CONNECTIONS = 256  # that are kept open to one host; more are opened where they are needed
AT_ONCE = MIB // 4  # bytes that are read at a time; between two of these the time is looked at

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


class HttpClient:
    """Reads ranges of files on web servers.

    Args:
        headers: Of each request to the host of a URL.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds without a byte, and for each MiB, after which a read has failed.

    Raises:
        ModuleNotFoundError: urllib3 is not installed.
        ValueError: A header has several lines.

    Threads:
        all: shared.
    """

    def __init__(
        self, headers: Mapping[str, str], connect_timeout: float, read_timeout: float
    ) -> None:
        try:
            import urllib3  # noqa: PLC0415  # optional
        except ModuleNotFoundError:
            msg = "http and https are read by urllib3: pip install 'threadloader[remote]'"
            raise ModuleNotFoundError(msg, name="urllib3") from None
        self._urllib3 = urllib3
        self._headers = dict(headers)
        if any(mark in text for pair in self._headers.items() for text in pair for mark in "\r\n"):
            msg = f"a header must be one line; look at those named {sorted(self._headers)}"
            raise ValueError(msg)
        self._read_timeout = read_timeout
        self._timeout = urllib3.Timeout(connect=connect_timeout, read=read_timeout)
        # One for each host.  urllib3's own pool of these has a lock, which costs 32 threads a fifth
        # of their time (3.13t).  The process is in the key, as a forked child must not use its
        # parent's connections.  No lock: setdefault, pop and setting are atomic on both builds.
        self._pools: dict[tuple[int, str, str], Any] = {}
        # Targets of redirects, by URL: requests go there directly until that fails.
        self._moved: dict[str, str] = {}

    def read(self, url: str, offset: int, nbytes: int) -> FetchedRange:
        """Return ``nbytes`` bytes (at least 1) from ``offset`` on, fewer at the file's end.

        Raises:
            TransferError: An error status, or an answer that is not the range.
            Exception: The connection failed, or took too long.
        """
        if (moved := self._moved.get(url)) is not None:
            # The target of a redirect is often signed for minutes only: ask anew.
            with suppress(OSError, self._urllib3.exceptions.HTTPError):
                return self._follow(url, moved, offset, nbytes)
            self._moved.pop(url, None)
        return self._follow(url, url, offset, nbytes)

    def close(self) -> None:
        """Close idle connections, as a pool does that nobody has any more."""
        self._pools.clear()

    def _follow(self, url: str, target: str, offset: int, nbytes: int) -> FetchedRange:
        """Return a range; follow redirects.  urllib3 does that, too, and logs where they lead to.

        Args:
            url: The URL that the credentials are for; no other host gets them.
            target: The URL that is requested first: ``url``, or the target of its redirects.
            offset: In bytes.
            nbytes: At least 1.
        """
        for _ in range(MOST_REDIRECTS):
            place, trusted = urlsplit(target), urlsplit(url)
            headers = {"Range": f"bytes={offset}-{offset + nbytes - 1}"}
            headers["Accept-Encoding"] = "identity"
            if (place.scheme, _host(place)) == (trusted.scheme, _host(trusted)):
                headers |= self._headers
                if trusted.username is not None:
                    headers["Authorization"] = _basic(trusted.username, trusted.password or "")
            found = self._ask(place, headers, offset, nbytes)
            if isinstance(found, FetchedRange):
                if target != url:
                    self._moved[url] = target
                return found
            target = _redirected(target, found)
        msg = f"{MOST_REDIRECTS} redirects, and no answer"
        raise TransferError(msg, 310)

    def _ask(
        self, place: SplitResult, headers: dict[str, str], offset: int, nbytes: int
    ) -> FetchedRange | str:
        """Make one request; return the range, or the ``Location`` of a redirect."""
        begun = monotonic()
        # Not by `geturl`, which gives a path that begins with "//" two more.
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        try:
            response = self._pool(place).urlopen(
                "GET",
                target,
                headers=headers,
                assert_same_host=False,
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            return _Answer(response, begun, self._read_timeout).range(offset, nbytes)
        except self._urllib3.exceptions.HTTPError as error:
            found = _what_failed(error)
        try:
            raise found
        finally:
            del found  # the error keeps this frame

    def _pool(self, place: SplitResult) -> Any:
        """Return this process's connections to a host."""
        key = os.getpid(), place.scheme, _host(place)
        return self._pools.get(key) or self._pools.setdefault(key, self._new_pool(place))

    def _new_pool(self, place: SplitResult) -> Any:
        context = ssl.create_default_context()
        manager = self._urllib3.PoolManager(maxsize=MOST_CONNECTIONS, ssl_context=context)
        return manager.connection_from_host(place.hostname, place.port, place.scheme)


class _Answer:
    """The answer to a request for a range: the bytes that were asked for, a redirect, or an error.

    Args:
        response: urllib3's, of which the head was read.
        begun: When the request was made.
        seconds: For the request, and for each MiB of the body.

    Threads:
        all: compatible.
    """

    def __init__(self, response: Any, begun: float, seconds: float) -> None:
        self._response, self._headers = response, response.headers
        self._begun, self._seconds = begun, seconds

    def range(self, offset: int, nbytes: int) -> FetchedRange | str:
        """Return the range; or the ``Location`` of a redirect.

        Args:
            offset: In bytes.
            nbytes: At least 1.

        Raises:
            TransferError: It is neither; with a status if asking again can't help.
            TimeoutError: The answer takes too long.
        """
        at_end = False
        try:
            found = self._found(offset, nbytes)
            at_end = self._headers.get("content-length") is not None and not self._response.read1(1)
            return found
        finally:
            if not at_end:  # the connection can take no other request
                self._response.close()

    def _found(self, offset: int, nbytes: int) -> FetchedRange | str:
        status = self._response.status
        if status in REDIRECTS and (location := self._headers.get("location")):
            return str(location)
        told = str(self._headers.get("content-range", ""))
        found = _RANGE.fullmatch(told)
        if status == 200:
            msg = "the server ignores ranges, and sends whole files: copy the file, and read that"
            raise TransferError(msg, status)
        if status == 206:
            length = self._length()
            if found is None or found[1] is None:
                msg = f"a range without telling where in the file it is: Content-Range {told!r}"
                raise TransferError(msg, 206)
            first, last, size = map(int, found.groups())
            count = min(nbytes, size - offset)  # below 1 where the file is said to end before
            if count <= 0 or (first, last, length) != (offset, offset + count - 1, count):
                msg = f"{length} bytes of {told!r} for {nbytes} bytes from {offset}"
                raise TransferError(msg)
            return FetchedRange(self._read(count), self._version(size))
        if status == 416 and found is not None and int(found[3]) <= offset:
            return FetchedRange(b"", Version(int(found[3]), ""))  # an ETag would not be the file's
        msg = f"HTTP status {status} {self._response.reason or ''}".rstrip()
        asked = self._headers.get("retry-after", "")
        raise TransferError(msg, status, float(asked) if asked.isdecimal() else None)

    def _length(self) -> int:
        """Return the bytes of the body, which are the file's bytes as they are."""
        length = self._headers.get("content-length", "")
        plain = self._headers.get("content-encoding", "identity") == "identity"
        if not plain or "transfer-encoding" in self._headers or not length.isdecimal():
            msg = (
                "the server compresses the file, sends it in chunks, or does not tell how long its "
                "answer is, so that no ranges of it can be read"
            )
            raise TransferError(msg, self._response.status)
        return int(length)

    def _read(self, nbytes: int) -> bytes:
        """Return the next ``nbytes`` bytes.

        Raises:
            TransferError: There are fewer.
            TimeoutError: The answer takes too long.
        """
        parts, left = [], nbytes
        limit = self._seconds * (1 + nbytes / MIB)
        while left:
            if monotonic() - self._begun > limit:
                msg = f"the answer takes too long: it had {limit:.1f} s"
                raise TimeoutError(msg)
            part = self._response.read1(min(left, AT_ONCE))
            if not part:
                msg = f"the answer breaks off {left:,} bytes early"
                raise TransferError(msg)
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _version(self, size: int) -> Version:
        """Return the file's version, by a strong ETag, else the date, else a weak ETag."""
        etag = self._headers.get("etag", "")
        changed = self._headers.get("last-modified", "")
        return Version(size, etag if etag and not etag.startswith("W/") else changed or etag)


def _what_failed(error: Exception) -> Exception:
    """Return what the system said, which says best what may pass, or urllib3's own error."""
    links = (error.__cause__, error.__context__, *error.args)
    found: Exception = next((link for link in links if isinstance(link, OSError)), error)
    return found.with_traceback(None)  # urllib3's frames have the error


def _redirected(target: str, location: str) -> str:
    """Return where a redirect leads to.

    Raises:
        TransferError: It is no URL that can be read here.
    """
    with suppress(ValueError):
        target = urljoin(target, location)
        if is_web(target):
            return target
    msg = f"a redirect to {shortened(shown_url(target))}, which is no URL of http or https"
    raise TransferError(msg, 310)


def _host(place: SplitResult) -> str:
    """Return host and port, without user and password."""
    return place.netloc.rpartition("@")[2]


def _basic(user: str, password: str) -> str:
    """Return the value of ``Authorization``; both may be quoted."""
    pair = f"{unquote(user)}:{unquote(password)}"
    return f"Basic {b64encode(pair.encode()).decode('ascii')}"
