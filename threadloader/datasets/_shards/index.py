"""The index of a shard, with the place of each sample: built once, then kept in a file.

    shard-000.tar ── one pass over its headers ──▶ ShardIndex ──▶ shard-000.tar.tlindex

The file is an npz, whose checksums find damage.  Processes may build it at the same time: it is
only replaced as a whole.  An index is built anew if it has another format, is damaged, or is of
another version of the shard.

The pass over a shard behind a URL does not transfer members of more than a MiB.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from threadloader.datasets._local_file import write_whole
from threadloader.datasets._shards.decoding import read_npz
from threadloader.datasets._tar import (
    Archive,
    SampleMember,
    TarReader,
    compression_of,
    open_archive,
)
from threadloader.datasets._urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from threadloader.datasets._files import File


_VERSION = 5  # of the file
_ARRAYS = {
    "keys": "u1",
    "key_ends": "i8",
    "member_ends": "i8",
    "offsets": "i8",
    "sizes": "i8",
    "kinds": "i4",
}

# Bytes that are read at a time of a shard behind a URL; longer members are passed over.
# Unmeasured, a choice: at 100 MB/s and 10 ms a request, they take as long as one.
_HEADERS = 1 << 20

# In a URL's query: signatures, and what only comes with them.  Source: "Authenticating Requests:
# Using Query Parameters" of Amazon S3, versions 4 and 2; "Signed URLs" of Google Cloud Storage and
# of CloudFront; "Create a service SAS" of Azure Storage.
_SIGNATURES = frozenset({"signature", "sig", "x-amz-signature", "x-goog-signature"})
_SIGNED = re.compile(
    "x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|expires|policy|signature|key-pair-id|"
    "s[aeiprstv]|s[pds]r|sig|sip|spr|srt|sdd|sk[etsv]|skoid|sktid|saoid|suoid|scid"
)


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The samples of one shard, in arrays: 20 bytes a member; 16 bytes and the key a sample.

    Threads:
        all: shared; nothing is written.
    """

    stamp: str  # of the shard, see `File.stamp`
    extensions: tuple[str, ...]
    keys: NDArray[np.uint8]  # all keys, one after the other
    key_ends: NDArray[np.int64]  # (samples,)
    member_ends: NDArray[np.int64]  # (samples,), among all members
    offsets: NDArray[np.int64]  # (members,), of the data in the shard
    sizes: NDArray[np.int64]  # (members,), bytes
    kinds: NDArray[np.int32]  # (members,), positions in `extensions`

    def __len__(self) -> int:
        return len(self.key_ends)

    def key(self, row: int) -> str:
        """Return a sample's key."""
        start = self.key_ends[row - 1] if row else 0
        return self.keys[start : self.key_ends[row]].tobytes().decode("utf-8", "surrogateescape")

    def members(self, row: int) -> dict[str, SampleMember]:
        """Return a sample's members by extension, without their data."""
        key = self.key(row)
        start, stop = self.member_ends[row - 1] if row else 0, self.member_ends[row]
        members = zip(
            self.kinds[start:stop].tolist(),
            self.offsets[start:stop].tolist(),
            self.sizes[start:stop].tolist(),
            strict=True,
        )
        names = self.extensions
        return {
            names[kind]: SampleMember(f"{key}.{names[kind]}", offset, size, None)
            for kind, offset, size in members
        }


def save_index(index: ShardIndex, place: Path) -> None:
    """Write an index so that its file is whole at any moment.

    Raises:
        OSError: The file can't be written.
    """
    told = {"version": _VERSION, "stamp": index.stamp, "extensions": index.extensions}
    arrays = {name: getattr(index, name) for name in _ARRAYS}
    file = io.BytesIO()
    np.savez(file, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)
    write_whole(place, file.getvalue())


