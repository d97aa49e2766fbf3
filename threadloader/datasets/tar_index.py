"""Where each sample of a shard is: an index that is built once and kept in a file.

    shard-000.tar ── one pass over its headers ──▶ ShardIndex ──▶ shard-000.tar.tlindex

Processes may build it at the same time: its file is only ever replaced as a whole.  An index of
another version, or older than its shard, or damaged, is built anew.

Of a shard behind a URL, members of more than a MiB are left out of the pass: see `_Headers`.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from threadloader.datasets.archives import Archive, compression_of, opened
from threadloader.datasets.files import is_url
from threadloader.datasets.index_file import ShardIndex, load_index, save_index
from threadloader.datasets.tar_reader import TarReader
from threadloader.datasets.tar_samples import read_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from threadloader.datasets.files import File

__all__ = ["build_index", "cache_folder", "open_index"]

# Of a URL's query: what signs it, and what only comes with that.  Source: "Authenticating Requests:
# Using Query Parameters" of Amazon S3, versions 4 and 2; "Signed URLs" of Google Cloud Storage and
# of CloudFront; "Create a service SAS" of Azure Storage.
_SIGNING = frozenset({"signature", "sig", "x-amz-signature", "x-goog-signature"})
_SIGNED = re.compile(
    "x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|expires|policy|signature|key-pair-id|"
    "s[aeiprstv]|s[pds]r|sig|sip|spr|srt|sdd|sk[etsv]|skoid|sktid|saoid|suoid|scid"
)


def open_index(file: File, path: str, folder: str | os.PathLike[str] | None = None) -> ShardIndex:
    """Return a shard's index, from where it is kept or, if it isn't, from the shard.

    Args:
        file: The shard.
        path: Its path or URL.
        folder: Where the index is kept; None for beside the shard, or where that can't be written
            and for URLs, `cache_folder`.  A URL has the same index however it is signed.

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
    with _opened(file) as archive:
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
    whole = _unsigned(path) if url else str(Path(path).resolve())
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


def _unsigned(url: str) -> str:
    """Return a URL without its signature, which is another one each time that it is signed.

    All else of the query stays, as it may say which file is meant.
    """
    place, _, query = url.partition("#")[0].partition("?")
    pairs = query.split("&")
    names = [pair.partition("=")[0].lower() for pair in pairs]
    if not url.startswith(("http://", "https://")) or _SIGNING.isdisjoint(names):
        return url
    kept = [pair for pair, name in zip(pairs, names, strict=True) if not _SIGNED.fullmatch(name)]
    return f"{place}?{'&'.join(kept)}"


@contextmanager
def _opened(file: File) -> Iterator[Archive]:
    """Open a shard that is not compressed for a pass over its headers."""
    if not is_url(file.path):
        with opened(file) as archive:
            yield archive
        return
    size = file.size()
    with io.BufferedReader(_Headers(file, size)) as stream:
        yield Archive(cast("BinaryIO", stream), size, ())


class _Headers(io.RawIOBase):
    """An archive behind a URL, read where its headers are, for `io.BufferedReader`.

    What is skipped is not transferred where that saves more than another request costs: while one
    member is close to the next, ranges become longer, up to 4 MiB; after a long skip they are
    short again.

    Args:
        file: The archive.
        size: Of it, in bytes.

    Threads:
        all: one thread.
    """

    # Bytes.  Unmeasured, a choice: at 100 MB/s and 10 ms a request, 1 MiB takes as long as one.
    _SHORTEST, _LONGEST, _FAR = 64 << 10, 4 << 20, 1 << 20

    def __init__(self, file: File, size: int) -> None:
        super().__init__()
        self._file, self._size = file, size
        self._at = 0  # offset of what is read next
        self._range, self._begin = memoryview(b""), 0  # what was read last, and its offset
        self._length = self._SHORTEST  # of the next range

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        if not self._begin <= self._at < self._begin + len(self._range):
            self._fetch()
        target = memoryview(buffer).cast("B")
        start = self._at - self._begin
        data = self._range[start : start + len(target)]
        target[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self) -> None:
        """Read the next range."""
        skipped = self._at - self._begin - len(self._range)
        if skipped >= self._FAR:
            self._length = self._SHORTEST
        count = max(0, min(self._length, self._size - self._at))
        self._range, self._begin = memoryview(self._file.read_at(self._at, count)), self._at
        self._length = min(4 * self._length, self._LONGEST)
