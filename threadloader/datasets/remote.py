"""Files behind URLs, read in parts by all threads at once: what was asked for, or a clear error.

What a store tells of a file (its size, its ETag) is noted when it is first read and compared with
every later answer, so that bytes of two versions are never mixed.
"""

from __future__ import annotations

import io
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from threadloader.datasets.file_cache import FileCache
from threadloader.datasets.fsspec_client import FsspecClient
from threadloader.datasets.http_client import HttpClient, understands
from threadloader.datasets.parts import TransferError
from threadloader.datasets.read_ahead import ReadAhead
from threadloader.datasets.retries import GaveUpError, Retries, retry
from threadloader.datasets.urls import shown_url, without_secrets
from threadloader.errors import DataError, RemoteError
from threadloader.stopping import Stop

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from threadloader.datasets.parts import Client, Part, Version

__all__ = ["RemoteFile", "RemoteStore", "list_remote"]

T = TypeVar("T")

# A longer read is several requests, so that a dropped connection costs one of them; a block of the
# cache is one, too.  Unmeasured, a choice: at 100 MB/s and 10 ms a request, a fifth is waiting.
RANGE_BYTES = 4 << 20
LEAST_CACHE = 16 * RANGE_BYTES  # or it would be measured anew at each block


class RemoteStore:
    """What remote files have in common: credentials, connections, limits, a cache.

    http and https are read without fsspec, and from its options ``headers`` and ``client_kwargs``
    with ``headers`` and ``auth`` are taken; with any other option they are read through fsspec,
    too, which needs aiohttp for them.

    Args:
        storage_options: What fsspec's file system for the URLs takes: credentials, endpoints.
        retries: How often a failed read is tried again, and when.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds without a byte, and for each MiB, after which a try has failed.
        cache_folder: Keeps what was read, for other epochs, threads and processes; None for none.
            Of files whose version the store does not tell, by an ETag or a date, nothing is kept.
        cache_bytes: How much the folder may take, at least 64 MiB.

    Raises:
        ValueError: A limit is not positive, or the cache has no room.

    Threads:
        all: shared.
    """

    def __init__(
        self,
        *,
        storage_options: Mapping[str, Any] | None = None,
        retries: Retries | None = None,
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
        options = dict(storage_options or {})
        self.arguments: dict[str, Any] = {
            "storage_options": options,
            "retries": retries,
            "connect_timeout": connect_timeout,
            "read_timeout": read_timeout,
            "cache_folder": cache_folder,
            "cache_bytes": cache_bytes,
        }
        self.retries = retries or Retries()
        self.cache = None if cache_folder is None else FileCache(cache_folder, cache_bytes)
        self.fsspec = FsspecClient(options, connect_timeout, read_timeout)
        self._http: Client = self.fsspec
        if understands(options):
            self._http = HttpClient(options, connect_timeout, read_timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RemoteStore, **self.arguments), ()  # a copy opens its own connections

    def file(self, url: str) -> RemoteFile:
        """Return a file that shares this store's connections, limits and cache."""
        return RemoteFile(url, self)

    def client(self, url: str) -> Client:
        """Return what reads a URL.

        Raises:
            ModuleNotFoundError: fsspec, or its client for that store, is not installed.
            ValueError: fsspec knows no such store.
        """
        if self._http is not self.fsspec and url.startswith(("http://", "https://")):
            return self._http
        self.fsspec.check(url)
        return self.fsspec

    def close(self) -> None:
        """Close idle connections; reading afterwards opens new ones."""
        self._http.close()
        self.fsspec.close()


class RemoteFile:
    """A file behind a URL; a `threadloader.datasets.files.File`.

    Args:
        path: Its URL.
        store: Shared with other files, whose connections it uses then; by default its own.
        options: Of its own store, see `RemoteStore`.

    Raises:
        TypeError: Both a store and options are given.
        ModuleNotFoundError: fsspec, or its client for that store, is not installed.
        ValueError: fsspec knows no such store, or an option is wrong.

    Threads:
        all: shared.
    """

    def __init__(self, path: str, store: RemoteStore | None = None, **options: Any) -> None:
        if store is not None and options:
            msg = f"options are the store's: give them to RemoteStore, not {sorted(options)}"
            raise TypeError(msg)
        self._url = path
        self._owns_store = store is None
        self._store = store or RemoteStore(**options)
        self._client = self._store.client(path)
        self._stop = Stop()
        # What is known of the file, once it is: one entry.  No lock: setdefault is atomic.
        self._known: dict[str, Version] = {}
        self.path = shown_url(path)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._owns_store:
            return partial(RemoteFile, self._url, **self._store.arguments), ()
        return RemoteFile, (self._url, self._store)

    def size(self) -> int:
        """Return its size in bytes.

        Raises:
            RemoteError: The store does not tell, after all retries.
        """
        return self._version().size

    def stamp(self) -> str:
        """Return its size and what else tells its version: an ETag, or when it was changed."""
        version = self._version()
        return f"{version.size}-{version.tag}"

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly ``nbytes`` bytes from ``offset`` on.

        Raises:
            DataError: The file ends before, or is not the one that was read before.
            RemoteError: It could not be read, after all retries.
            ClosedError: The file or the loader was closed while a try had to be waited for.
            ValueError: ``offset`` or ``nbytes`` is negative.
        """
        if offset < 0 or nbytes < 0:
            msg = f"{nbytes:,} bytes from offset {offset:,} can't be read: both must be at least 0"
            raise ValueError(msg)
        read = self._read if self._store.cache is None else partial(self._cached, self._store.cache)
        if 0 < nbytes <= RANGE_BYTES:
            return read(offset, nbytes)
        stop = offset + nbytes
        starts = range(offset, stop, RANGE_BYTES)
        return b"".join([read(start, min(RANGE_BYTES, stop - start)) for start in starts])

    def open(self) -> BinaryIO:
        """Return a stream from the beginning, which a thread of its own reads ahead for."""
        stream = ReadAhead(self.read_at, self.size())
        return cast("BinaryIO", io.BufferedReader(stream))

    def close(self) -> None:
        """End reads that wait for their next try, and forget the file's version.

        Reading afterwards begins anew: the file may be another one then.
        """
        stop, self._stop, self._known = self._stop, Stop(), {}
        stop.set()
        self._client.forget(self._url)
        if self._owns_store:
            self._store.close()

    def _version(self) -> Version:
        """Return what the store tells of the file, which is asked for a byte if need be."""
        known = self._known.get(self._url)
        return self._fetch(0, 1).version if known is None else known

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return a range of the file."""
        part = self._fetch(offset, nbytes)
        if len(part.data) < nbytes:
            size = part.version.size
            msg = f"the file ends at {size:,}, and {nbytes:,} bytes were to be read: truncated?"
            raise DataError(msg, self.path, offset=offset)
        return part.data

    def _cached(self, cache: FileCache, offset: int, nbytes: int) -> bytes:
        """Return a range of the file, by way of the cache's blocks that it touches."""
        version = self._version()
        stop = offset + nbytes
        if stop > version.size:
            return self._read(offset, nbytes)  # which knows what is wrong
        if not version.tag:
            self._warn(
                "the server tells neither ETag nor date, by which blocks in the cache could be "
                "told from those of another version: nothing of this file is kept"
            )
            return self._read(offset, nbytes)
        parts = []
        for begin in range(offset // RANGE_BYTES * RANGE_BYTES, stop, RANGE_BYTES):
            size = min(RANGE_BYTES, version.size - begin)
            name = f"{self._url}\n{version.size}\n{version.tag}\n{begin}\n{size}"
            fetch = partial(self._read, begin, size)
            part = cache.read(name, size, max(offset - begin, 0), min(stop - begin, size), fetch)
            parts.append(part)
        return b"".join(parts)

    def _fetch(self, offset: int, nbytes: int) -> Part:
        """Return a range of the file, less where it ends; try again what may pass."""
        known = self._known
        read = partial(self._client.read, self._url, offset, nbytes)
        part = _persist(read, self._store.retries, self._url, offset, self._stop)
        version = part.version
        first = known.setdefault(self._url, version)
        if first.size != version.size or (first.tag and version.tag and first.tag != version.tag):
            msg = (
                f"the file changed while it was in use: {first.size:,} bytes, {first.tag!r} before "
                f"and {version.size:,} bytes, {version.tag!r} now; close() it to read the new one"
            )
            raise DataError(msg, self.path, offset=offset)
        if version.tag and not first.tag:
            known[self._url] = version
        if not part.ranged:
            self._warn(
                "the server ignores ranges, so that each read transfers the file from its "
                "beginning; copy the file, or read it as a stream with a cache_folder"
            )
        return part

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self.path}: {message}", RuntimeWarning, stacklevel=3)


def list_remote(pattern: str, **options: Any) -> list[str]:
    """Return the URLs that a pattern matches, sorted.

    Args:
        pattern: A URL with ``*``, ``**`` or ``[...]`` in its path.
        options: Of a store, see `RemoteStore`.

    Raises:
        FileNotFoundError: Nothing matches.
        ModuleNotFoundError: fsspec, or its client for that store, is not installed.
        RemoteError: The store can't be listed, after all retries.
    """
    store = RemoteStore(**options)
    store.fsspec.check(pattern)
    found = _persist(partial(store.fsspec.find, pattern), store.retries, pattern, None)
    if not found:
        msg = f"nothing matches {shown_url(pattern)}"
        raise FileNotFoundError(msg)
    return sorted(found)


def _persist(
    read: Callable[[], T], retries: Retries, url: str, offset: int | None, *stops: Stop
) -> T:
    """Return what ``read()`` returns, at the last try.

    Raises:
        RemoteError: It fails for good; names URL and offset, and has the last error as its cause.
    """
    try:
        return retry(read, retries, *stops)
    except GaveUpError as error:
        gave_up = error
    # Outside of the handler: the error that it would keep as context may tell a secret.
    cause = without_secrets(gave_up.error, url)
    name = "" if isinstance(cause, TransferError) else f"{type(cause).__name__}: "
    try:
        raise RemoteError(f"{gave_up}{name}{cause}", shown_url(url), offset=offset) from cause
    finally:
        del gave_up, cause  # this frame stays with the error, and they with it
