"""Samples of a shard: members of one name, up to its first dot, one after the other.

The rules are WebDataset's: the key is the path up to the first dot of the file's name, the
extension all that follows, in lower case.  Passed over are names without either (hidden files, as
macOS adds them, are among these), and those whose first part is in double underscores.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from threadloader.datasets.tar_headers import BLOCK
from threadloader.errors import DataError, shortened

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from threadloader.datasets.tar_reader import Member, TarReader

__all__ = ["EVERYTHING", "SAMPLE_LIMIT", "Part", "RawSample", "read_samples", "split_name"]

SAMPLE_LIMIT = 256 << 20  # bytes; 16 threads with one each still fit in memory
_CHARACTER = 4  # bytes that one takes at most in memory
_MOST_KEYS = 1 << 20  # remembered of one shard, to find those that come twice


class _Everything:
    """Contains all extensions."""

    def __contains__(self, extension: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()


class Part(NamedTuple):
    """One member of a sample."""

    name: str  # in the archive
    offset: int  # of its data in the archive, unpacked
    size: int  # bytes
    data: bytes | None  # None where it was not asked for


class RawSample(NamedTuple):
    """What a shard has of one key."""

    key: str
    parts: dict[str, Part]  # by extension


def split_name(name: str) -> tuple[str, str] | None:
    """Return a member's key and its extension in lower case; None where it has none."""
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
        limit: Bytes that a sample's members of which data is read may have together, and all
            their headers: each has `BLOCK` bytes, and 4 for each character of its name and of its
            extension, which is what Python may take for them.
        wanted: Extensions of the members whose data is read.

    Raises:
        DataError: The shard is damaged, a sample is too large, or a key comes twice.
    """
    key: str | None = None
    parts: dict[str, Part] = {}
    keys: set[bytes] = set()  # digests: names may be long
    nbytes = 0
    for member in reader.members():
        split = split_name(member.name)
        if split is None:
            continue
        if split[0] != key:
            if key is not None:
                yield RawSample(key, parts)
            key, parts, nbytes = split[0], {}, 0
            _remember(key, keys, member, path)
        needed = split[1] in wanted
        nbytes += BLOCK + _CHARACTER * (len(member.name) + len(split[1]))
        nbytes += member.size if needed else 0
        _check(member, parts, split[1], nbytes, limit, path)
        data = reader.read(member) if needed else None
        parts[split[1]] = Part(member.name, member.offset, member.size, data)
    if key is not None:
        yield RawSample(key, parts)


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
    member: Member, parts: dict[str, Part], extension: str, nbytes: int, limit: int, path: str
) -> None:
    if extension in parts:
        msg = f"its sample has {shortened(parts[extension].name)!r} already"
        raise DataError(msg, path, member=member.name, offset=member.offset)
    if nbytes > limit:
        msg = f"its sample has {nbytes:,} bytes up to here, and sample_limit={limit:,}"
        raise DataError(msg, path, member=member.name, offset=member.offset)
