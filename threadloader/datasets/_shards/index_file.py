"""The index of a shard, and the file that keeps it.

The file has a line with the format's version, a digest of all that follows, a JSON object, and the
arrays one after the other.  The digest finds damage.  A forged file can do no harm, since all its
offsets are checked to lie within the shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from threadloader.datasets._tar.samples import SampleMember

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ShardIndex", "load_index", "save_index"]

_MAGIC = b"threadloader shard index 2\n"
_DIGEST = 16  # bytes
_ARRAYS = {
    "keys": "u1",
    "key_ends": "<i8",
    "member_ends": "<i8",
    "offsets": "<i8",
    "sizes": "<i8",
    "kinds": "<i4",
}


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The samples of one shard, in arrays: 20 bytes a member; 16 bytes and the key a sample.

    Threads:
        all: shared; nothing is written.
    """

    stamp: str  # of the shard, see `File.stamp`
    size: int  # bytes of the shard
    extensions: tuple[str, ...]
    keys: NDArray[np.uint8]  # all keys, one after the other
    key_ends: NDArray[np.int64]  # (samples,)
    member_ends: NDArray[np.int64]  # (samples,), among all members
    offsets: NDArray[np.int64]  # (members,), of the data in the shard
    sizes: NDArray[np.int64]  # (members,), bytes
    kinds: NDArray[np.int32]  # (members,), positions in `extensions`
    archives: int = 1  # that follow each other in the shard, each ended by zeros

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
    arrays = {name: getattr(index, name) for name in _ARRAYS}
    head = {
        "stamp": index.stamp,
        "size": index.size,
        "archives": index.archives,
        "extensions": index.extensions,
        "lengths": [len(array) for array in arrays.values()],
    }
    parts = [json.dumps(head).encode(), b"\n"]
    parts += [array.astype(_ARRAYS[name]).tobytes() for name, array in arrays.items()]
    body = b"".join(parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(prefix=f".{place.name}-", dir=place.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  # of a descriptor
            file.write(_MAGIC + _digest(body) + body)
        if os.name == "posix":
            Path(scratch).chmod(0o644)  # only its owner may read a temporary file
        Path(scratch).replace(place)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def load_index(place: Path) -> ShardIndex | None:
    """Return the index in a file; None if there is no file, or it is not in order."""
    try:
        data = place.read_bytes()
        body = data[len(_MAGIC) + _DIGEST :]
        if data[: -len(body)] != _MAGIC + _digest(body):
            return None
        index = _parsed(body)
        return index if _is_in_order(index) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _parsed(body: bytes) -> ShardIndex:
    line = body.index(b"\n") + 1
    head = json.loads(body[:line])
    arrays, at = {}, line
    for (name, kind), length in zip(_ARRAYS.items(), head["lengths"], strict=True):
        array = np.frombuffer(body, kind, length, at)
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
        at += array.nbytes
    extensions = tuple(map(str, head["extensions"]))
    size, archives = int(head["size"]), int(head["archives"])
    return ShardIndex(str(head["stamp"]), size, extensions, **arrays, archives=archives)


def _is_in_order(index: ShardIndex) -> bool:
    """Whether all members lie within the shard, and the arrays fit each other."""
    members = len(index.offsets)
    same = members == len(index.sizes) == len(index.kinds)
    if not same or len(index.member_ends) != len(index.key_ends):
        return False
    inside = (
        (index.offsets >= 0)
        & (index.sizes >= 0)
        & (index.offsets <= index.size)
        & (index.sizes <= index.size - index.offsets)
        & (index.kinds >= 0)
        & (index.kinds < len(index.extensions))
    )
    return (
        bool(inside.all())
        and _are_ends(index.member_ends, members)
        and _are_ends(index.key_ends, len(index.keys))
    )


def _are_ends(ends: NDArray[np.int64], total: int) -> bool:
    """Whether these ends divide ``total`` things into parts that are not empty."""
    return bool((np.diff(ends, prepend=0) > 0).all()) and int(ends[-1:].sum()) == total


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST).digest()
