"""Files behind URLs: all threads read any range at once, and get these bytes or a clear error.

The first read notes the version that the store tells (size and ETag).  Every later answer is
compared with it, so bytes of two versions are never mixed.  A store of fsspec's is asked for the
version only once, and for each block that a cache keeps: there they can be mixed.
"""

from __future__ import annotations

import io
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from threadloader._authors import Stop
from threadloader.datasets._folder_cache import FolderCache
from threadloader.datasets._remote.fsspec_client import FsspecClient
from threadloader.datasets._remote.http_client import HttpClient
from threadloader.datasets._remote.hub_urls import login, resolved
from threadloader.datasets._remote.obstore_client import ObstoreClient
from threadloader.datasets._remote.read_ahead import RANGE_BYTES, ReadAhead
from threadloader.datasets._remote.requests import MIB, Retries, Version, with_retries
from threadloader.datasets._urls import shown_url, unsigned
from threadloader.errors import DataError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from threadloader.datasets._remote.requests import FetchedRange


LEAST_CACHE = 16 * RANGE_BYTES  # a smaller cache would hardly keep what its threads fetch at once


class RemoteStore:
    """What remote files share: credentials, connections, limits, a cache.

    http and https are read by urllib3, with the option ``headers``; hf likewise, with ``token``;
    s3, gs and azure by obstore, if that is installed, with its options.  Any other option, and any
    other URL, is fsspec's.

    Args:
        storage_options: Credentials, endpoints, and what else the client takes.
        retries: How often a failed read is tried, and when; a number counts all tries.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds without a byte, and for each MiB, after which a try has failed.
        cache_folder: Keeps blocks for other epochs, threads and processes; None for no cache.
            Nothing is kept of a file whose version the store does not tell, by ETag or date.
        cache_bytes: Bound on the folder, at least 64 MiB.

    Raises:
        ValueError: A limit is not positive, or the cache has no room.

    Threads:
        all: shared.
    """

    def __init__(
        self,
        *,
        storage_options: Mapping[str, Any] | None = None,
        retries: Retries | int | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 30.0,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_bytes: int = 10 << 30,
    ) -> None:
        if min(connect_timeout, read_timeout) <= 0:
            msg = f"limits must be positive, not {connect_timeout=}, {read_timeout=}"
            raise ValueError(msg)
        if cache_bytes < LEAST_CACHE:
            msg = f"cache_bytes={cache_bytes:,} is too little: at least {LEAST_CACHE:,}"
            raise ValueError(msg)
        self.retries = Retries(retries) if isinstance(retries, int) else retries or Retries()
        folder = None if cache_folder is None else Path(cache_folder).expanduser()
        self.cache = None if folder is None else FolderCache(folder, cache_bytes)
        self._options = dict(storage_options or {})
        self._timeouts = connect_timeout, read_timeout
        self._connect()

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteStore:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process opens its own connections, and asks for versions itself.
        clients = ("_http", "_hub", "_obstore", "_fsspec")
        return {name: value for name, value in vars(self).items() if name not in clients}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def _connect(self) -> None:
        """Make clients, which open connections when they first read."""
        connect, read = self._timeouts
        # Until there is a URL for them.
        self._http: HttpClient | None = None
        self._hub: HttpClient | None = None
        self._fsspec = FsspecClient(self._options, connect, read)
        self._obstore = ObstoreClient(self._options, connect, read * (1 + RANGE_BYTES / MIB))

    def client(self, url: str) -> tuple[HttpClient | ObstoreClient | FsspecClient, str]:
        """Return the client that reads a URL, and the URL that it reads.

        Raises:
            ModuleNotFoundError: What reads it is not installed.
            ValueError: fsspec knows no such store, or an option is wrong.
        """
        if url.startswith(("http://", "https://")) and self._options.keys() <= {"headers"}:
            headers = self._options.get("headers") or {}
            self._http = self._http or HttpClient(headers, *self._timeouts)
            return self._http, url
        if (address := resolved(url)) is not None and self._options.keys() <= {"token"}:
            headers = login(self._options.get("token"))
            self._hub = self._hub or HttpClient(headers, *self._timeouts)
            return self._hub, address
        return self.lister(url), url

    def lister(self, pattern: str) -> ObstoreClient | FsspecClient:
        """Return the client that finds the URLs of a pattern; it reads them, too.

        Raises:
            Exception: As `client`.
        """
        if self._obstore.opens(pattern):
            return self._obstore
        self._fsspec.check(pattern, self._obstore.unknown)
        return self._fsspec

    def close(self) -> None:
        """Close idle connections; the next read opens new ones."""
        for client in (self._http, self._hub):
            if client is not None:
                client.close()


