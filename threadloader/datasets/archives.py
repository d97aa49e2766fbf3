"""Opening a shard as a stream of an unpacked tar archive, whatever it is compressed with."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from threadloader.datasets.files import is_url
from threadloader.datasets.urls import shown_url
from threadloader.datasets.zstd import open_zstd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader.datasets.files import File

__all__ = ["Archive", "compression_of", "opened"]

_COMPRESSIONS = {
    ".tar": "",
    ".tar.gz": "gzip",
    ".tgz": "gzip",
    ".tar.zst": "zstd",
    ".tzst": "zstd",
}


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that is being read."""

    stream: BinaryIO  # of the unpacked bytes
    size: int | None  # bytes of an archive that is not compressed
    damage: tuple[type[Exception], ...]  # what the stream raises where the file is damaged


def compression_of(path: str) -> str:
    """Return ``""``, ``"gzip"`` or ``"zstd"``, by the name's ending.

    Raises:
        ValueError: It is none of an archive.
    """
    name = path.lower()
    if is_url(name):
        name = name.partition("?")[0].partition("#")[0]
    for ending, compression in _COMPRESSIONS.items():
        if name.endswith(ending):
            return compression
    shown = shown_url(path) if is_url(path) else path
    msg = f"{shown} is no shard: its name ends with none of {', '.join(_COMPRESSIONS)}"
    raise ValueError(msg)


@contextmanager
def opened(file: File) -> Iterator[Archive]:
    """Open a shard for one pass, and close it.

    Raises:
        ValueError: Its name's ending is none of an archive.
        ModuleNotFoundError: It is compressed by zstd, for which no library is installed.
        OSError: It can't be opened.
    """
    compression = compression_of(file.path)
    with file.open() as raw:
        if not compression:
            yield Archive(raw, file.size(), ())
        elif compression == "gzip":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                damage = (gzip.BadGzipFile, EOFError, zlib.error)
                yield Archive(cast("BinaryIO", unpacked), None, damage)
        else:
            reader, error = open_zstd(raw)
            with reader:
                yield Archive(reader, None, (error, EOFError))
