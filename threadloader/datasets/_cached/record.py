"""Records: samples as bytes that say themselves whether they are whole, and whose they are.

    32 bytes of header | JSON that describes the sample | the bytes of its arrays, each at 16

No record is trusted: one that was half written, belongs to another index, or describes more than it
has, is none.  Nothing is pickled, and NumPy and Pillow see only what was checked.  So a folder of
another user's can do no more than give wrong numbers.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import zlib
from typing import Any

import numpy as np

from threadloader import _torch

__all__ = ["ALIGNED", "packed", "unpacked"]

ALIGNED = 16  # bytes: where arrays begin in a record, and records in a file
_HEADER = struct.Struct("<4sIQQQ")  # magic, checksum of all after it, index, bytes, bytes of JSON
_CHECKED = 8  # bytes before what the checksum is of
_MAGIC = b"tls1"
_PLAIN = (bool, int, float, str, type(None))
_KINDS = "biufcSUmM"  # of dtypes
# Of Pillow's modes, those that are their pixels and nothing else (`P` has a palette).
_MODES = {"1": 1, "L": 8, "LA": 16, "I": 32, "F": 32, "RGB": 24, "RGBA": 32, "CMYK": 32}
_MODES |= {"YCbCr": 24, "HSV": 24, "LAB": 24, "I;16": 16}  # bits of a pixel
_LONGEST_SIDE = 1 << 16  # of an image of fewer bytes
_DTYPE = re.compile(rf"[<>|][{_KINDS}]\d{{1,9}}(\[([1-9]\d*)?[a-zA-Z]+\])?")


class _Parts:
    """The bytes of a sample's arrays, one after the other."""

    __slots__ = ("data", "nbytes")

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.nbytes = 0

    def add(self, data: bytes) -> int:
        """Add bytes, and their padding; return where they begin."""
        start, size = self.nbytes, _aligned(len(data))
        self.data += [data, bytes(size - len(data))]
        self.nbytes += size
        return start


def packed(index: int, sample: Any) -> bytes:
    """Return the record of a sample.

    Args:
        index: Of the sample.
        sample: Numbers, strings, bytes, None, arrays, tensors and images of Pillow's, alone or in
            tuples, lists and dicts.

    Raises:
        TypeError: The sample has something else in it; the message says where.
    """
    parts = _Parts()
    head = json.dumps(_described(sample, "the sample", parts)).encode()
    start = _aligned(_HEADER.size + len(head))
    length = start + parts.nbytes
    header = _HEADER.pack(_MAGIC, 0, index, length, len(head))
    body = b"".join([header[_CHECKED:], head, bytes(start - _HEADER.size - len(head)), *parts.data])
    return _HEADER.pack(_MAGIC, zlib.crc32(body), index, length, len(head))[:_CHECKED] + body


def unpacked(index: int, record: bytes) -> Any:
    """Return a sample, whose arrays may be written; they share memory of their own.

    Raises:
        ValueError: The bytes are no whole record of this index.
    """
    data = memoryview(bytearray(record))
    if len(data) < _HEADER.size:
        raise ValueError("too short")
    magic, checksum, own_index, length, described = _HEADER.unpack_from(data)
    if (magic, own_index, length) != (_MAGIC, index, len(data)):
        raise ValueError("no record of this sample")
    if zlib.crc32(data[_CHECKED:]) != checksum:
        raise ValueError("the checksum differs")
    try:
        head = json.loads(bytes(data[_HEADER.size : _HEADER.size + described]))
        return _made(head, data[_aligned(_HEADER.size + described) :])
    except (TypeError, KeyError, OverflowError, RecursionError, RuntimeError) as error:
        raise ValueError("it describes no sample") from error


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


