"""The index of a shard, with the place of each sample, by one pass over its headers.

The pass over a shard behind a URL does not transfer members of more than a MiB.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from threadloader.datasets._local_file import SeekableFile
from threadloader.datasets._shards.kept import kept_index
from threadloader.datasets._tar import (
    Archive,
    SampleMember,
    TarReader,
    check_archive,
    compression_of,
)
from threadloader.datasets._urls import is_url

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from threadloader.datasets._files import File


_VERSION = 6  # of the file
_NUMBERS = ("key_ends", "member_ends", "offsets", "sizes", "kinds")
# Bytes that are read at a time of a shard behind a URL; longer members are passed over.
# Unmeasured, a choice: at 100 MB/s and 10 ms a request, they take as long as one.
_HEADERS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The samples of one shard, in arrays: 24 bytes a member; 16 bytes and the key a sample.

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
    kinds: NDArray[np.int64]  # (members,), positions in `extensions`

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
    stamp = file.stamp()  # taken first: if the shard changes meanwhile, the index is built again
    build = partial(build_index, file)
    return kept_index(file, path, folder, _VERSION, build, lambda kept: ShardIndex(stamp, **kept))


def build_index(file: File) -> dict[str, Any]:
    """Return the index of a shard, by one pass over its headers: see `ShardIndex`."""
    check_archive(file.path)
    if compression_of(file.path):
        msg = (
            f"{file.path} is compressed: its samples come one after the other, by TarStream; "
            "random access needs a .tar"
        )
        raise ValueError(msg)
    keys, extensions = bytearray(), dict[str, int]()
    found: dict[str, list[int]] = {name: [] for name in _NUMBERS}
    size = file.size()
    buffer = _HEADERS if is_url(file.path) else io.DEFAULT_BUFFER_SIZE
    with io.BufferedReader(SeekableFile(file.read_at, size), buffer) as stream:
        reader = TarReader(Archive(cast("BinaryIO", stream), size, ()), file.path, sys.maxsize)
        for key, members in reader.samples(()):
            for extension, member in members.items():
                found["kinds"].append(extensions.setdefault(extension, len(extensions)))
                found["offsets"].append(member.offset)
                found["sizes"].append(member.size)
            keys += key.encode("utf-8", "surrogateescape")
            found["key_ends"].append(len(keys))
            found["member_ends"].append(len(found["offsets"]))
    arrays = {name: np.array(values, np.int64) for name, values in found.items()}
    return {"extensions": [*extensions], "keys": np.frombuffer(bytes(keys), np.uint8), **arrays}