class RemoteFile:
    """A file behind a URL; a `threadloader.datasets._files.File`.

    Args:
        path: Its URL.
        store: Shared with other files, with its connections; by default the file has its own.
        options: For a store of its own; see `RemoteStore`.

    Raises:
        ModuleNotFoundError: What reads that store is not installed.
        ValueError: fsspec knows no such store, or an option is wrong.

    Threads:
        expect: compatible; before others read.
        all else: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(self, path: str, store: RemoteStore | None = None, **options: Any) -> None:
        self._url = path
        self._store = store or RemoteStore(**options)
        self._client, self._address = self._store.client(path)
        # The version, by URL, once it is known: one entry.  No lock: setdefault is atomic.
        self._known: dict[str, Version] = {}
        self._stop = Stop()  # set when the file is closed, and then replaced
        self.path = shown_url(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self._url, self._store), self._known

    def __setstate__(self, known: dict[str, Version]) -> None:
        self._known = known

    def size(self) -> int:
        """Return its size in bytes.

        Raises:
            RemoteError: The store does not tell the size, after all retries.
        """
        return self._version().size

    def stamp(self) -> str:
        """Return its size and its tag: an ETag, or the time of the last change."""
        version = self._version()
        return f"{version.size}-{version.tag}"

    def expect(self, stamp: str) -> None:
        """Read only the version that has this stamp, also in copies."""
        size, _, tag = stamp.partition("-")
        self._known = {self._url: Version(int(size), tag)}

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly ``nbytes`` bytes from ``offset`` on.

        Raises:
            DataError: The file ends early, or is not the version that was read before.
            RemoteError: The range could not be read, after all retries.
            ClosedError: The file or the loader was closed between two ranges, or during a wait for
                the next try.
            ValueError: ``offset`` or ``nbytes`` is negative.
        """
        if offset < 0 or nbytes < 0:
            msg = f"{nbytes:,} bytes from offset {offset:,} can't be read: both must be at least 0"
            raise ValueError(msg)
        return self._ranges(offset, nbytes, self._stop) if nbytes else b""

    def _ranges(self, offset: int, nbytes: int, *stops: Stop) -> bytes:
        """Return exactly ``nbytes`` bytes, at least 1, by requests of at most `RANGE_BYTES`."""
        stop = offset + nbytes
        kept = self._is_kept(stop, *stops)
        first = offset // RANGE_BYTES * RANGE_BYTES if kept else offset
        parts = []
        for block in range(first, stop, RANGE_BYTES):
            begin, end = max(offset, block), min(stop, block + RANGE_BYTES)
            if kept:
                parts.append(self._of_block(block, begin, end, *stops))
            else:
                found = self._fetch(begin, end - begin, *stops)
                parts.append(self._whole(found, begin, end - begin))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self) -> BinaryIO:
        """Return a stream from the beginning; a thread of its own reads ahead.

        Closing the file ends the stream: it raises `ClosedError` where it was not read ahead.

        Raises:
            RemoteError: The store does not tell the file's size, after all retries.
        """
        stream = ReadAhead(self._ranges, self.size(), self.path, self._stop)
        return cast("BinaryIO", io.BufferedReader(stream))

    def close(self) -> None:
        """End streams, and reads that wait for their next try; the next read connects anew."""
        stop, self._stop = self._stop, Stop()
        stop.set()
        self._store.close()

    def _version(self, *stops: Stop) -> Version:
        """Return the version; if it is not known, read one byte to find out."""
        known = self._known.get(self._url)
        return self._fetch(0, 1, *stops or (self._stop,)).version if known is None else known

    def _whole(self, found: FetchedRange, offset: int, nbytes: int) -> bytes:
        """Return the data of a range, if it has the length that was asked for."""
        if len(found.data) < nbytes:
            size = found.version.size
            msg = f"the file ends at {size:,}, and {nbytes:,} bytes were to be read: truncated?"
            raise DataError(msg, self.path, offset=offset)
        return found.data

    def _is_kept(self, stop: int, *stops: Stop) -> bool:
        """Whether blocks are kept in a cache; what is beyond the file's end is not looked for."""
        if self._store.cache is None:
            return False
        version = self._version(*stops)
        if not version.tag:
            msg = (
                f"{self.path}: the server tells neither ETag nor date, by which blocks in the "
                "cache could be told from those of another version: nothing of this file is kept"
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=2)
        return bool(version.tag) and stop <= version.size

    def _of_block(self, block: int, begin: int, end: int, *stops: Stop) -> bytes:
        """Return a part of a block that is kept; fetch the block if nobody has."""
        version, cache = self._version(*stops), cast("FolderCache", self._store.cache)
        size = min(RANGE_BYTES, version.size - block)
        name = f"{unsigned(self._url)}\n{version.size}\n{version.tag}\n{block}\n{size}"

        def kept() -> bytes | None:
            data = cache.read(name, begin - block, end - block)
            return data if data is not None and len(data) == end - begin else None

        data = kept()
        if data is not None:
            return data
        with cache.making(name, *stops):
            data = kept()
            if data is None:
                found = self._fetch(block, size, *stops)
                whole = self._whole(found, block, size)
                if isinstance(self._client, FsspecClient):
                    self._client.forget(self._address)
                    self._fetch(version.size, 1, *stops)  # of no byte: asks whether it has changed
                if found.version.tag == version.tag:  # or it was not told, and may be another
                    cache.write(name, whole)
                data = whole[begin - block : end - block]
        return data

    def _fetch(self, offset: int, nbytes: int, *stops: Stop) -> FetchedRange:
        """Return a range of the file, shorter where the file ends; retry errors that may pass."""
        read = partial(self._client.read, self._address, offset, nbytes)
        found = with_retries(read, self._store.retries, self._url, offset, *stops)
        version = found.version
        first = self._known.setdefault(self._url, version)
        if first.size != version.size or (first.tag and version.tag and first.tag != version.tag):
            msg = (
                f"the file changed while it was in use: {first.size:,} bytes, {first.tag!r} before "
                f"and {version.size:,} bytes, {version.tag!r} now; make its dataset anew, or "
                "the file itself, to read the new one"
            )
            raise DataError(msg, self.path, offset=offset)
        if version.tag and not first.tag:
            self._known[self._url] = version
        return found


def list_remote(pattern: str, **options: Any) -> list[str]:
    """Return the URLs that a pattern matches, sorted.

    Args:
        pattern: A URL with ``*``, ``**`` or ``[...]`` in its path.
        options: See `RemoteStore`.

    Raises:
        FileNotFoundError: Nothing matches.
        ModuleNotFoundError: What reads that store is not installed.
        RemoteError: The store can't be listed, after all retries.
    """
    store = RemoteStore(**options)
    client = store.lister(pattern)
    found = with_retries(partial(client.find, pattern), store.retries, pattern, None)
    if not found:
        msg = f"nothing matches {shown_url(pattern)}"
        raise FileNotFoundError(msg)
    return sorted(found)
