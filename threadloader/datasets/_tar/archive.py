"""Shards as streams of an unpacked tar archive, whatever their compression."""

from __future__ import annotations

import gzip
import importlib
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from threadloader.datasets._urls import is_url, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader.datasets._files import File

__all__ = ["Archive", "compression_of", "open_archive", "open_zstd"]

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
    size: int | None  # bytes; None if the archive is compressed
    damage: tuple[type[Exception], ...]  # errors of the stream where the file is damaged


def compression_of(path: str) -> str:
    """Return ``""``, ``"gzip"`` or ``"zstd"``, by the name's ending.

    Raises:
        ValueError: The name has no ending of an archive.
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
def open_archive(file: File) -> Iterator[Archive]:
    """Open a shard for one pass, and close it.

    Raises:
        ValueError: Its name has no ending of an archive.
        ModuleNotFoundError: It is compressed by zstd, and no library for that is installed.
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


def open_zstd(stream: BinaryIO) -> tuple[BinaryIO, type[Exception]]:
    """Return a reader of a stream's unpacked bytes, and the error that it raises for damage.

    A frame whose window is over 128 MiB is refused, so a frame takes no more memory than that,
    whatever it declares.

    Args:
        stream: Of zstd frames; the caller closes it.

    Raises:
        ModuleNotFoundError: No library is installed.
    """
    module = _zstd()
    return cast("BinaryIO", module.ZstdFile(stream)), module.ZstdError


def _zstd() -> Any:
    """Return `compression.zstd`, or the same for Pythons before 3.14."""
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    msg = "zstd needs Python 3.14, or: pip install backports.zstd (extra: zstd)"
    raise ModuleNotFoundError(msg, name="backports.zstd")
