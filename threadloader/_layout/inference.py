"""The layout of batches, inferred from one sample; and a description of any sample.

A layout is inferred only where `default_collate` gives the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._layout.layout import DictNode, Layout, SequenceNode, leaves_of
from threadloader._layout.leaves import ArrayLeaf, ScalarLeaf, TensorLeaf, TextLeaf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from threadloader._layout.layout import Node
    from threadloader._layout.leaves import Leaf

__all__ = ["describe", "infer"]

MAX_LEAVES = 64  # a sample with more (a list of numbers, say) is faster in default_collate

# The dtypes that NumPy and torch share, by type code; all others fall back.  There are two 64-bit
# codes, for C's long and long long.  torch takes both if signed, and only `numpy.uint64` if not.
_CODES = frozenset("?bBhHiIlqefdFD") | {np.dtype(np.uint64).char}
_NUMPY_SCALARS = frozenset(np.dtype(code).type for code in "?bBhHiIlqefdFD")
_PYTHON_SCALARS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


def infer(sample: Any) -> Layout | None:
    """Infer the layout of batches from one sample.

    Returns:
        None where the direct path does not apply: a type that `default_collate` handles in a
        way of its own, an exotic dtype, or more leaves than `MAX_LEAVES`.
    """
    node = _infer(sample, list)
    if node is None or sum(1 for _ in leaves_of(node)) > MAX_LEAVES:
        return None
    return Layout(node)


def describe(value: Any) -> Any:
    """Return a description of a sample, hashable; samples make a batch if theirs are equal.

    For messages.  Unlike `infer` it takes any sample.
    """
    kind = type(value)
    if isinstance(value, Mapping):
        return kind, *((key, describe(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return kind, *map(describe, value)
    return kind, repr(getattr(value, "shape", None)), repr(getattr(value, "dtype", None))


def _infer(value: Any, gathered: Callable[[list[Any]], Any]) -> Node | None:
    kind = type(value)
    if kind is dict:
        return _infer_children(value.values(), list, lambda c: DictNode(tuple(value), c))
    if kind is list or kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return _infer_children(value, tuple, lambda c: SequenceNode(kind, c))
    return _infer_leaf(value, kind, gathered)


def _infer_children(
    values: Iterable[Any],
    gathered: Callable[[list[Any]], Any],
    make: Callable[[tuple[Node, ...]], Node],
) -> Node | None:
    children: list[Node] = []
    for value in values:
        child = _infer(value, gathered)
        # Stopping at the first too many keeps a list of a million numbers cheap.
        if child is None or len(children) >= MAX_LEAVES:
            return None
        children.append(child)
    return make(tuple(children))


def _infer_leaf(value: Any, kind: type, gathered: Callable[[list[Any]], Any]) -> Leaf | None:
    if kind in _PYTHON_SCALARS:
        return ScalarLeaf(kind, np.dtype(_PYTHON_SCALARS[kind]))
    if kind is str or kind is bytes:
        return TextLeaf(kind, gathered)
    if kind in _NUMPY_SCALARS:
        return ScalarLeaf(kind, value.dtype)
    if kind is np.ndarray or kind is np.memmap:
        array: NDArray[Any] | None = value
    else:
        array = _torch.array_of(value) if kind is _torch.Tensor else None
    if array is None or not array.size:
        return None
    if array.dtype.char not in _CODES or not array.dtype.isnative:
        return None
    if kind is _torch.Tensor:
        return TensorLeaf(array.dtype, array.shape)
    return ArrayLeaf(kind, array.dtype, array.shape)
