"""What is in a sample, part by part: two samples are the same if all their parts are.

Objects are compared by what they hold, never by their identity: each thread makes its own.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import attributes

__all__ = ["array_of", "contents", "difference", "fingerprint"]

DEEPEST = 12  # levels of containers and attributes
MOST_PARTS = 20_000
_PLAIN = (bool, int, complex, str, bytes, type(None), type(Ellipsis), slice, range)


def contents(value: Any) -> dict[str, str]:
    """Return the parts of a value by their paths, as ``[0]['label']``."""
    found: dict[str, str] = {}
    _add(value, "", found, 0, set())
    return found


def fingerprint(value: Any) -> str:
    """Return a text that is the same for values with the same contents."""
    return _hash(repr(sorted(contents(value).items())).encode())


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return the path of the first part that differs; None if there is none."""
    for path in (*one, *other):
        if one.get(path) != other.get(path):
            return path
    return None


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array that is the value's memory; None if it has none of the kind."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return np.frombuffer(value, np.uint8) if memoryview(value).contiguous else None
    if isinstance(value, _torch.Tensor):
        try:
            array: np.ndarray[Any, Any] = value.detach().numpy()
        except (RuntimeError, TypeError, ValueError):  # of a device, sparse, or of bfloat16
            return None
        return array
    return None


def _add(value: Any, path: str, found: dict[str, str], depth: int, above: set[int]) -> None:
    found[path] = _own(value)
    if depth >= DEEPEST or len(found) >= MOST_PARTS or id(value) in above:
        return
    above.add(id(value))
    for name, part in _parts(value):
        _add(part, path + name, found, depth + 1, above)
    above.discard(id(value))


def _own(value: Any) -> str:
    """Return what a value is without its parts."""
    kind = type(value).__qualname__
    if isinstance(value, float):
        return f"{kind} {struct.pack('d', value).hex()}"
    if isinstance(value, _PLAIN):
        text = repr(value)
        return f"{kind} {text if len(text) <= 80 else _hash(text.encode())}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {_hash(value.tobytes())}"
    if isinstance(value, (set, frozenset)):
        return f"{kind} {sorted(map(fingerprint, value))}"
    array = array_of(value)
    if array is not None:
        return f"{kind} {array.dtype} {array.shape} {_of_array(array)}"
    if _is_image(value):
        return f"{kind} {value.mode} {value.size} {_hash(value.tobytes())}"
    if isinstance(value, _torch.Tensor):
        return f"{kind} {value.dtype} {value.layout} {_of_tensor(value)}"
    return kind


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in list(value.items())]
    if isinstance(value, (list, tuple, deque)):
        names = getattr(value, "_fields", None)
        return [
            (f"[{number}]" if names is None else f".{names[number]}", part)
            for number, part in enumerate(list(value))
        ]
    if isinstance(value, (*_PLAIN, float, np.ndarray, np.generic, _torch.Tensor, type)):
        return []
    if _is_image(value) or callable(value):
        return []
    return [(f".{name}", part) for name, part, _ in attributes(value)]


def _is_image(value: Any) -> bool:
    """Whether a value is an image of Pillow's, which may not be installed."""
    return any(kind.__module__ == "PIL.Image" for kind in type(value).__mro__)


def _of_array(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.hasobject:
        return fingerprint(array.tolist())
    return _hash(np.ascontiguousarray(array).tobytes())


def _of_tensor(value: Any) -> str:
    """Return what is in a tensor of a device, in a sparse one, or in one of bfloat16."""
    try:
        dense = value.detach().cpu().to_dense().resolve_conj().resolve_neg()
        array = array_of(dense)
        return _of_array(dense.float().numpy() if array is None else array)
    except (RuntimeError, TypeError):  # quantized or nested
        return repr(value)


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
