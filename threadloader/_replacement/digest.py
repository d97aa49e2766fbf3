"""A digest of a batch's content: equal for batches of the same structure, types and values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from threadloader import _torch

__all__ = ["digest"]


def digest(batch: Any) -> str:
    """Return the digest of a batch, 32 hexadecimal digits."""
    total = hashlib.blake2b(digest_size=16)
    _add(batch, total, set())
    return total.hexdigest()


def _add(value: Any, total: Any, above: set[int]) -> None:
    """Add a value to a digest.

    Args:
        value: A batch, or a part of it.
        total: The digest.
        above: The ids of the objects around it, for objects that lead back to one of them.
    """
    total.update(type(value).__name__.encode())
    if isinstance(value, _torch.Tensor):
        total.update(f"{value.dtype} {value.layout}".encode())
        value = _array(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.hasobject is False:
        total.update(f"{value.dtype}{value.shape}".encode())
        total.update(np.ascontiguousarray(value).tobytes())
        return
    if id(value) in above:
        return
    above.add(id(value))
    if isinstance(value, Mapping):
        parts: list[Any] = [part for item in value.items() for part in item]
    elif isinstance(value, (list, tuple, np.ndarray)):
        parts = list(value)
    elif isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        parts = []
        total.update(repr(value).encode())
    else:  # a batch of a class of its own
        parts = [part for item in sorted(getattr(value, "__dict__", {}).items()) for part in item]
    total.update(f"({len(parts)}".encode())
    for part in parts:
        _add(part, total, above)
    above.discard(id(value))


def _array(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    if "sparse" in str(tensor.layout):
        tensor = tensor.to_dense()
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    try:
        return tensor.numpy()
    except TypeError:  # NumPy has no bfloat16
        return tensor.float().numpy()
