"""Images whose headers are made to fill memory, or to keep a decoder busy."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("PIL")

from photographs import encoded, photograph
from PIL import features

from threadloader.datasets._images.decode import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE = 16
PIXELS = photograph(SIDE, SIDE)
SHORT, LONG, RATIONAL, UNDEFINED, SIGNED_LONG8 = 3, 4, 5, 7, 17
Tag = tuple[int, int, int, int]  # number, kind, count, value or place

GREY: list[Tag] = [
    (256, SHORT, 1, SIDE),
    (257, SHORT, 1, SIDE),
    (258, SHORT, 1, 8),
    (262, SHORT, 1, 1),
    (277, SHORT, 1, 1),
]


def tags(entries: list[Tag], body: bytes = b"", order: str = "<", *, big: bool = False) -> bytes:
    """Return a directory of tags, as a TIFF and EXIF have it, and what follows."""
    name = b"II" if order == "<" else b"MM"
    word = "Q" if big else "L"
    head = struct.pack(order + ("HHHQ" if big else "HL"), *((43, 8, 0, 16) if big else (42, 8)))
    head += struct.pack(order + ("Q" if big else "H"), len(entries))
    for number, kind, count, value in entries:
        short = kind == SHORT and count == 1
        packed = struct.pack(order + ("H" if short else word), value)
        head += struct.pack(f"{order}HH{word}", number, kind, count)
        head += packed.ljust(8 if big else 4, b"\0")
    return name + head + bytes(8 if big else 4) + body


def grey_tiff(
    tile: list[Tag], data: bytes, order: str = "<", *, big: bool = False, deflate: bool = True
) -> bytes:
    """Return a TIFF of one tile."""
    entries = sorted([*GREY, (259, SHORT, 1, 8 if deflate else 1)])
    count = len(entries) + len(tile) + 2
    start = (16 + 8 + 20 * count + 8) if big else (8 + 2 + 12 * count + 4)
    entries += [*tile, (324, LONG, 1, start), (325, LONG, 1, len(data))]
    return tags(entries, data, order, big=big)


def overlapping(count: int = 500, nbytes: int = 1_000_000) -> bytes:
    """Return tags all of which are in the same place."""
    start = 8 + 2 + 12 * count + 4
    return tags([(20_000 + n, UNDEFINED, nbytes, start) for n in range(count)], bytes(nbytes))


def chunk(name: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big")


def png_with(chunks: bytes, *, behind: bool = False) -> bytes:
    data = encoded(PIXELS, "PNG")
    at = len(data) - 12 if behind else 33
    return data[:at] + chunks + data[at:]


def jpeg_with(segments: bytes) -> bytes:
    data = encoded(PIXELS)
    end = 4 + int.from_bytes(data[4:6], "big")  # JFIF's has the resolution, or Pillow asks EXIF
    return data[:2] + segments + data[end:]


def segments(exif: bytes) -> bytes:
    parts = (exif[at : at + 65_000] for at in range(0, len(exif), 65_000))
    whole = (b"Exif\0\0" + part for part in parts)
    return b"".join(b"\xff\xe1" + (len(part) + 2).to_bytes(2, "big") + part for part in whole)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """What Python takes meanwhile is a small multiple of the files."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


needs_libtiff = pytest.mark.skipif(not features.check("libtiff"), reason="Pillow without libtiff")


@needs_libtiff
@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
@pytest.mark.parametrize("kind", [SHORT, LONG])
def test_a_tile_may_have_as_many_pixels_as_a_picture(order: str, big: bool, kind: int) -> None:
    data = zlib.compress(bytes([7]) * (32 * 48))
    tile = [(322, kind, 1, 32), (323, kind, 1, 48)]
    tiff = grey_tiff(tile, data, order, big=big)
    assert np.array_equal(decode(tiff, max_pixels=32 * 48), np.full((SIDE, SIDE, 3), 7))
    with pytest.raises(ValueError, match="tiles of 32 x 48 pixels are more than max_pixels=1,535"):
        decode(tiff, max_pixels=32 * 48 - 1)


