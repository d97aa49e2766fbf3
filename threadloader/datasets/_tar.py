"""Samples of a tar archive in order, read from a stream that may lie about everything.

Nothing is written to a file system, so names are only names.  An archive can do harm only by what
it declares: a size, a long name, a header of extended records.  Each is checked before memory is
taken for it.

This module reads ustar, pax and GNU's long names.  The standard library's tarfile reads them too,
but it takes memory for whatever a header declares, and takes an archive that is cut off at a header
for one that ends there; single headers are read by it.

Samples are members whose names are equal up to the first dot, one after the other.  The rules are
WebDataset's.  The key is the path up to the first dot of the file's name; the extension is all that
follows, in lower case.  Members without a key or an extension are skipped (hidden files, such as
macOS adds, have no key), and so are those whose path begins with a part in double underscores.

Source: pax in POSIX.1-2017 ("ustar Interchange Format", "pax Header Block"), and "Basic Tar
Format" in GNU tar's manual.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import sys
import zlib
from contextlib import contextmanager, suppress
from hashlib import blake2b
from tarfile import HeaderError, TarInfo
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from threadloader.datasets._urls import is_url, shown_url
from threadloader.errors import DataError, shortened

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from threadloader.datasets._files import File


BLOCK = 512  # bytes; a header fills one, and data is padded to whole blocks
PIECE = 1 << 20  # bytes that are read at once, as a declared size may be wrong
# Bytes of a name in a header of its own: twice Linux's PATH_MAX, which bounds the names that a
# program can open.  The formats have no limit.
_LONGEST_NAME = 8192
# Bytes of all such headers of one member: their records may be extended attributes, and Linux
# allows 64 KiB for each (XATTR_SIZE_MAX).
_LONGEST_EXTENSION = 1 << 20
# Writers end an archive by two blocks of zeros, and fill its last record, of 10 KiB or a power of
# two.  More zeros than that are a hole: a download that was cut off, or never came.
_RECORD, _LONGEST_RECORD = 20 * BLOCK, 1 << 20
_EXTENSIONS = frozenset({b"x", b"X", b"g", b"L", b"K"})  # kinds that describe the next member
_WITHOUT_DATA = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})  # links, devices, folders, pipes
_FILES = frozenset({b"0", b"\0", b"7"})  # ordinary ones
_SPARSE = b"GNU.sparse."  # the beginning of a sparse member's records


SAMPLE_LIMIT = 256 << 20  # bytes; 16 threads with one each still fit in memory
_CHARACTER = 4  # bytes of memory that one takes at most
_MOST_KEYS = 1 << 20  # of one shard that are remembered, to find a key that comes twice


_PACKED = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".tzst": "zstd"}
_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")


class Archive(NamedTuple):
    """An archive that is being read."""

    stream: BinaryIO  # of the unpacked bytes
    size: int | None  # bytes; None if the archive is compressed
    damage: tuple[type[Exception], ...]  # errors of the stream where the file is damaged


def name_of(path: str) -> str:
    """Return a path in lower case, a URL without query and fragment; its end is the file's."""
    return path.lower() if not is_url(path) else re.split("[?#]", path.lower())[0]


def compression_of(path: str) -> str:
    """Return ``""``, ``"gzip"`` or ``"zstd"``, by the name's ending."""
    return _PACKED.get(os.path.splitext(name_of(path))[1], "")  # noqa: PTH122  # of a URL, too


def check_archive(path: str) -> None:
    """Refuse a shard whose name has no ending of an archive."""
    if not name_of(path).endswith(_ENDINGS):
        msg = f"{shown_url(path)} is no shard: its name ends with none of {', '.join(_ENDINGS)}"
        raise ValueError(msg)


