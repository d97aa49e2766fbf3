"""Names of shards, from a pattern with braces and wildcards."""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from threadloader.datasets._urls import is_url, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["expand_braces", "find_shards", "told_shards"]

MOST = 1_000_000  # names that one pattern may stand for
_number_range = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?").fullmatch
_letter_range = re.compile(r"([A-Za-z])\.\.([A-Za-z])").fullmatch


def find_shards(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], **options: Any
) -> list[str]:
    """Return the paths and URLs that patterns stand for, in order.

    Args:
        pattern: One or several.  ``{000..123}`` and ``{a,b}`` are expanded as by a shell, then
            ``*``, ``?`` and ``[...]`` are looked up, sorted by name.  A path that exists stands for
            itself.
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
    for name in expand_braces(pattern):
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
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(_fixed_part(pattern)):
            pass  # it may be read: `glob` takes a folder that may not for an empty one
        msg = f"no file matches {pattern}"
        raise FileNotFoundError(msg)
    return paths


def _fixed_part(pattern: str) -> str:
    """Return the folder that a pattern is looked up in: all before its first wildcard."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)  # noqa: PTH120  # the same
    return pattern or "."


def _remote(pattern: str, options: dict[str, Any]) -> list[str]:
    # Only in the path: elsewhere a question mark begins the query, and brackets an IPv6 address.
    if not set(urlsplit(pattern).path) & set("*["):
        return [pattern]
    from threadloader.datasets._remote.remote_file import list_remote  # noqa: PLC0415  # loads fsspec

    return list_remote(pattern, **options)


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a shell makes of the braces in a pattern.

    Args:
        pattern: With lists ``{a,b}`` and ranges ``{000..123}``, ``{0..8..2}``, ``{a..f}``, also
            nested.  Other braces stay as they are.

    Raises:
        ValueError: The pattern stands for more than `MOST` names.
    """
    groups: list[list[str]] = []
    literal, at = "", 0
    while at < len(pattern):
        end = _closing(pattern, at) if pattern[at] == "{" else 0
        choices = _choices(pattern[at + 1 : end]) if end else None
        if choices is None:
            literal += pattern[at]
            at += 1
            continue
        groups += [[literal], choices]
        literal, at = "", end + 1
    groups.append([literal])
    _check(pattern, map(len, groups))
    return ["".join(parts) for parts in product(*groups)]


def _closing(pattern: str, start: int) -> int:
    """Return the place of the brace that closes the one at ``start``; 0 if there is none."""
    depth = 0
    for at in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[at], 0)
        if not depth:
            return at
    return 0


def _choices(inside: str) -> list[str] | None:
    """Return the texts that a pair of braces stands for; None if it stands for itself."""
    if found := _number_range(inside):
        return _numbers(inside, *found.groups())
    if found := _letter_range(inside):
        first, last = map(ord, found.groups())
        step = 1 if last >= first else -1
        return [chr(code) for code in range(first, last + step, step)]
    parts = _split(inside)
    if len(parts) == 1:
        return None
    return [name for part in parts for name in expand_braces(part)]


def _numbers(inside: str, first: str, last: str, step: str | None) -> list[str]:
    start, stop, by = int(first), int(last), abs(int(step or 1)) or 1
    _check(inside, [abs(stop - start) // by + 1])
    if stop < start:
        by = -by
    padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-")[0] == "0" for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in range(start, stop + (by > 0) - (by < 0), by)]


def _split(inside: str) -> list[str]:
    """Split at the commas that are not within inner braces."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(inside[begin:at])
            begin = at + 1
    return [*parts, inside[begin:]]


def _check(pattern: str, lengths: Iterable[int]) -> None:
    count = 1
    for length in lengths:
        count *= length
    if count > MOST:
        shown = shown_url(pattern) if is_url(pattern) else pattern
        msg = f"{shown} stands for {count:,} names: more than {MOST:,}"
        raise ValueError(msg)