def _loaded(place: Path) -> ShardIndex | None:
    """Return the index in a file; None if there is no file, or it is not in order."""
    try:
        arrays = read_npz(place.read_bytes())
        told = json.loads(arrays["told"].tobytes())
        if told["version"] != _VERSION:
            return None
        return ShardIndex(
            str(told["stamp"]),
            tuple(map(str, told["extensions"])),
            *(arrays[name].astype(kind, casting="equiv") for name, kind in _ARRAYS.items()),
        )
    except Exception:  # noqa: BLE001  # there is none, or its bytes mean anything
        return None


def open_index(file: File, path: str, folder: str | os.PathLike[str] | None = None) -> ShardIndex:
    """Return a shard's index: from its file or, if there is none, from the shard.

    Args:
        file: The shard.
        path: Its path or URL.
        folder: Of the index's file; None for the shard's own folder, or `cache_folder` for a URL
            and where that folder can't be written.  A URL has one index, however it is signed.

    Raises:
        DataError: The shard is damaged.
        ValueError: It is compressed.
        OSError: It can't be read.
    """
    stamp = file.stamp()
    places = _places(path, folder)
    for place in places:
        found = _loaded(place)
        if found is not None and found.stamp == stamp:
            return found
    index = build_index(file)
    for place in places:
        with suppress(OSError):  # then the next place, or it is built again the next time
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
    stamp = file.stamp()  # taken first: if the shard changes meanwhile, the index is built again
    keys, key_ends, member_ends = bytearray(), [], []
    offsets: list[int] = []
    sizes: list[int] = []
    kinds: list[int] = []
    extensions: dict[str, int] = {}
    with _open_headers(file) as archive:
        reader = TarReader(archive, file.path, sys.maxsize)
        for key, members in reader.samples(()):
            for extension, member in members.items():
                kinds.append(extensions.setdefault(extension, len(extensions)))
                offsets.append(member.offset)
                sizes.append(member.size)
            keys += key.encode("utf-8", "surrogateescape")
            key_ends.append(len(keys))
            member_ends.append(len(offsets))
    return ShardIndex(
        stamp,
        tuple(extensions),
        np.frombuffer(bytes(keys), np.uint8),
        np.array(key_ends, np.int64),
        np.array(member_ends, np.int64),
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array(kinds, np.int32),
    )


def cache_folder() -> Path:
    """Return the folder for indexes in the user's cache folder.

    Source: XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "threadloader", "shards")


def _places(path: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return the files that may have an index, the preferred one first."""
    url = is_url(path)
    whole = _unsigned(path) if url else str(Path(path).resolve())
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


def _unsigned(url: str) -> str:
    """Return a URL without its signature, which differs each time that it is signed.

    The rest of the query stays, as it may name the file.
    """
    place, _, query = url.partition("#")[0].partition("?")
    pairs = query.split("&")
    names = [pair.partition("=")[0].lower() for pair in pairs]
    if _SIGNATURES.isdisjoint(names):
        return url
    kept = [pair for pair, name in zip(pairs, names, strict=True) if not _SIGNED.fullmatch(name)]
    return f"{place}?{'&'.join(kept)}"


@contextmanager
def _open_headers(file: File) -> Iterator[Archive]:
    """Open a shard that is not compressed for a pass over its headers."""
    if not is_url(file.path):
        with open_archive(file) as archive:
            yield archive
        return
    size = file.size()
    with io.BufferedReader(_Headers(file, size), _HEADERS) as stream:
        yield Archive(cast("BinaryIO", stream), size, ())


class _Headers(io.RawIOBase):
    """An archive behind a URL, of which only the headers are read, for `io.BufferedReader`.

    Args:
        file: The archive.
        size: Of the archive, in bytes.

    Threads:
        all: one thread.
    """

    def __init__(self, file: File, size: int) -> None:
        super().__init__()
        self._file, self._size, self._at = file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        target = memoryview(buffer).cast("B")
        count = max(0, min(self._size - self._at, len(target)))
        target[:count] = self._file.read_at(self._at, count)
        self._at += count
        return count