@contextmanager
def open_unpacked(file: File) -> Iterator[Archive]:
    """Open a file for one pass, and close it.

    Raises:
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
            module = zstd_module()
            # It refuses a frame whose window is over 128 MiB, so no frame takes more than that.
            with module.ZstdFile(raw) as reader:
                yield Archive(reader, None, (module.ZstdError, EOFError))


def zstd_module() -> Any:
    """Return `compression.zstd`; until Python 3.13 the same as a package.

    Raises:
        ModuleNotFoundError: There is none.
    """
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    if sys.version_info >= (3, 14):
        msg = "this Python was built without zstd, its own module compression.zstd"
        raise ModuleNotFoundError(msg, name="compression.zstd")
    msg = "zstd needs Python 3.14, or: pip install backports.zstd (extra: zstd)"
    raise ModuleNotFoundError(msg, name="backports.zstd")


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


class TarReader:
    """One pass over an archive's samples.

    Args:
        archive: Is read; the caller closes it.
        path: Of the archive, for errors.
        limit: Most bytes of a sample: the members whose data is read, and the headers of all.

    Threads:
        all: one thread.
    """

    def __init__(self, archive: Archive, path: str, limit: int) -> None:
        self._stream = archive.stream
        self._size = archive.size
        self._damage = archive.damage
        self._path = path
        self._limit = limit
        self._at = 0  # offset of the stream in the unpacked archive
        self._next = 0  # offset of the next header
        self._globals: dict[bytes, bytes] = {}

    def samples(self, wanted: Container[str] | None) -> Iterator[RawSample]:
        """Yield the samples.

        Args:
            wanted: Extensions of the members whose data is read; None for all.

        Raises:
            DataError: The archive is damaged, a sample is too large, or a key comes twice.
        """
        key: str | None = None
        members: dict[str, SampleMember] = {}
        keys: set[bytes] = set()  # digests: names may be long
        nbytes = 0
        for member in self._members():
            split = _split_name(member.name)
            if split is None:
                continue
            if split[0] != key:
                if key is not None:
                    yield RawSample(key, members)
                key, members, nbytes = split[0], {}, 0
                self._remember(key, keys, member)
            needed = wanted is None or split[1] in wanted
            # What Python may take for name and extension counts, too.
            nbytes += BLOCK + _CHARACTER * (len(member.name) + len(split[1]))
            nbytes += member.size if needed else 0
            self._check(member, members, split[1], nbytes)
            if needed:
                data = self._take(member.offset, member.size, member.name)
                member = member._replace(data=data)  # noqa: PLW2901  # the same one
            members[split[1]] = member
        if key is not None:
            yield RawSample(key, members)

    def _members(self) -> Iterator[SampleMember]:
        """Yield the ordinary files.  Links, folders and devices are skipped.

        Raises:
            DataError: The archive is damaged, or declares more than there is or is allowed.
        """
        while (header := self._header()) is not None:
            offset = self._next
            if self._size is not None and offset + header.size > self._size:
                msg = f"it has {header.size:,} bytes, and the archive ends at {self._size:,}"
                raise self._error(f"{msg}: truncated?", offset, header.name)
            self._next = offset + header.size + -header.size % BLOCK
            if header.type in _FILES:
                yield SampleMember(header.name, offset, header.size, None)

    def _remember(self, key: str, keys: set[bytes], member: SampleMember) -> None:
        digest = blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest()
        if digest in keys:
            told = shortened(key)
            msg = f"the key {told!r} was there before: members of a sample follow one another"
            raise self._error(msg, member.offset, member.name)
        if len(keys) < _MOST_KEYS:
            keys.add(digest)

    def _check(
        self, member: SampleMember, members: dict[str, SampleMember], extension: str, nbytes: int
    ) -> None:
        if extension in members:
            msg = f"its sample has {shortened(members[extension].name)!r} already"
            raise self._error(msg, member.offset, member.name)
        if nbytes > self._limit:
            msg = f"its sample has {nbytes:,} bytes up to here, and sample_limit={self._limit:,}"
            raise self._error(msg, member.offset, member.name)

    def _header(self) -> TarInfo | None:
        """Return the next member's header, extended by those before it; None at the end."""
        block = self._take(self._next, BLOCK, None)
        if not any(block):
            self._check_end(self._next)
            return None
        name, records, length = None, self._globals, 0
        while True:
            start = self._next
            header = self._parsed(block, start)
            self._next = start + BLOCK
            if header.type not in _EXTENSIONS:
                return self._extended(header, name, records, start)
            length += header.size + BLOCK
            if length > _LONGEST_EXTENSION:
                msg = f"its names and records fill {length:,} bytes"
                raise self._error(msg, start, header.name)
            data = self._take(self._next, header.size, header.name)
            self._next += header.size + -header.size % BLOCK
            if header.type == b"L":
                name = data.partition(b"\0")[0]
            elif header.type != b"K":  # "K" is the target of a link
                records = records | self._records(data, start)
                if header.type == b"g":
                    self._globals = records
            block = self._take(self._next, BLOCK, None)

    def _parsed(self, block: bytes, start: int) -> TarInfo:
        """Return the header in a block, not all of whose bytes are zero."""
        try:
            header = TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except HeaderError as error:
            raise self._error(f"it is no header, or a damaged one: {error}", start) from None
        if header.size < 0:
            raise self._error(f"a header's size is {header.size}", start, header.name)
        return header

    def _extended(
        self, header: TarInfo, name: bytes | None, records: dict[bytes, bytes], start: int
    ) -> TarInfo:
        """Return a header with the values that extended headers have for it."""
        if header.type == b"S" or _SPARSE in records:
            msg = "sparse members can't be read: write it with tar's option --no-sparse"
            raise self._error(msg, start, header.name)
        path, size = records.get(b"path", name), records.get(b"size")
        if path is not None:
            if not 0 < len(path) <= _LONGEST_NAME:
                msg = f"its name has {len(path):,} bytes, and not 1 to {_LONGEST_NAME:,}"
                raise self._error(msg, start, header.name)
            header.name = path.decode("utf-8", "surrogateescape")
        if size is not None:
            if not size.isdigit() or len(size) > 20:
                raise self._error(f"its size is {size[:40]!r}", start, header.name)
            header.size = int(size)
        if header.type in _WITHOUT_DATA:
            header.size = 0  # whatever it declares
        return header

    def _take(self, offset: int, nbytes: int, name: str | None) -> bytes:
        """Return ``nbytes`` bytes from ``offset`` on, which is not before the stream's place."""
        data = self._read(offset, nbytes, name)
        if len(data) == nbytes:
            return data
        what = "the two blocks of zeros that end an archive are missing"
        if name is not None:
            what = f"{nbytes:,} bytes were to be read, and it ends after {len(data):,}"
        raise self._error(f"{what}: truncated?", offset, name)

    def _read(self, offset: int, nbytes: int, name: str | None = None) -> bytes:
        """Return ``nbytes`` bytes from ``offset`` on, or what there is."""
        try:
            self._skip(offset - self._at)
            parts, missing = [], nbytes
            while missing and (part := self._stream.read(min(missing, PIECE))):
                parts.append(part)
                missing -= len(part)
        except self._damage as error:
            msg = f"it can't be unpacked: {error}"
            raise self._error(msg, self._at, name) from error
        self._at = offset + nbytes - missing
        return b"".join(parts)

    def _skip(self, nbytes: int) -> None:
        if nbytes > BLOCK and self._size is not None and self._stream.seekable():
            self._stream.seek(nbytes, 1)
            return
        while nbytes > 0:
            dropped = len(self._stream.read(min(nbytes, PIECE)))
            if not dropped:
                return
            nbytes -= dropped

    def _check_end(self, start: int) -> None:
        """Read the zeros from ``start`` on, and the checksum of a compressed archive.

        Raises:
            DataError: They are no end of an archive.
        """
        at = start + BLOCK
        while (block := self._read(at, BLOCK)) and not any(block):
            at += len(block)
            if at - start > _LONGEST_RECORD + 2 * BLOCK:
                break
        zeros = at - start
        if any(block):
            what = f"data follows the {zeros:,} bytes of zeros that end an archive"
        elif zeros <= _RECORD + 2 * BLOCK or _fill_a_record(zeros, at):
            return
        else:
            what = f"{zeros:,} bytes of zeros follow the last member"
        msg = f"{what}: a hole, or several archives in one file?"
        raise self._error(msg, at if any(block) else start)

    def _records(self, data: bytes, start: int) -> dict[bytes, bytes]:
        r"""Return the records of an extended header: ``path``, ``size``, one for all `_SPARSE`.

        Args:
            data: Of the form ``b"30 mtime=1350244992.023960108\n..."``.
            start: Where the header is, for errors.
        """
        records: dict[bytes, bytes] = {}
        at = 0
        while at < len(data) and (data[at] or not at):  # some writers pad with zeros
            space = data.find(b" ", at, at + 20)
            length = data[at:space] if space > at else b""
            end = at + int(length) if length.isdigit() else 0
            key, mark, value = data[space + 1 : end].partition(b"=")
            if not at < end <= len(data) or not mark or not value.endswith(b"\n"):
                raise self._error(f"damaged pax record {data[at : at + 40]!r}", start)
            if key in {b"path", b"size"}:  # no others are used
                records[key] = value[:-1]
            elif key.startswith(_SPARSE):  # one entry for all: there may be many
                records[_SPARSE] = b""
            at = end
        return records

    def _error(self, message: str, offset: int, name: str | None = None) -> DataError:
        return DataError(message, self._path, member=name, offset=offset)


def _fill_a_record(zeros: int, end: int) -> bool:
    """Whether zeros up to ``end`` may fill a record whose size is a power of two."""
    record: int = 1 << (zeros - 2 * BLOCK).bit_length()
    return record <= _LONGEST_RECORD and end % record == 0


def _split_name(name: str) -> tuple[str, str] | None:
    """Return a member's key, and its extension in lower case; None if one of them is missing."""
    folder, slash, file = name.rpartition("/")
    stem, dot, extension = file.partition(".")
    if not stem or not dot or _is_meta(name):
        return None
    return folder + slash + stem, extension.lower()


def _is_meta(name: str) -> bool:
    first = name.partition("/")[0]
    return len(first) >= 4 and first.startswith("__") and first.endswith("__")
