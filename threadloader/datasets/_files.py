"""Files that are read at any offset: in a file system here, or behind a URL.

All threads read one `File` at once, and all copies of a dataset share it.  Only the streams that
`File.open` returns have a position.
"""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

from threadloader.datasets._local_file import LocalFile, Shelf
from threadloader.datasets._urls import is_url, pattern_in, shown_url
from threadloader.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Patterns: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


MOST = 1_000_000  # names that one pattern may stand for
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


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


class Files:
    """The files that patterns stand for, in order: their ``paths``, and ``files`` to read.

    Workers share it; a class with a length and items would be copied for each, as a dataset is.

    Args:
        pattern: One or several.  ``{000..123}`` (digits, rising) and ``{a,b}`` are expanded, also
            nested, then ``*``, ``?`` and ``[...]`` are looked up, sorted by name.  A path that
            exists stands for itself, and so do other braces.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        FileNotFoundError: No file matches.
        ValueError: A pattern stands for too many names, or there is no pattern.

    Threads:
        all: shared.
    """

    def __init__(self, pattern: Patterns, options: dict[str, Any]) -> None:
        patterns = [pattern] if isinstance(pattern, (str, os.PathLike)) else list(pattern)
        self.paths = [path for each in patterns for path in _found(os.fspath(each), options)]
        if not self.paths:
            msg = "no shards: the list of patterns is empty"
            raise ValueError(msg)
        self.files = open_files(self.paths, **options)

    def __str__(self) -> str:
        """Return their number and names in words; URLs without their secrets."""
        first, last = self.files[0].path, self.files[-1].path
        count = len(self.files)
        return f"1 shard, {first}" if count == 1 else f"{count:,} shards, {first} to {last}"

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        for file in self.files:
            file.close()


def _found(pattern: str, options: dict[str, Any]) -> Iterator[str]:
    if not is_url(pattern) and os.path.exists(pattern):  # noqa: PTH110  # False for all that can be no name
        yield pattern
        return
    for name in _names(pattern):
        if is_url(name) and pattern_in(name):
            from threadloader.datasets._remote import remote_file  # noqa: PLC0415  # few need it

            yield from remote_file.list_remote(name, **options)
        elif not is_url(name) and glob.has_magic(name) and not os.path.exists(name):  # noqa: PTH110  # the same
            yield from _matching(name)
        else:
            yield name


def _matching(pattern: str) -> list[str]:
    paths = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  # `Path` drops a "./"
    if not paths:
        # `glob` takes a folder that can't be read for an empty one.
        folder = os.path.dirname(re.split(r"[*?[]", pattern)[0])  # noqa: PTH120  # the same
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder or "."):
            pass
        msg = f"no file matches {pattern}"
        raise FileNotFoundError(msg)
    return paths


def _names(pattern: str) -> Iterable[str]:
    """Return the names that a pattern with braces stands for, each once.

    Raises:
        ValueError: They are more than `MOST`.
    """
    names = list(islice(_expanded(pattern), MOST + 1))
    if len(names) > MOST:
        msg = f"{shortened(shown_url(pattern))} stands for more than {MOST:,} names"
        raise ValueError(msg)
    return dict.fromkeys(names)


def _expanded(pattern: str) -> Iterator[str]:
    """Yield the names; from the innermost braces on, so that some come again."""
    for found in _BRACES.finditer(pattern):
        choices = _choices(found[1])
        if choices:
            for choice in choices:
                yield from _expanded(pattern[: found.start()] + choice + pattern[found.end() :])
            return
    yield pattern


def _choices(text: str) -> Iterable[str]:
    """Return the texts that a pair of braces stands for; none if it stands for itself."""
    if "," in text:
        return text.split(",")
    found = _RANGE.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        return ()
    ends = found.groups()
    width = max(map(len, ends)) if any(end[0] == "0" != end for end in ends) else 0
    return (f"{number:0{width}d}" for number in range(int(ends[0]), int(ends[1]) + 1))


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
