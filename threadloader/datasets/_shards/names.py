"""Names of shards, from a pattern with braces and wildcards."""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from threadloader.datasets._urls import is_url, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


MOST = 1_000_000  # names that one pattern may stand for
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


def find_shards(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], **options: Any
) -> list[str]:
    """Return the paths and URLs that patterns stand for, in order.

    Args:
        pattern: One or several.  ``{000..123}`` (digits, rising) and ``{a,b}`` are expanded, also
            nested, then ``*``, ``?`` and ``[...]`` are looked up, sorted by name.  A path that
            exists stands for itself, and so do other braces.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        FileNotFoundError: No file matches.
        ValueError: A pattern stands for too many names, or there is no pattern.
    """
    patterns = [pattern] if isinstance(pattern, (str, os.PathLike)) else list(pattern)
    found = [path for each in patterns for path in _found(os.fspath(each), options)]
    if not found:
        msg = "no shards: the list of patterns is empty"
        raise ValueError(msg)
    return found


def told_shards(shards: Sequence[str]) -> str:
    """Return the number and the names of shards in words; URLs without their secrets."""
    if len(shards) == 1:
        return f"1 shard, {shown_url(shards[0])}"
    return f"{len(shards):,} shards, {shown_url(shards[0])} to {shown_url(shards[-1])}"


def _found(pattern: str, options: dict[str, Any]) -> Iterator[str]:
    if not is_url(pattern) and _exists(pattern):
        yield pattern
        return
    for name in _expanded(pattern):
        if is_url(name):
            yield from _remote(name, options)
        elif glob.has_magic(name) and not _exists(name):
            yield from _matching(name)
        else:
            yield name


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a long list in braces is longer than a name may be
        return False


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


def _remote(pattern: str, options: dict[str, Any]) -> list[str]:
    # Only in the path: elsewhere a question mark begins the query, and brackets an IPv6 address.
    if not set(urlsplit(pattern).path) & set("*["):
        return [pattern]
    from threadloader.datasets._remote.remote_file import list_remote  # noqa: PLC0415  # loads fsspec

    return list_remote(pattern, **options)


def _expanded(pattern: str) -> list[str]:
    """Return the names that a pattern with braces stands for.

    Raises:
        ValueError: They are more than `MOST`.
    """
    names, at = [""], 0
    while at < len(pattern):
        parts = _parts(pattern, at) if pattern[at] == "{" else []
        choices = _choices(parts)
        if choices:
            at += len(",".join(parts)) + 2
        else:  # up to the next brace
            stop = pattern.find("{", at + 1)
            choices = [pattern[at:] if stop < 0 else pattern[at:stop]]
            at += len(choices[0])
        _check(pattern, len(names) * len(choices))
        names = [name + choice for name in names for choice in choices]
    return names


def _parts(pattern: str, start: int) -> list[str]:
    """Return what the commas between a brace and its partner divide; nothing without a partner."""
    parts, depth, begin = [], 0, start + 1
    for at in range(start, len(pattern)):
        letter = pattern[at]
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if not depth or (letter == "," and depth == 1):
            parts.append(pattern[begin:at])
            begin = at + 1
        if not depth:
            return parts
    return []


def _choices(parts: list[str]) -> list[str]:
    """Return the texts that a pair of braces stands for; none if it stands for itself."""
    if len(parts) > 1:
        return [name for part in parts for name in _expanded(part)]
    found = _RANGE.fullmatch(parts[0]) if parts else None
    if found is None:
        return []
    ends = found.groups()
    first, last = map(int, ends)
    _check(found[0], last - first + 1)
    width = max(map(len, ends)) if any(end[0] == "0" != end for end in ends) else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _check(pattern: str, count: int) -> None:
    if count > MOST:
        shown = shown_url(pattern) if is_url(pattern) else pattern
        msg = f"{shown} stands for {count:,} names: more than {MOST:,}"
        raise ValueError(msg)
