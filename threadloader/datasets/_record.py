"""Records: samples as bytes that say themselves whether they are whole, and whose they are.

    magic, checksum of all after it | index, bytes of JSON | JSON that describes the sample | arrays

The bytes of its arrays follow one another.  No record is trusted: one that was half written,
belongs to another index, or describes more than it has, is none.  Nothing is pickled, and NumPy and
Pillow see only what was checked.  So a folder of another user's can do no more than give wrong
numbers.
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

_HEAD = struct.Struct("<4sI")  # magic, checksum of all after it
_BODY = struct.Struct("<QQ")  # index, bytes of JSON
_MAGIC = b"tls3"
_PLAIN = (bool, int, float, str, type(None))
_KINDS = "biufcSUmM"  # of dtypes
_DTYPE = re.compile(rf"[<>|][{_KINDS}][1-9]\d{{0,8}}(\[([1-9]\d*)?[a-zA-Z]+\])?")
# Of Pillow's modes, those that are their pixels and nothing else (`P` has a palette).
_MODES = {"1": 1, "L": 8, "LA": 16, "I": 32, "F": 32, "RGB": 24, "RGBA": 32, "CMYK": 32}
_MODES |= {"YCbCr": 24, "HSV": 24, "LAB": 24, "I;16": 16}  # bits of a pixel


def packed(index: int, sample: Any) -> bytes:
    """Return the record of a sample.

    Args:
        index: Of the sample.
        sample: Numbers, strings, bytes, None, arrays, tensors and images of Pillow's, alone or in
            tuples, lists and dicts.

    Raises:
        TypeError: The sample has something else in it; the message says where.
    """
    parts: list[bytes] = []
    described = json.dumps(_described(sample, "the sample", parts)).encode()
    body = b"".join([_BODY.pack(index, len(described)), described, *parts])
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def unpacked(index: int, record: bytes) -> Any:
    """Return a sample, whose arrays may be written.

    Raises:
        ValueError: The bytes are no whole record of this index.
    """
    body = memoryview(record)[_HEAD.size :]
    if len(body) < _BODY.size or _HEAD.unpack_from(record) != (_MAGIC, zlib.crc32(body)):
        raise ValueError("no record, or a damaged one")
    own_index, length = _BODY.unpack_from(body)
    if own_index != index:
        raise ValueError("no record of this sample")
    start = _BODY.size + length
    try:
        return _made(json.loads(bytes(body[_BODY.size : start])), _Bytes(body[start:]))
    except (TypeError, KeyError, OverflowError, RecursionError, RuntimeError) as error:
        raise ValueError("it describes no sample") from error


class _Bytes:
    """The bytes of a sample's arrays, which are taken one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def take(self, nbytes: int) -> bytearray:
        if not 0 <= nbytes <= len(self._left):
            raise ValueError("it describes more than it has")
        taken, self._left = bytearray(self._left[:nbytes]), self._left[nbytes:]
        return taken


def _described(value: Any, place: str, parts: list[bytes]) -> Any:
    """Return what JSON can say of a value; add the bytes of its arrays to ``parts``."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        entries = [_described(part, f"{place}[{at}]", parts) for at, part in enumerate(value)]
        return [kind.__name__, *entries]
    if kind is dict:
        keys = [_described(key, f"a key of {place}", parts) for key in value]
        values = [_described(part, f"{place}[{key!r}]", parts) for key, part in value.items()]
        return ["dict", keys, values]
    described = _described_bytes(value, parts)
    if described is None:
        msg = (
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which can't be kept in a cache: "
            "numbers, strings, bytes, None, arrays, dense tensors on the CPU and Pillow's images "
            f"(of modes {', '.join(sorted(_MODES))}) can, in tuples, lists and dicts"
        )
        raise TypeError(msg)
    return described


def _described_bytes(value: Any, parts: list[bytes]) -> Any:
    """Return what describes a value that is an array of bytes; None if it is none."""
    kind = type(value)
    if kind is bytes:
        parts.append(value)
        return ["bytes", len(value)]
    if kind.__module__.startswith("PIL.") and getattr(value, "mode", None) in _MODES:
        parts.append(value.tobytes())
        return ["image", value.mode, *value.size]
    name, array = "array", value if kind is np.ndarray else None
    if isinstance(value, np.generic):
        name, array = "scalar", np.asarray(value)
    elif kind is _torch.Tensor:
        name, array = "tensor", _torch.array_of(value)
    if array is None or array.dtype.kind not in _KINDS:
        return None
    parts.append(array.tobytes())
    return [name, array.dtype.str, *array.shape]


def _made(described: Any, data: _Bytes) -> Any:
    """Return the value that was described; nothing of the description is trusted."""
    if type(described) in _PLAIN:
        return described
    name, *values = described
    if name in {"tuple", "list"}:
        made = [_made(value, data) for value in values]
        return tuple(made) if name == "tuple" else made
    if name == "dict":
        keys, parts = ([_made(each, data) for each in some] for some in values)
        return dict(zip(keys, parts, strict=True))
    if name == "bytes":
        return bytes(data.take(*values))
    if name == "image":
        return _image(data, *values)
    array = _array(data, *values)
    if name == "tensor":
        return _torch.tensor_of(array)
    return {"array": array, "scalar": array[()]}[name]


def _array(data: _Bytes, text: str, *shape: int) -> np.ndarray[Any, Any]:
    if not _DTYPE.fullmatch(text):
        raise ValueError("no dtype that was described here")
    dtype = np.dtype(text)
    found = data.take(math.prod(shape) * dtype.itemsize)
    # NumPy crashes at a character with a larger number.
    if dtype.kind == "U" and (np.frombuffer(found, f"{text[0]}u4") > sys.maxunicode).any():
        raise ValueError("no characters")
    return np.ndarray(shape, dtype, found)


def _image(data: _Bytes, mode: str, width: int, height: int) -> Any:
    from threadloader.datasets._images.decode import image_of  # noqa: PLC0415  # needs Pillow

    nbytes = -(-width * _MODES[mode] // 8) * height
    if not nbytes:  # Pillow takes memory for each row, also of no pixels
        raise ValueError("an image of no pixels")
    return image_of(mode, (width, height), bytes(data.take(nbytes)))
