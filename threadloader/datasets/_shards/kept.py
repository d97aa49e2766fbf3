"""Indexes of files: built once, then kept in a file beside each, or in the user's cache folder.

    shard-000.tar ── one pass over it ──▶ arrays ──▶ shard-000.tar.tlindex

The file is an npz, whose checksums find damage.  Processes may build it at the same time: it is
only replaced as a whole.  An index is built anew if it has another format, is damaged, or is of
another version of the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from threadloader.datasets._local_file import write_whole
from threadloader.datasets._shards.decoding import read_npz
from threadloader.datasets._urls import is_url, unsigned

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader.datasets._files import File


T = TypeVar("T")


def kept_index(
    file: File,
    path: str,
    folder: str | os.PathLike[str] | None,
    version: int,
    build: Callable[[], dict[str, Any]],
    of: Callable[[dict[str, Any]], T],
) -> T:
    """Return a file's index: from its own file or, if there is none, built and kept there.

    Args:
        file: What the index is of.
        path: Its path or URL.
        folder: Of the index's file; None for the file's own folder, or `cache_folder` for a URL
            and where that folder can't be written.  A URL has one index, however it is signed.
        version: Of the index's format.
        build: Returns what is kept: arrays, and what JSON can hold.
        of: Returns the index of that; an error, if a part is missing.
    """
    told = {"version": version, "stamp": file.stamp()}
    places = _places(path, folder)
    for place in places:
        with suppress(Exception):  # there is none, or its bytes mean anything
            return of(_loaded(place, told))
    index = build()
    for place in places:
        with suppress(OSError):  # then the next place, or it is built again the next time
            write_whole(place, _saved(index, told))
            break
    return of(index)


def _saved(index: dict[str, Any], told: dict[str, Any]) -> bytes:
    arrays: dict[str, Any]
    arrays = {name: value for name, value in index.items() if isinstance(value, np.ndarray)}
    told = told | {name: value for name, value in index.items() if name not in arrays}
    file = io.BytesIO()
    np.savez(file, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)
    return file.getvalue()


def _loaded(place: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept in a file; an error, if there is no file, or it is not in order."""
    arrays: dict[str, Any] = read_npz(place.read_bytes())
    told: dict[str, Any] = json.loads(arrays.pop("told").tobytes())
    if any(told.pop(name) != value for name, value in expected.items()):
        raise ValueError(place)
    return told | arrays


def cache_folder() -> Path:
    """Return the folder for indexes in the user's cache folder.

    Source: XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "threadloader", "shards")


def _places(path: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return the files that may have an index, the preferred one first."""
    url = is_url(path)
    whole = unsigned(path) if url else str(Path(path).resolve())
    # From the whole path: shards of one name in several folders have one index each.
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    name = f"{digest}.tlindex"
    if folder is not None:
        return [Path(folder) / name]
    beside = [] if url else [Path(f"{whole}.tlindex")]
    try:
        return [*beside, cache_folder() / name]
    except RuntimeError:  # a user without a home
        return beside
