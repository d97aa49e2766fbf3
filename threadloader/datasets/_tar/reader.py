"""Members of a tar archive in order, read from a stream that may lie about everything.

Nothing is written to a file system, so names are only names.  An archive can do harm only by what
it declares: a size, a long name, a header of extended records.  Each is checked before memory is
taken for it.

This module reads ustar, pax and GNU's long names.  The standard library's tarfile reads them too,
but it takes memory for whatever a header declares, and takes an archive that is cut off at a header
for one that ends there.

Source: pax in POSIX.1-2017 ("ustar Interchange Format", "pax Header Block"), and "Basic Tar
Format" in GNU tar's manual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader.datasets._tar.archive import Archive

__all__ = ["BLOCK", "AfterEnd", "Member", "TarReader", "check_after_end"]

T = TypeVar("T")
AfterEnd = Literal["raise", "read"]  # what becomes of data behind the zeros that end an archive

BLOCK = 512  # bytes; a header fills one, and data is padded to whole blocks
PIECE = 1 << 20  # bytes that are read at once, as a declared size may be wrong
# Bytes of a name in a header of its own: twice Linux's PATH_MAX, which bounds the names that a
# program can open.  The formats have no limit.
_LONGEST_NAME = 8192
# Bytes of all such headers of one member: their records may be extended attributes, and Linux
# allows 64 KiB for each (XATTR_SIZE_MAX).
_LONGEST_EXTENSION = 1 << 20
_MOST_IN_A_ROW = 100_000  # members that are no files
# Writers end an archive by two blocks of zeros, and fill its last record, of 10 KiB or a power of
# two.  More zeros than that are a hole: a download that was cut off, or never came.
_RECORD, _LONGEST_RECORD = 20 * BLOCK, 1 << 20
_EXTENSIONS = frozenset({b"x", b"X", b"g", b"L", b"K"})  # kinds that describe the next member
_WITHOUT_DATA = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})  # links, devices, folders, pipes
_FILES = frozenset({b"0", b"\0", b"7"})  # ordinary ones
_SPARSE = b"GNU.sparse."  # the beginning of a sparse member's records


class _Header(NamedTuple):
    """The description of a member in one block."""

    name: str
    size: int  # bytes of data after the block
    kind: bytes  # one byte, `typeflag`


class Member(NamedTuple):
    """An ordinary file in an archive."""

    name: str
    size: int  # bytes
    offset: int  # of its data in the archive, unpacked


class TarReader:
    """One pass over an archive's ordinary files.

    Args:
        archive: Is read; the caller closes it.
        path: Of the archive, for errors.
        limit: Most bytes of a member whose data is read.
        after_end: What lies behind the zeros that end an archive is an error (``"raise"``), or
            another archive (``"read"``).

    Threads:
        all: one thread.
    """

    def __init__(
        self, archive: Archive, path: str, limit: int, after_end: AfterEnd = "raise"
    ) -> None:
        self._stream = archive.stream
        self._size = archive.size
        self._damage = archive.damage
        self._path = path
        self._limit = limit
        self._at = 0  # offset of the stream in the unpacked archive
        self._next = 0  # offset of the next header
        self._globals: dict[bytes, bytes] = {}
        self._reads_on = after_end == "read"
        self.archives = 1  # that were found so far, one after the other

    def members(self) -> Iterator[Member]:
        """Yield the files; `read` returns the data of the one that was yielded last.

        Links, folders and devices are skipped.

        Raises:
            DataError: The archive is damaged, or declares more than there is or is allowed.
        """
        others = 0
        while (header := self._header()) is not None:
            offset = self._next
            self._check_size(header, offset)
            self._next = offset + header.size + -header.size % BLOCK
            if header.kind in _FILES:
                others = 0
                yield Member(header.name, header.size, offset)
            elif (others := others + 1) > _MOST_IN_A_ROW:
                msg = f"{others:,} members in a row are no files"
                raise self._error(msg, offset, header.name)

    def read(self, member: Member) -> bytes:
        """Return the data of the member that was yielded last, once."""
        if member.size > self._limit:
            msg = f"it has {member.size:,} bytes, and sample_limit={self._limit:,}"
            raise self._error(msg, member.offset, member.name)
        return self._take(member.offset, member.size, member.name)

    def _header(self) -> _Header | None:
        """Return the next member's header, extended by those before it; None at the end."""
        if not (block := self._first_block()):
            return None
        name, records, length = None, self._globals, 0
        while True:
            start = self._next
            header = self._parsed(_parse_header, block, start)
            self._next = start + BLOCK
            if header.kind not in _EXTENSIONS:
                return self._extended(header, name, records, start)
            length += header.size + BLOCK
            if length > _LONGEST_EXTENSION:
                msg = f"its names and records fill {length:,} bytes"
                raise self._error(msg, start, header.name)
            data = self._take(self._next, header.size, header.name)
            self._next += header.size + -header.size % BLOCK
            if header.kind == b"L":
                name = data.partition(b"\0")[0]
            elif header.kind != b"K":  # "K" is the target of a link
                records = records | self._parsed(_parse_pax, data, start)
                if header.kind == b"g":
                    self._globals = records
            block = self._take(self._next, BLOCK, None)

    def _first_block(self) -> bytes:
        """Return the block in which the next member's headers begin; no bytes at the end."""
        block = self._take(self._next, BLOCK, None)
        return block if any(block) else self._behind_zeros(self._next)

    def _extended(
        self, header: _Header, name: bytes | None, records: dict[bytes, bytes], start: int
    ) -> _Header:
        """Return a header with the values that extended headers have for it."""
        if header.kind in _WITHOUT_DATA:
            header = header._replace(size=0)  # whatever it declares
        if header.kind == b"S" or _SPARSE in records:
            msg = "sparse members can't be read: write it with tar's option --no-sparse"
            raise self._error(msg, start, header.name)
        if not records and name is None:
            return header
        path = records.get(b"path", name)
        if path is not None:
            if not 0 < len(path) <= _LONGEST_NAME:
                msg = f"its name has {len(path):,} bytes, and not 1 to {_LONGEST_NAME:,}"
                raise self._error(msg, start, header.name)
            header = header._replace(name=path.decode("utf-8", "surrogateescape"))
        size = records.get(b"size")
        if size is not None and header.kind not in _WITHOUT_DATA:
            if not size.isdigit() or len(size) > 20:
                raise self._error(f"its size is {size[:40]!r}", start, header.name)
            header = header._replace(size=int(size))
        return header

    def _check_size(self, header: _Header, offset: int) -> None:
        size = header.size
        if self._size is not None and offset + size > self._size:
            msg = f"it has {size:,} bytes, and the archive ends at {self._size:,}: truncated?"
            raise self._error(msg, offset, header.name)

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

    def _behind_zeros(self, start: int) -> bytes:
        """Read the zeros from ``start`` on, and the checksum of a compressed archive.

        Returns:
            The first header of another archive behind them; no bytes at the end.
        """
        at = start + BLOCK
        while (block := self._read(at, BLOCK)) and not any(block):
            at += len(block)
            if not self._reads_on and at - start > _LONGEST_RECORD + 2 * BLOCK:
                break
        if self._reads_on and len(block) in (0, BLOCK):
            self._next, self._globals = at, {}
            self.archives += bool(block)
            return block
        zeros = at - start
        if any(block):
            what = f"data follows the {zeros:,} bytes of zeros that end an archive"
        elif zeros <= _RECORD + 2 * BLOCK or _fill_a_record(zeros, at):
            return b""
        else:
            what = f"{zeros:,} bytes of zeros follow the last member"
        msg = f"{what}: a hole? (after_end='read' reads on, as tar's option --ignore-zeros does)"
        raise self._error(msg, at if any(block) else start)

    def _parsed(self, parse: Callable[[bytes], T], data: bytes, start: int) -> T:
        try:
            return parse(data)
        except ValueError as error:
            raise self._error(str(error), start) from None

    def _error(self, message: str, offset: int, name: str | None = None) -> DataError:
        return DataError(message, self._path, member=name, offset=offset)


