"""Checks of an image's headers, before Pillow or libtiff take memory for what they declare.

Pillow up to 12.2 reads each tag of TIFF and EXIF, wherever its values lie: a thousand tags with
values in the same MiB take a GiB.  libtiff takes memory for a whole tile, however small the picture
is.  Both are bounded here by the file's size and by ``max_pixels``.

Source: TIFF 6.0, sections 2 and 15; BigTIFF's design; PNG 1.2, section 3.2; JPEG, ITU-T T.81, B.1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_chunks", "check_exif", "check_segments", "check_tags", "check_tiff"]

_EXIF = b"Exif\0\0"  # how a block of tags begins in a JPEG, and at times elsewhere
# Bytes of a value, by its kind.
_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_WHOLE_NUMBERS = {3: "H", 4: "L", 16: "Q"}  # SHORT, LONG and BigTIFF's LONG8
_TILE = (322, 323)  # the tags TileWidth and TileLength

_MOST_TAGS = 0xFFFF  # the tag's number has 16 bits
_OVERLAP = 2  # tags that a byte may be in, on average; in proper files it is in one at most
# Numbers in a tag.  Python takes up to 40 bytes for each, and Pillow 300 for each strip or tile
# that they place.  So many tiles of 16 x 16 pixels, the smallest, have 67 million pixels.
_MOST_NUMBERS = 1 << 18
# Pillow takes 10 us and 200 bytes for an empty chunk.  libpng writes 8 KiB in each.
_MOST_CHUNKS = 1 << 16

# Pillow keeps each segment (up to 64 KiB), and joins the segments of EXIF one by one.
_MOST_SEGMENTS = 1 << 13
# Markers of a JPEG after which Pillow reads no length: RST0 to EOI, reserved ones, and 0, which is
# no marker.
_BARE = {0x00, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)}
_FILL = 0xFF
_START_OF_SCAN = 0xDA
_APP1 = 0xE1


class _Tag(NamedTuple):
    """A tag of a directory."""

    number: int
    kind: int
    values: int  # how many
    place: int  # of the first value in the file
    value: int  # the value itself, if there is only one and it is a whole number

    @property
    def size(self) -> int:
        """Bytes of the values; 0 for a kind that nobody reads."""
        return self.values * _UNITS.get(self.kind, 0)


def check_tags(data: bytes) -> None:
    """Check the first directory of tags, of a TIFF or of EXIF.

    Args:
        data: From the byte order on.  Pillow judges data that has no byte order or ends early.

    Raises:
        ValueError: Tags overlap, or hold too many numbers.
    """
    total = 0
    for tag in _tags(data):
        if tag.place + tag.size > len(data):
            continue  # damaged: nothing is read of it
        if tag.size > tag.values > _MOST_NUMBERS:
            raise ValueError(f"tag {tag.number} has {tag.values:,} numbers, made to fill memory")
        total += tag.size
        if total > _OVERLAP * len(data):
            raise ValueError("tags overlap, made to fill memory")


def check_tiff(data: bytes, max_pixels: int) -> None:
    """Check the directory of a TIFF, and the size of its tiles.

    Strips are never larger than the picture, whatever they declare: libtiff cuts them off.

    Args:
        data: The file's bytes.
        max_pixels: Most pixels (width times height) that a tile may have.

    Raises:
        ValueError: A tile has more, or its size is no number; or as `check_tags`.
    """
    check_tags(data)
    tile = dict.fromkeys(_TILE, 0)
    for tag in _tags(data):
        if tag.number in tile:
            # Pillow and libtiff read other kinds, and a tag that comes twice, differently.
            if tag.values != 1 or tag.kind not in _WHOLE_NUMBERS:
                raise ValueError("a tile's size is no whole number")
            tile[tag.number] = max(tile[tag.number], tag.value)
    width, height = tile.values()
    if width * height > max_pixels:
        msg = (
            f"tiles of {width:,} x {height:,} pixels are more than max_pixels={max_pixels:,}: "
            "a decompression bomb, or raise the limit"
        )
        raise ValueError(msg)


def _tags(data: bytes) -> Iterator[_Tag]:
    """Yield the tags of the first directory.

    Raises:
        ValueError: The file is a BigTIFF with the high bytes first, which Pillow reads as if it was
            not; or it has too many tags.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return
    if data[:4] == b"MM\0\x2b":
        raise ValueError("BigTIFF with the high bytes first can't be read")
    big = data[2:3] == b"\x2b"
    number, word = ("Q", "Q") if big else ("H", "L")
    entry, last = struct.Struct(f"{order}HH{word}"), struct.Struct(order + word)
    step = entry.size + last.size
    try:
        (at,) = last.unpack_from(data, last.size)
        (count,) = struct.unpack_from(order + number, data, at)
        at += struct.calcsize(order + number)
        if count > _MOST_TAGS:
            raise ValueError(f"{count:,} tags, made to keep a decoder busy")
        for start in range(at, at + step * count, step):
            tag_number, kind, values = entry.unpack_from(data, start)
            tag = _Tag(tag_number, kind, values, start + entry.size, 0)
            (value,) = last.unpack_from(data, tag.place)
            if tag.size > last.size:
                tag = tag._replace(place=value)
            elif tag.kind in _WHOLE_NUMBERS:
                form = order + _WHOLE_NUMBERS[tag.kind]
                tag = tag._replace(value=struct.unpack_from(form, data, tag.place)[0])
            yield tag
    except struct.error:  # it ends early
        return


def check_segments(data: bytes) -> None:
    """Check the segments of a JPEG up to its pixels, and the EXIF that Pillow joins from them.

    Raises:
        ValueError: There are too many segments; or as `check_exif`.
    """
    exif: list[bytes] = []
    at = data.find(b"\xff", 2)
    for _ in range(_MOST_SEGMENTS):
        marker = data[at + 1] if 0 <= at < len(data) - 3 else _START_OF_SCAN
        if marker == _START_OF_SCAN:
            check_exif(b"".join(exif))
            return
        end = at + 2
        if marker == _FILL:
            end = at + 1
        elif marker not in _BARE:
            end += max(2, int.from_bytes(data[end : end + 2], "big"))
        if marker == _APP1 and data.startswith(_EXIF, at + 4):
            exif.append(data[at + 4 + len(_EXIF) : end])
        at = data.find(b"\xff", end)
    raise ValueError(f"more than {_MOST_SEGMENTS:,} segments in one JPEG, made to fill memory")


def check_exif(data: bytes) -> None:
    """Check EXIF as Pillow finds it, in a file of any format.

    Raises:
        ValueError: Tags overlap, or hold too many numbers.
    """
    while data.startswith(_EXIF):
        data = data[len(_EXIF) :]
    check_tags(data)


def check_chunks(data: bytes) -> None:
    """Check the number of chunks in a PNG.

    Raises:
        ValueError: There are so many that they keep a decoder busy.
    """
    at = 8  # behind the signature
    for _ in range(_MOST_CHUNKS):
        if at >= len(data):
            return
        at += 12 + int.from_bytes(data[at : at + 4], "big")  # its length, name and check sum
    raise ValueError(f"more than {_MOST_CHUNKS:,} chunks in one PNG, made to keep a decoder busy")
