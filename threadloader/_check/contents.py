"""What is in a sample: its parts by their paths, as texts that are equal for equal contents."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._fetch.parts import attributes

if TYPE_CHECKING:
    from collections.abc import Iterator


DEEPEST = 12  # levels of containers and attributes
MOST_PARTS = 20_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range)
_WITHOUT_PARTS = (*_PLAIN, _torch.Tensor, type)


def contents(value: Any) -> dict[str, str]:
    """Return what the parts of a value are by their paths, as ``[0]['label']``."""
    return {path: _text(part) for path, part in islice(_parts(value), MOST_PARTS)}


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return the path of the first part that differs; None if there is none."""
    return next((path for path in (*one, *other) if one.get(path) != other.get(path)), None)


def _parts(value: Any, path: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield a value, and all that is in it, with their paths."""
    yield path, value
    if len(above) < DEEPEST and id(value) not in above:
        for name, part in _named(value):
            yield from _parts(part, path + name, (*above, id(value)))


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array that is the value's memory; None if it has none of the kind."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return np.frombuffer(value, np.uint8) if memoryview(value).contiguous else None
    if isinstance(value, _torch.Tensor):
        with suppress(RuntimeError, TypeError, ValueError):  # of a device, sparse, or of bfloat16
            array: np.ndarray[Any, Any] = value.detach().numpy()
            return array
    return None


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        names = getattr(value, "_fields", None)
        for number, part in enumerate(list(value)):
            yield f"[{number}]" if names is None else f".{names[number]}", part
    elif not (isinstance(value, _WITHOUT_PARTS) or _has_bytes(value) or callable(value)):
        yield from ((f".{name}", part) for name, part in attributes(value))


def _text(value: Any) -> str:
    """Return what a value is without its parts."""
    kind = type(value).__qualname__
    if isinstance(value, _PLAIN):
        text = repr(value)
        return f"{kind} {text if len(text) <= 80 else _hash(text.encode())}"
    if isinstance(value, (set, frozenset)):
        return f"{kind} {sorted(str(contents(part)) for part in value)}"
    array = array_of(value)
    value = value if array is None else array
    if isinstance(value, _torch.Tensor):
        with suppress(RuntimeError, TypeError):  # quantized or nested
            dense = value.detach().to_dense()  # of a device, sparse, or of bfloat16
            return f"{kind} {value.dtype} {_hash(repr(dense.tolist()).encode())}"
        return f"{kind} {value!r}"
    if _has_bytes(value):
        objects = array is not None and array.dtype.hasobject
        data = repr(value.tolist()).encode() if objects else value.tobytes()
        names = ("dtype", "shape", "mode", "size")  # of an array, or of an image
        return f"{kind} {[getattr(value, name, None) for name in names]} {_hash(data)}"
    return kind


def _has_bytes(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy's, or an image of Pillow's."""
    return callable(getattr(type(value), "tobytes", None))


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