def _described(value: Any, place: str, parts: _Parts) -> Any:
    """Return what JSON can say of a value; add the bytes of its arrays to ``parts``."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        name = "tuple" if kind is tuple else "list"
        entries = (_described(part, f"{place}[{at}]", parts) for at, part in enumerate(value))
        return [name, *entries]
    if kind is dict:
        pairs = (
            (_described(key, f"a key of {place}", parts), _described(part, _at(place, key), parts))
            for key, part in value.items()
        )
        return ["dict", *pairs]
    described = _described_bytes(value, parts)
    if described is None:
        msg = (
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which can't be kept in a cache: "
            "numbers, strings, bytes, None, arrays, dense tensors on the CPU and Pillow's images "
            f"(of modes {', '.join(sorted(_MODES))}) can, in tuples, lists and dicts"
        )
        raise TypeError(msg)
    return described


def _at(place: str, key: object) -> str:
    return f"{place}[{key!r}]"


def _described_bytes(value: Any, parts: _Parts) -> Any:
    """Return what describes a value that is an array of bytes; None if it is none."""
    kind = type(value)
    if kind is bytes:
        return ["bytes", len(value), parts.add(value)]
    if kind is np.ndarray:
        return _array("array", value, parts)
    if isinstance(value, np.generic):
        return _array("scalar", np.asarray(value), parts)
    if kind is _torch.Tensor:
        array = _torch.array_of(value)
        return None if array is None else _array("tensor", array, parts)
    if kind.__module__.startswith("PIL.") and getattr(value, "mode", None) in _MODES:
        data = value.tobytes()
        return ["image", value.mode, list(value.size), len(data), parts.add(data)]
    return None


def _array(name: str, array: np.ndarray[Any, Any], parts: _Parts) -> Any:
    if array.dtype.kind not in _KINDS:
        return None
    return [name, array.dtype.str, list(array.shape), parts.add(array.tobytes())]


def _made(head: Any, data: memoryview) -> Any:
    """Return the value that was described; nothing of the description is trusted."""
    if type(head) in _PLAIN:
        return head
    name, *values = head
    if name in {"tuple", "list"}:
        made = (_made(value, data) for value in values)
        return tuple(made) if name == "tuple" else list(made)
    if name == "dict":
        return {_made(key, data): _made(value, data) for key, value in values}
    if name == "bytes":
        length, start = values
        return bytes(_span(data, start, length))
    if name == "image":
        return _image(values, data)
    return _array_made(name, values, data)


def _array_made(name: str, described: list[Any], data: memoryview) -> Any:
    text, shape, start = described
    dtype = np.dtype(_checked(text, _DTYPE.fullmatch(text)))
    nbytes = math.prod(_count(length) for length in shape) * dtype.itemsize
    if name not in {"array", "scalar", "tensor"} or not dtype.itemsize:
        raise ValueError("no kind of an array")
    span = _span(data, start, nbytes)
    if dtype.kind == "U":  # no character has a larger number
        _checked(text, (np.frombuffer(span, f"{dtype.byteorder}u4") <= sys.maxunicode).all())
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, span)
    if name == "scalar":
        return array[_checked((), not shape)]
    return _torch.tensor_of(array) if name == "tensor" else array


def _image(described: list[Any], data: memoryview) -> Any:
    from threadloader.datasets._images.pillow import image_of  # noqa: PLC0415  # needs Pillow

    mode, (width, height), length, start = described
    counted = -(-_count(width) * _MODES[mode] // 8) * _count(height)
    # Pillow takes memory for each row, also of no pixels.
    if length != counted or max(width, height) > max(length, _LONGEST_SIDE):
        raise ValueError("no size of an image")
    return image_of(mode, (width, height), bytes(_span(data, start, length)))


def _span(data: memoryview, start: Any, nbytes: int) -> memoryview:
    """Return bytes of a record, all of which are there."""
    stop = _count(start) + _count(nbytes)
    return data[start : _checked(stop, stop <= len(data) and not start % ALIGNED)]


def _count(number: Any) -> int:
    return int(_checked(number, type(number) is int and number >= 0))


def _checked(value: Any, holds: object) -> Any:
    if not holds:
        msg = f"{value!r:.40} can't be in a record"
        raise ValueError(msg)
    return value
