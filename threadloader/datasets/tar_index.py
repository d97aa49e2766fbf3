"""Where each sample of a shard is: an index that is built once and kept in a file.

    shard-000.tar ── one pass over its headers ──▶ ShardIndex ──▶ shard-000.tar.tlindex

Processes may build it at the same time: its file is only ever replaced as a whole.  An index of
another version, or older than its shard, or damaged, is built anew.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from threadloader.datasets.archives import compression_of, opened
from threadloader.datasets.files import is_url
from threadloader.datasets.index_file import ShardIndex, load_index, save_index
from threadloader.datasets.tar_reader import TarReader
from threadloader.datasets.tar_samples import read_samples

if TYPE_CHECKING:
    from threadloader.datasets.files import File

__all__ = ["build_index", "cache_folder", "open_index"]


def open_index(file: File, path: str, folder: str | os.PathLike[str] | None = None) -> ShardIndex:
    """Return a shard's index, from where it is kept or, if it isn't, from the shard.

    Args:
        file: The shard.
        path: Its path or URL.
        folder: Where the index is kept; None for beside the shard, or where that can't be written
            and for URLs, `cache_folder`.

    Raises:
        DataError: The shard is damaged.
        ValueError: It is compressed.
        OSError: It can't be read.
    """
    stamp, size = file.stamp(), file.size()
    places = _places(path, folder)
    for place in places:
        found = load_index(place)
        if found is not None and found.stamp == stamp and found.size == size:
            return found
    index = build_index(file)
    for place in places:
        with suppress(OSError):  # it can't be kept there: it is built again the next time, if so
            save_index(index, place)
            break
    return index


def build_index(file: File) -> ShardIndex:
    """Return the index of a shard, by one pass over its headers.

    Raises:
        DataError: The shard is damaged.
        ValueError: It is compressed.
        OSError: It can't be read.
    """
    if compression_of(file.path):
        msg = (
            f"{file.path} is compressed: its samples come one after the other, by TarStream; "
            "random access needs a .tar"
        )
        raise ValueError(msg)
    stamp = file.stamp()  # before it is read: written meanwhile, it is read again the next time
    keys, key_ends, member_ends = bytearray(), [], []
    offsets: list[int] = []
    sizes: list[int] = []
    kinds: list[int] = []
    extensions: dict[str, int] = {}
    with opened(file) as archive:
        reader = TarReader(archive, file.path, sys.maxsize)
        for key, parts in read_samples(reader, file.path, sys.maxsize, ()):
            for extension, part in parts.items():
                kinds.append(extensions.setdefault(extension, len(extensions)))
                offsets.append(part.offset)
                sizes.append(part.size)
            keys += key.encode("utf-8", "surrogateescape")
            key_ends.append(len(keys))
            member_ends.append(len(offsets))
        size = archive.size
    return ShardIndex(
        stamp,
        size or 0,
        tuple(extensions),
        np.frombuffer(bytes(keys), np.uint8),
        np.array(key_ends, np.int64),
        np.array(member_ends, np.int64),
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array(kinds, np.int32),
    )


def cache_folder() -> Path:
    """Return the user's folder for what can be made again, the platform's usual one.

    Source: XDG Base Directory Specification; Apple's File System Programming Guide; on Windows
    ``%LOCALAPPDATA%``.
    """
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "threadloader" / "shards"


def _places(path: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return the files where an index may be, the preferred one first."""
    url = is_url(path)
    whole = path if url else str(Path(path).resolve())
    # Shards of one name in several folders have each their own.
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    name = f"{digest}.tlindex"
    if folder is not None:
        return [Path(folder) / name]
    beside = [] if url else [Path(f"{whole}.tlindex")]
    try:
        return [*beside, cache_folder() / name]
    except RuntimeError:  # a user without a home
        return beside