@needs_libtiff
@pytest.mark.parametrize(
    "tile",
    [
        [(322, LONG, 1, 24_000), (322, LONG, 1, 16), (323, LONG, 1, 24_000)],
        [(322, LONG, 1, 16), (322, LONG, 1, 24_000), (323, LONG, 1, 24_000)],
        [(322, SIGNED_LONG8, 1, 24_000), (323, SIGNED_LONG8, 1, 24_000)],
        [(322, RATIONAL, 1, 0), (323, LONG, 1, 16)],
        [(322, LONG, 2, 0), (323, LONG, 1, 16)],
    ],
    ids=["twice", "twice too", "kind", "rational", "several"],
)
def test_a_tile_s_size_that_readers_take_differently_is_an_error(tile: list[Tag]) -> None:
    with pytest.raises(ValueError, match=r"tiles of 24,000 x 24,000|a tile's size is no whole"):
        decode(grey_tiff(tile, zlib.compress(bytes(1 << 20))), max_pixels=1000)


def test_bigtiff_that_pillow_reads_as_something_else_is_an_error() -> None:
    tile = [(322, LONG, 1, 16), (323, LONG, 1, 16)]
    with pytest.raises(ValueError, match="BigTIFF with the high bytes first"):
        decode(grey_tiff(tile, zlib.compress(bytes(256)), ">", big=True))


@pytest.mark.parametrize(
    "data",
    [
        overlapping(),
        jpeg_with(segments(overlapping())),
        png_with(chunk(b"eXIf", overlapping())),
        png_with(chunk(b"eXIf", overlapping()), behind=True),
        png_with(
            chunk(
                b"zTXt",
                b"Raw profile type exif\0\0"
                + zlib.compress(b"\nexif\n1\n" + overlapping(500, 300_000).hex().encode()),
            )
        ),
    ],
    ids=["tiff", "jpeg", "png", "png behind", "png text"],
)
@pytest.mark.usefixtures("little_memory")
def test_tags_that_lie_in_the_same_place_take_no_memory(data: bytes) -> None:
    with pytest.raises(ValueError, match="tags overlap, made to fill memory"):
        decode(data)


@pytest.mark.skipif(not features.check("webp"), reason="Pillow without WebP")
@pytest.mark.usefixtures("little_memory")
def test_tags_in_a_webp_take_no_memory_either() -> None:
    data = encoded(PIXELS, "WEBP", exif=b"Exif\0\0" + overlapping())
    with pytest.raises(ValueError, match="tags overlap, made to fill memory"):
        decode(data)


@pytest.mark.filterwarnings("ignore:.*[Cc]orrupt EXIF data", "ignore:Tag data larger")  # Pillow's
def test_a_damaged_tag_is_no_overlap() -> None:
    exif = tags([(20_000, UNDEFINED, 1 << 31, 20), (20_001, 99, 1 << 31, 20)])
    assert np.array_equal(decode(png_with(chunk(b"eXIf", exif))), PIXELS)


def test_strips_without_end_are_an_error() -> None:
    count = (1 << 18) + 1
    start = 8 + 2 + 12 * 8 + 4
    entries = [*GREY, (259, SHORT, 1, 1), (273, SHORT, count, start), (279, SHORT, count, start)]
    with pytest.raises(ValueError, match="tag 273 has 262,145 numbers"):
        decode(tags(entries, bytes(2 * count)))


def test_more_tags_than_there_are_numbers_are_an_error() -> None:
    data = b"II\x2b\0\x08\0\0\0" + struct.pack("<QQ", 16, 0x10000) + bytes(20 * 0x10000)
    with pytest.raises(ValueError, match="65,536 tags"):
        decode(data)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("behind", [False, True])
def test_chunks_of_a_png_without_end_are_an_error(behind: bool) -> None:
    some, many = (count * chunk(b"prVt", b"") for count in (1000, 1 << 16))
    assert np.array_equal(decode(png_with(some, behind=behind)), PIXELS)
    with pytest.raises(ValueError, match="more than 65,536 chunks in one PNG"):
        decode(png_with(many, behind=behind))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("segment", [b"\xff\xfe\0\2", b"\xff\xe1\0\x08Exif\0\0", b"\xff"])
def test_segments_of_a_jpeg_without_end_are_an_error(segment: bytes) -> None:
    assert decode(jpeg_with(1000 * segment)).shape == PIXELS.shape
    with pytest.raises(ValueError, match="more than 8,192 segments in one JPEG"):
        decode(jpeg_with(8192 * segment))
