"""The index of a shard, with the place of each sample, by one pass over its headers.

The pass over a shard behind a URL does not transfer members of more than a MiB.
"""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from threadloader.datasets._files import SeekableFile
from threadloader.datasets._shards.kept import kept_index
from threadloader.datasets._tar import (
    Archive,
    SampleMember,
    TarReader,
    compression_of,
    open_archive,
)
from threadloader.datasets._urls import is_url

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The samples of one shard, in arrays: 20 bytes a member; 16 bytes and the key a sample.

    Threads:
        all: shared; nothing is written.
    """

    stamp: str  # of the shard, see `File.stamp`
    extensions: Sequence[str]
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


def open_index(file: File, path: str, folder: str | os.PathLike[str] | None = None) -> ShardIndex:
    """Return a shard's index: from its file or, if there is none, from the shard.

    Args:
        file: The shard.
        path: Its path or URL.
        folder: Of the index's file; see `kept_index`.

    Raises:
        DataError: The shard is damaged.
        ValueError: It is compressed.
        OSError: It can't be read.
    """

    def build() -> dict[str, Any]:
        index = build_index(file)
        return {name: getattr(index, name) for name in ("extensions", *_ARRAYS)}

    return ShardIndex(file.stamp(), **kept_index(file, path, folder, _VERSION, _ARRAYS, build))


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


@contextmanager
def _open_headers(file: File) -> Iterator[Archive]:
    """Open a shard that is not compressed for a pass over its headers."""
    if not is_url(file.path):
        with open_archive(file) as archive:
            yield archive
        return
    size = file.size()
    with io.BufferedReader(SeekableFile(file, size), _HEADERS) as stream:
        yield Archive(cast("BinaryIO", stream), size, ())
