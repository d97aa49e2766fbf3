"""Files that are read at any offset: in a file system here, or behind a URL.

All threads read one `File` at once, and all copies of a dataset share it.  Only the streams that
`File.open` returns have a position.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from threadloader.datasets._local_file import LocalFile, Shelf
from threadloader.datasets._urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class File(Protocol):
    """A file that is read at any offset.

    Threads:
        all: shared.
        expect: compatible; before others read.
    """

    path: str  # or URL, for messages

    def size(self) -> int:
        """Return its size in bytes."""

    def stamp(self) -> str:
        """Return the file's version: its size and time, or its ETag."""

    def expect(self, stamp: str) -> None:
        """Read only the version that has this `stamp`, also after `close` and in copies.

        A dataset calls this once, since its offsets are right for that version alone.
        """

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly ``nbytes`` bytes from ``offset`` on.

        Raises:
            DataError: The file ends early, or is not the expected one.
            OSError: It can't be opened or read; for a URL it is a `RemoteError`, after all retries.
        """

    def open(self) -> BinaryIO:
        """Return a stream from the beginning, for one thread; the caller closes it.

        Raises:
            DataError: The file is not the expected one.
            OSError: It can't be opened.
        """

    def close(self) -> None:
        """Close what is open; the next read opens it again."""


def open_files(paths: Iterable[str | os.PathLike[str]], **options: Any) -> list[File]:
    """Return files, which are opened when they are first read; URLs share connections and cache.

    Args:
        paths: Local paths, and URLs (``https://``, ``s3://``, ``hf://``).
        options: For URLs only; see `threadloader.datasets._remote.remote_file.RemoteStore`.

    Raises:
        TypeError: There are options, but no URL.
        ModuleNotFoundError: What reads a URL is not installed.
    """
    paths, shelf = list(paths), Shelf()
    if not any(map(is_url, paths)):
        if options:
            msg = f"unexpected {', '.join(map(repr, options))}: options of URLs, and there is none"
            raise TypeError(msg)
        return [LocalFile(path, shelf) for path in paths]
    from threadloader.datasets._remote import remote_file  # noqa: PLC0415  # few need it

    store = remote_file.RemoteStore(**options)
    return [
        remote_file.RemoteFile(os.fspath(path), store) if is_url(path) else LocalFile(path, shelf)
        for path in paths
    ]


def read_spans(
    file: File, spans: Iterable[tuple[int, int]], gap: int
) -> Callable[[int, int], bytes]:
    """Read some spans of a file now, in few reads; return what has them, and reads all else.

    Args:
        file: The file.
        spans: Where each begins and ends.
        gap: Bytes between two of them that are read, too, to save a read.

    Returns:
        As `File.read_at`.

    Raises:
        DataError: As `File.read_at`.
        OSError: The same.
    """
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    found = [(begin, file.read_at(begin, end - begin)) for begin, end in joined]

    def read_at(offset: int, nbytes: int) -> bytes:
        for begin, data in found:
            if begin <= offset and offset + nbytes <= begin + len(data):
                return data[offset - begin : offset - begin + nbytes]
        return file.read_at(offset, nbytes)

    return read_at
