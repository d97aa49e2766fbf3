"""What is in a sample: its parts by their paths, as texts that are equal for equal contents."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._batch.parts import attributes

if TYPE_CHECKING:
    from collections.abc import Iterator


DEEPEST = 12  # levels of containers and attributes
MOST_PARTS = 20_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range)
_WITHOUT_PARTS = (*_PLAIN, _torch.Tensor, type)


def contents(value: Any) -> dict[str, str]:
    """Return what the parts of a value are by their paths, as ``[0]['label']``."""
    found: dict[str, str] = {}
    left = [("", value, 0)]
    for path, part, depth in left:  # which grows
        found[path] = _text(part)
        if depth < DEEPEST and len(left) < MOST_PARTS:
            left += [(path + name, each, depth + 1) for name, each in _named(part)]
    return found


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return the path of the first part that differs; None if there is none."""
    return next((path for path in (*one, *other) if one.get(path) != other.get(path)), None)


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
    """Return what tells a value, without its parts, from others."""
    held: Any = None
    if isinstance(value, _PLAIN):
        held = value
    elif isinstance(value, (set, frozenset)):
        held = sorted(str(contents(part)) for part in value)
    elif (array := array_of(value)) is not None:
        data = array.tolist() if array.dtype.hasobject else _hash(array.tobytes())
        held = array.dtype, array.shape, data
    elif isinstance(value, _torch.Tensor):  # of a device, sparse, or of bfloat16
        held = repr(value)
        with suppress(RuntimeError, TypeError):  # quantized or nested
            held = value.dtype, value.detach().to_dense().tolist()
    elif _has_bytes(value):
        held = getattr(value, "mode", None), getattr(value, "size", None), _hash(value.tobytes())
    return f"{type(value).__qualname__} {_hash(repr(held).encode())}"


def _has_bytes(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy's, or an image of Pillow's."""
    return callable(getattr(type(value), "tobytes", None))


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
