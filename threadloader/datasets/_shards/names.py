"""Files of a dataset: found by a pattern with braces and wildcards, and which one has a sample."""

from __future__ import annotations

import glob
import operator
import os
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from threadloader.datasets._files import open_files
from threadloader.datasets._urls import is_url, pattern_in, shown_url
from threadloader.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from threadloader.datasets._files import File

    Patterns: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


MOST = 1_000_000  # names that one pattern may stand for
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


class Files:
    """The files that patterns stand for, in order.

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
        self._files = open_files(self.paths, **options)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[File]:
        return iter(self._files)

    def __getitem__(self, number: int) -> File:
        return self._files[number]

    def __str__(self) -> str:
        """Return their number and names in words; URLs without their secrets."""
        if len(self) == 1:
            return f"1 shard, {self[0].path}"
        return f"{len(self):,} shards, {self[0].path} to {self[-1].path}"

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        for file in self._files:
            file.close()


def checked_index(index: int, length: int, what: str) -> int:
    """Return an index from the beginning; a negative one counts from the end.

    Args:
        index: Of a sample.
        length: Number of samples.
        what: Samples in words, for the error.

    Raises:
        IndexError: There is no such sample.
    """
    number = operator.index(index)
    number += length if number < 0 else 0
    if not 0 <= number < length:
        msg = f"index {index} is out of range: there are {length} {what}"
        raise IndexError(msg)
    return number


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
