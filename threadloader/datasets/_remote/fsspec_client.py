"""Ranges through fsspec, from any store that it has a file system for.

Most of its file systems are asynchronous and run in one thread of fsspec's: a read waits for its
result from there, up to a limit.  For the others (``hf``, ``ftp``) the limits of their own clients
hold, and fsspec gives each thread a file system of its own.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadloader.datasets._remote.requests import MIB, FetchedRange, TransferError, Version
from threadloader.datasets._urls import shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping


# Names under which stores tell a file's version, the most reliable first.
TAGS = (
    *("ETag", "etag", "generation", "checksum", "md5Hash", "content_md5", "blob_id", "version_id"),
    *("mtime", "LastModified", "last_modified", "modified", "updated", "created"),
)


class FsspecClient:
    """Reads ranges of files in any store that fsspec knows.

    Args:
        options: Of the file system.
        connect_timeout: Seconds until there must be a connection.
        read_timeout: Seconds without a byte, and for each MiB, after which a read has failed.

    Threads:
        all: shared.
    """

    def __init__(
        self, options: Mapping[str, Any], connect_timeout: float, read_timeout: float
    ) -> None:
        self._options = dict(options)
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        # For each URL a list of its version, empty until the store was asked.  No lock: setdefault,
        # pop and append are atomic on both builds.  `forget` drops the list, so that an answer
        # which comes later is not kept.
        self._versions: dict[str, list[Version]] = {}

    def check(self, url: str, note: str) -> None:
        """Make sure that there is a file system for a URL.

        Args:
            url: The URL.
            note: The end of the error's message; may be empty.

        Raises:
            ModuleNotFoundError: fsspec, or its client for that store, is not installed.
            ValueError: fsspec knows no such store.
        """
        try:
            from fsspec import get_filesystem_class  # noqa: PLC0415  # optional

            for protocol in _protocols(url):
                get_filesystem_class(protocol)
        except ImportError as error:
            msg = f"{shown_url(url)}: {error} (fsspec is in 'threadloader[remote]'){note}"
            raise ModuleNotFoundError(msg) from error

    def read(self, url: str, offset: int, nbytes: int) -> FetchedRange:
        """Return ``nbytes`` bytes (at least 1) from ``offset`` on, fewer at the file's end."""
        known = self._versions.setdefault(url, [])
        if not known:
            self._forget_listing(url)
            known.append(_version(self._call(url, 0, "info")))
        version = known[0]
        count = min(nbytes, version.size - offset)
        if count <= 0:
            return FetchedRange(b"", version)
        data = self._call(url, count, "cat_file", start=offset, end=offset + count)
        if len(data) != count:
            self.forget(url)  # it may be another version by now: the next try asks
            msg = f"{len(data):,} bytes came where {count:,} were to be read"
            raise TransferError(msg)
        return FetchedRange(data, version)

    def find(self, pattern: str) -> list[str]:
        """Return the URLs that a pattern matches."""
        system, _ = self._system(pattern)
        return [system.unstrip_protocol(path) for path in self._call(pattern, MIB, "glob")]

    def forget(self, url: str) -> None:
        """Ask again for a file's version when it is next read."""
        self._versions.pop(url, None)

    def _forget_listing(self, url: str) -> None:
        """Make the file system ask the store for a file, instead of looking in a kept listing.

        Not done in `forget`, since each thread may have a file system of its own.
        """
        system, path = self._system(url)
        listings = getattr(system, "dircache", {})
        with suppress(KeyError):  # another thread was faster
            system.invalidate_cache(path)
        # Some file systems forget only what is below the path, or nothing.
        for place in (path, system._parent(path)):  # noqa: SLF001  # each store's idea of a path
            with suppress(KeyError):
                del listings[place]

    def _system(self, url: str) -> tuple[Any, str]:
        """Return the file system, which fsspec keeps, and the path in it."""
        from fsspec.core import url_to_fs  # noqa: PLC0415  # optional

        system, path = url_to_fs(url, **self._options)
        return system, path

    def _call(self, url: str, nbytes: int, method: str, **arguments: Any) -> Any:
        """Call a method of the file system, with the limit on its time.

        Source: an asynchronous file system has each method as a coroutine, with an underscore
        before its name: https://filesystem-spec.readthedocs.io/en/latest/async.html
        """
        system, path = self._system(url)
        if not system.async_impl:
            return getattr(system, method)(path, **arguments)
        limit = self._connect_timeout + self._read_timeout * (1 + nbytes / MIB)
        coroutine = getattr(system, f"_{method}")(path, **arguments)
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, limit), system.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C, say
            raise


def _protocols(url: str) -> list[str]:
    """Return the protocol of a URL, or those of a chain's links.

    Source: fsspec's ``_un_chain``, for the protocol of a link that is no URL.
    """
    links = [link.partition("://") for link in url.split("::")]
    return [name for name, mark, _ in links if mark or re.fullmatch("[a-z]+", name)]


def _version(info: Mapping[str, Any]) -> Version:
    """Return the version of a file from what a store tells of it."""
    size = info.get("size")
    if size is None:
        msg = "the store does not tell the size of the file"
        raise ValueError(msg)
    tags = (str(info[name]) for name in TAGS if info.get(name))
    return Version(int(size), next(tags, ""))