def _fill_a_record(zeros: int, end: int) -> bool:
    """Whether zeros up to ``end`` may fill a record whose size is a power of two."""
    record: int = 1 << (zeros - 2 * BLOCK).bit_length()
    return record <= _LONGEST_RECORD and end % record == 0


def check_after_end(after_end: str) -> None:
    """Refuse a value that `TarReader` does not know.

    Raises:
        ValueError: It is no `AfterEnd`.
    """
    if after_end not in get_args(AfterEnd):
        msg = f"after_end={after_end!r} is neither 'raise' nor 'read'"
        raise ValueError(msg)


def _parse_header(block: bytes) -> _Header:
    """Return the header in a block.

    Args:
        block: `BLOCK` bytes, not all of them zero.

    Raises:
        ValueError: The block is no header, or a damaged one.
    """
    told, total = _number(block[148:156], "checksum"), sum(block[:148] + block[156:]) + 8 * ord(" ")
    if told != total:
        msg = f"wrong checksum of a header: it says {told}, its bytes add up to {total}"
        raise ValueError(msg)
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = f"{_text(block[345:500])}/{name}"  # in GNU's format there are times instead
    return _Header(name, _number(block[124:136], "size"), block[156:157])


def _parse_pax(data: bytes) -> dict[bytes, bytes]:
    r"""Return the records of an extended header: ``path``, ``size``, one `_SPARSE` for all such.

    Args:
        data: Of the form ``b"30 mtime=1350244992.023960108\n..."``.

    Raises:
        ValueError: The data has another form.
    """
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and (data[at] or not at):  # some writers pad with zeros
        space = data.find(b" ", at, at + 20)
        length = data[at:space] if space > at else b""
        end = at + int(length) if length.isdigit() else 0
        record = data[space + 1 : end]
        key, mark, value = record.partition(b"=")
        if not at < end <= len(data) or not mark or not value.endswith(b"\n"):
            msg = f"damaged pax record {data[at : at + 40]!r}"
            raise ValueError(msg)
        if key in {b"path", b"size"}:  # no others are used
            records[key] = value[:-1]
        elif key.startswith(_SPARSE):  # one entry for all: there may be many
            records[_SPARSE] = b""
        at = end
    return records


def _number(field: bytes, name: str) -> int:
    """Return a number: octal digits, or, after a byte 0x80, 8 bits a byte."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.isdigit() and not digits.strip(b"01234567"):
        return int(digits, 8)
    if not digits and field[0] < 0x80:
        return 0
    msg = f"a header's {name} is {field!r}, which is no number of bytes"
    raise ValueError(msg)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")
