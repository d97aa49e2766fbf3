"""Files behind URLs, read in parts by all threads at once: what was asked for, or a clear error.

What a store tells of a file (its size, its ETag) is noted when it is first read and compared with
every later answer until the file is closed, so that bytes of two versions are never mixed.  A read
of several ranges, and a stream, ends with the use of the file that it began in: see `_Use`.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from threadloader._threads.stopping import Stop
from threadloader.datasets.file_cache import FileCache
from threadloader.datasets.fsspec_client import FsspecClient
from threadloader.datasets.http_client import HttpClient, understands
from threadloader.datasets.parts import TransferError, Version
from threadloader.datasets.read_ahead import ReadAhead
from threadloader.datasets.retries import GaveUpError, Retries, retry
from threadloader.datasets.urls import shown_url, without_secrets
from threadloader.errors import DataError, RemoteError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from threadloader.datasets.parts import Client, Part

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
        retries: How often a failed read is tried, and when; a number is that of all tries.
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
        options = dict(storage_options or {})
        self.arguments: dict[str, Any] = {
            "storage_options": options,
            "retries": retries,
            "connect_timeout": connect_timeout,
            "read_timeout": read_timeout,
            "cache_folder": cache_folder,
            "cache_bytes": cache_bytes,
        }
        tried = Retries() if retries is None else retries
        self.retries = Retries(attempts=tried) if isinstance(tried, int) else tried
        self.cache = (
            None
            if cache_folder is None
            else FileCache(Path(cache_folder).expanduser(), cache_bytes)
        )
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


@dataclass(frozen=True, slots=True)
class _Use:
    """A file from when it is first read until it is closed.

    Who reads it takes this once and keeps it, as another thread may close the file meanwhile.
    """

    stop: Stop = field(default_factory=Stop)  # set when the file is closed
    # What is known of the file, once it is: one entry.  No lock: setdefault is atomic.
    known: dict[str, Version] = field(default_factory=dict)


class _UntoldError(Exception):
    """A block came without what tells its version, so that it is not to be kept."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


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
        expect: compatible; before others read.
        all else: shared.
    """

    def __init__(self, path: str, store: RemoteStore | None = None, **options: Any) -> None:
        if store is not None and options:
            msg = f"options are the store's: give them to RemoteStore, not {sorted(options)}"
            raise TypeError(msg)
        self._url = path
        self._owns_store = store is None
        self._store = store or RemoteStore(**options)
        self._client = self._store.client(path)
        self._expected: str | None = None  # its stamp
        self._use = _Use()
        self.path = shown_url(path)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._owns_store:
            own = partial(RemoteFile, self._url, **self._store.arguments)
            return own, (), self._expected
        return RemoteFile, (self._url, self._store), self._expected

    def __setstate__(self, stamp: str) -> None:
        self.expect(stamp)

    def size(self) -> int:
        """Return its size in bytes.

        Raises:
            RemoteError: The store does not tell, after all retries.
        """
        return self._version(self._use).size

    def stamp(self) -> str:
        """Return its size and what else tells its version: an ETag, or when it was changed."""
        version = self._version(self._use)
        return f"{version.size}-{version.tag}"

    def expect(self, stamp: str) -> None:
        """Read no file but the one that had this stamp, also after `close` and in copies."""
        self._expected = stamp
        self._use = self._begun(self._use.stop)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly ``nbytes`` bytes from ``offset`` on.

        Raises:
            DataError: The file ends before, or is not the one that was read before.
            RemoteError: It could not be read, after all retries.
            ClosedError: The file or the loader was closed between two ranges, or while a try had
                to be waited for.
            ValueError: ``offset`` or ``nbytes`` is negative.
        """
        if offset < 0 or nbytes < 0:
            msg = f"{nbytes:,} bytes from offset {offset:,} can't be read: both must be at least 0"
            raise ValueError(msg)
        return self._ranges(self._use, offset, nbytes)

    def _ranges(self, use: _Use, offset: int, nbytes: int) -> bytes:
        """Return exactly ``nbytes`` bytes, by requests that are not too long."""
        read = partial(self._read, use)
        if self._store.cache is not None:
            read = partial(self._cached, use, self._store.cache)
        if 0 < nbytes <= RANGE_BYTES:
            return read(offset, nbytes)
        stop = offset + nbytes
        starts = range(offset, stop, RANGE_BYTES)
        return b"".join([read(start, min(RANGE_BYTES, stop - start)) for start in starts])

    def open(self) -> BinaryIO:
        """Return a stream from the beginning, which a thread of its own reads ahead for.

        Closing the file ends it: it raises `ClosedError` for what was not read ahead.

        Raises:
            RemoteError: The store does not tell the file's size, after all retries.
        """
        use = self._use
        stream = ReadAhead(partial(self._ranges, use), self._version(use).size)
        return cast("BinaryIO", io.BufferedReader(stream))

    def close(self) -> None:
        """End streams, and reads that wait for their next try, and forget the file's version.

        Reading afterwards begins anew: the file may be another one then, unless one is expected.
        """
        use, self._use = self._use, self._begun(Stop())
        use.stop.set()
        self._client.forget(self._url)
        if self._owns_store:
            self._store.close()

    def _begun(self, stop: Stop) -> _Use:
        """Return a use of the file in which all that is known is what is expected."""
        if self._expected is None:
            return _Use(stop)
        size, _, tag = self._expected.partition("-")
        return _Use(stop, {self._url: Version(int(size), tag)})

    def _version(self, use: _Use) -> Version:
        """Return what the store tells of the file, which is asked for a byte if need be."""
        known = use.known.get(self._url)
        return self._fetch(use, 0, 1).version if known is None else known

    def _read(self, use: _Use, offset: int, nbytes: int) -> bytes:
        """Return a range of the file."""
        return self._whole(self._fetch(use, offset, nbytes), offset, nbytes)

    def _read_told(self, use: _Use, tag: str, offset: int, nbytes: int) -> bytes:
        """Return a range of the version of that tag, for the cache.

        Raises:
            _UntoldError: It may be of another: this answer does not tell.
        """
        part = self._fetch(use, offset, nbytes)
        data = self._whole(part, offset, nbytes)
        if part.version.tag != tag:
            raise _UntoldError(data)
        return data

    def _whole(self, part: Part, offset: int, nbytes: int) -> bytes:
        """Return a range's data, if it is as long as it was to be."""
        if len(part.data) < nbytes:
            size = part.version.size
            msg = f"the file ends at {size:,}, and {nbytes:,} bytes were to be read: truncated?"
            raise DataError(msg, self.path, offset=offset)
        return part.data

    def _cached(self, use: _Use, cache: FileCache, offset: int, nbytes: int) -> bytes:
        """Return a range of the file, by way of the cache's blocks that it touches."""
        version = self._version(use)
        stop = offset + nbytes
        if stop > version.size:
            return self._read(use, offset, nbytes)  # which knows what is wrong
        if not version.tag:
            self._warn(
                "the server tells neither ETag nor date, by which blocks in the cache could be "
                "told from those of another version: nothing of this file is kept"
            )
            return self._read(use, offset, nbytes)
        parts = []
        for begin in range(offset // RANGE_BYTES * RANGE_BYTES, stop, RANGE_BYTES):
            size = min(RANGE_BYTES, version.size - begin)
            name = f"{self._url}\n{version.size}\n{version.tag}\n{begin}\n{size}"
            fetch = partial(self._read_told, use, version.tag, begin, size)
            first, last = max(offset - begin, 0), min(stop - begin, size)
            try:
                parts.append(cache.read(name, size, first, last, fetch, use.stop))
            except _UntoldError as untold:
                parts.append(untold.data[first:last])
        return b"".join(parts)

    def _fetch(self, use: _Use, offset: int, nbytes: int) -> Part:
        """Return a range of the file, less where it ends; try again what may pass."""
        read = partial(self._client.read, self._url, offset, nbytes)
        part = _persist(read, self._store.retries, self._url, offset, use.stop)
        version = part.version
        first = use.known.setdefault(self._url, version)
        if first.size != version.size or (first.tag and version.tag and first.tag != version.tag):
            remedy = "close() it" if self._expected is None else "make its dataset anew"
            msg = (
                f"the file changed while it was in use: {first.size:,} bytes, {first.tag!r} before "
                f"and {version.size:,} bytes, {version.tag!r} now; {remedy} to read the new one"
            )
            raise DataError(msg, self.path, offset=offset)
        if version.tag and not first.tag:
            use.known[self._url] = version
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
