"""Decoders of a sample's members, by extension.

Members that can run code are decoded only by a function of the user's: pickles, and files of
`torch.save`, stay bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["DECODERS", "decoders", "member_decoder"]

_UNPACKED_IN_PIECES = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # bz2 and lzma: all at once
_LARGEST_NPZ = 1 << 30  # bytes of its arrays together, unpacked
# The most that a zip file counts in 2 bytes.  An entry has 47 bytes, and Python takes 700 for it.
_MOST_ARRAYS = 0xFFFF
_ENTRY = b"PK\1\2"  # the beginning of an entry in a zip file's directory
# Bytes.  Objects take up to 30 times their text ("{}," does, tried), so as much as an npz.
_LARGEST_JSON = _LARGEST_NPZ // 32
_LONGEST_NUMBER = 4300  # bytes; Python reads no more digits unless it is told to


def decoders(decode: bool | Mapping[str, Callable[[bytes], Any]]) -> dict[str, Any]:
    """Return a function for each extension that has one.

    Args:
        decode: True for `DECODERS`, False for none; a dict of functions is added to `DECODERS`.

    Raises:
        TypeError: It is neither a bool nor a dict of functions.
    """
    if isinstance(decode, bool):
        return dict(DECODERS) if decode else {}
    given: Any = decode
    if not isinstance(given, Mapping) or not all(map(callable, given.values())):
        msg = f"decode={decode!r} is no True, False or dict of functions by extension"
        raise TypeError(msg)
    own = {extension.lower().lstrip("."): function for extension, function in decode.items()}
    return {**DECODERS, **own}


def member_decoder(
    functions: Mapping[str, Callable[[bytes], Any]], extension: str
) -> tuple[str, Callable[[bytes], Any]] | None:
    """Return the function for an extension, after the name that it was found by; or None.

    For ``left.seg.png`` this looks for a function of ``left.seg.png``, then of ``seg.png``, then of
    ``png``.
    """
    name = extension
    while name not in functions:
        name = name.partition(".")[2]
        if not name:
            return None
    return name, functions[name]


def _image(data: bytes) -> NDArray[np.uint8]:
    """Return an image, uint8 (height, width, 3)."""
    from threadloader.datasets._images.decode import decode  # noqa: PLC0415  # loads a decoder

    return decode(data)


def _number(data: bytes) -> int:
    """Return an integer; a long text is refused, since `int` would quote all of it in its error."""
    if len(data) > _LONGEST_NUMBER:
        raise ValueError(f"{len(data):,} bytes are no number")
    return int(data)


def _json(data: bytes) -> Any:
    if len(data) > _LARGEST_JSON:
        msg = (
            f"{len(data):,} bytes of JSON are more than {_LARGEST_JSON:,}, and may take 30 times "
            "that in memory: if they are to be read, pass decode={'json': json.loads}"
        )
        raise ValueError(msg)
    return json.loads(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> NDArray[Any]:
    """Return the array of a ``.npy`` file.

    NumPy takes memory for the declared size before it reads on, so that size is checked first.
    """
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_2_0
    if version == (1, 0):
        read_header = np.lib.format.read_array_header_1_0
    try:
        shape, _, dtype = read_header(file)
    except (MemoryError, RecursionError):  # Python's parser: the expression is too deep
        raise ValueError("its header is no dict of shape, order and type") from None
    told, there = dtype.itemsize, len(data) - file.tell()
    for length in shape:
        told *= length
    if told > there and not dtype.hasobject:  # an object array is refused by NumPy below
        msg = f"an array of {told:,} bytes is declared, and {there:,} are there"
        raise ValueError(msg)
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a ``.npz`` file by name."""
    if data.count(_ENTRY) > _MOST_ARRAYS:
        raise ValueError(f"it has more than {_MOST_ARRAYS:,} arrays")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(entry.compress_type not in _UNPACKED_IN_PIECES for entry in archive.infolist()):
            msg = "an array is compressed by something else than deflate, which NumPy never does"
            raise ValueError(msg)
        told = sum(entry.file_size for entry in archive.infolist())
        if told > _LARGEST_NPZ:
            msg = f"its arrays have {told:,} bytes unpacked, more than {_LARGEST_NPZ:,}"
            raise ValueError(msg)
        # `ZipFile` returns at most the declared size, and then checks the CRC.
        return {
            entry.filename.removesuffix(".npy"): _array(_unpacked(archive, entry))
            for entry in archive.infolist()
        }


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return at most the declared size; `ZipFile.read` unpacks up to 2 GiB before it cuts off."""
    with archive.open(entry) as file:
        return file.read(entry.file_size)


DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), _image),
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), _number),
    **dict.fromkeys(("json", "jsn"), _json),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    "npy": _array,
    "npz": _arrays,
}
