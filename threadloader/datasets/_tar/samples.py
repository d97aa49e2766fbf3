"""Samples of a shard: members whose names are equal up to the first dot, one after the other.

The rules are WebDataset's.  The key is the path up to the first dot of the file's name; the
extension is all that follows, in lower case.  Members without a key or an extension are skipped
(hidden files, such as macOS adds, have no key), and so are those whose path begins with a part in
double underscores.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from threadloader.datasets._tar.reader import BLOCK
from threadloader.errors import DataError, shortened

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from threadloader.datasets._tar.reader import Member, TarReader

__all__ = ["EVERYTHING", "SAMPLE_LIMIT", "RawSample", "SampleMember", "read_samples", "split_name"]

SAMPLE_LIMIT = 256 << 20  # bytes; 16 threads with one each still fit in memory
_CHARACTER = 4  # bytes of memory that one takes at most
_MOST_KEYS = 1 << 20  # of one shard that are remembered, to find a key that comes twice


class _Everything:
    """Contains all extensions."""

    def __contains__(self, extension: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()


class SampleMember(NamedTuple):
    """A member of a sample."""

    name: str  # in the archive
    offset: int  # of its data in the archive, unpacked
    size: int  # bytes
    data: bytes | None  # None if it was not asked for


class RawSample(NamedTuple):
    """The members of one key in a shard, not decoded."""

    key: str
    members: dict[str, SampleMember]  # by extension


def split_name(name: str) -> tuple[str, str] | None:
    """Return a member's key, and its extension in lower case; None if one of them is missing."""
    folder, slash, file = name.rpartition("/")
    stem, dot, extension = file.partition(".")
    if not stem or not dot or _is_meta(name):
        return None
    return folder + slash + stem, extension.lower()


def read_samples(
    reader: TarReader, path: str, limit: int, wanted: Container[str]
) -> Iterator[RawSample]:
    """Yield the samples of a shard.

    Args:
        reader: Of the shard.
        path: Of the shard, for errors.
        limit: Most bytes of a sample: the members whose data is read, and the headers of all.  A
            header counts `BLOCK` bytes, and 4 for each character of its name and its extension,
            which is what Python may take for them.
        wanted: Extensions of the members whose data is read.

    Raises:
        DataError: The shard is damaged, a sample is too large, or a key comes twice.
    """
    key: str | None = None
    members: dict[str, SampleMember] = {}
    keys: set[bytes] = set()  # digests: names may be long
    nbytes = 0
    for member in reader.members():
        split = split_name(member.name)
        if split is None:
            continue
        if split[0] != key:
            if key is not None:
                yield RawSample(key, members)
            key, members, nbytes = split[0], {}, 0
            _remember(key, keys, member, path)
        needed = split[1] in wanted
        nbytes += BLOCK + _CHARACTER * (len(member.name) + len(split[1]))
        nbytes += member.size if needed else 0
        _check(member, members, split[1], nbytes, limit, path)
        data = reader.read(member) if needed else None
        members[split[1]] = SampleMember(member.name, member.offset, member.size, data)
    if key is not None:
        yield RawSample(key, members)


def _is_meta(name: str) -> bool:
    first = name.partition("/")[0]
    return len(first) >= 4 and first.startswith("__") and first.endswith("__")


def _remember(key: str, keys: set[bytes], member: Member, path: str) -> None:
    digest = blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    if digest in keys:
        msg = f"the key {shortened(key)!r} was there before: members of a sample follow one another"
        raise DataError(msg, path, member=member.name, offset=member.offset)
    if len(keys) < _MOST_KEYS:
        keys.add(digest)


def _check(
    member: Member,
    members: dict[str, SampleMember],
    extension: str,
    nbytes: int,
    limit: int,
    path: str,
) -> None:
    if extension in members:
        msg = f"its sample has {shortened(members[extension].name)!r} already"
        raise DataError(msg, path, member=member.name, offset=member.offset)
    if nbytes > limit:
        msg = f"its sample has {nbytes:,} bytes up to here, and sample_limit={limit:,}"
        raise DataError(msg, path, member=member.name, offset=member.offset)
