"""The layout of a batch: the structure that all its samples share, and where each leaf lies.

A layout is inferred from one sample and exact: the types of the containers, their keys and
their order, and for each leaf its type, dtype and shape.  Samples that fit are split into one
column a leaf and written into the batch's memory with one call a column.  What does not fit
exactly is refused, never converted: `collate` then falls back to torch's own function.

A batch that fits becomes what ``torch.utils.data.default_collate`` makes of it: tuples become
lists, named tuples and dicts keep their type, strings are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Layout", "describe", "infer"]

ALIGNMENT = 64  # bytes between the starts of leaves; the ring aligns the whole slot alike
MAX_LEAVES = 64  # a sample with more (a list of numbers, say) costs less in default_collate

# The dtypes that NumPy and torch share, by type code; all others fall back.  Of the two 64-bit
# codes (C's long and long long) torch takes both where signed, only `numpy.uint64` where not.
_CODES = frozenset("?bBhHiIlqefdFD") | {np.dtype(np.uint64).char}
_NUMPY_SCALARS = frozenset(np.dtype(code).type for code in "?bBhHiIlqefdFD")
_PYTHON_SCALARS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}

MAX_PLACES = 64  # numbers of rows that a layout remembers the places for

Field = Any  # one leaf of the whole batch while it is written: an array, or a list of strings


@dataclass(frozen=True, slots=True)
class _Array:
    """A leaf of plain arrays or plain CPU tensors of one dtype and shape."""

    kind: type  # numpy.ndarray, numpy.memmap or torch.Tensor, exactly
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def write(self, column: Sequence[Any], field: NDArray[Any], start: int) -> bool:
        if not _uniform(map(type, column), self.kind):
            return False
        try:
            arrays = _torch.arrays_of(column) if self.kind is _torch.Tensor else column
            if self.shape:
                # concatenate() itself refuses another dtype and any other axis than the first.
                height = self.shape[0]
                if not _uniform(map(len, arrays), height):
                    return False
            else:
                height = 1
                arrays = [array[np.newaxis] for array in arrays]
            out = field[start * height : (start + len(arrays)) * height]
            np.concatenate(arrays, out=out, casting="no")
        except (TypeError, ValueError, RuntimeError):
            # Another dtype or number of axes; a sparse tensor, or one that requires grad.
            return False
        return True

    def read(self, field: NDArray[Any], row: int) -> Any:
        height = self.shape[0] if self.shape else 1
        array = field[row * height : (row + 1) * height].reshape(self.shape).copy()
        return _torch.tensor_of(array) if self.kind is _torch.Tensor else array


@dataclass(frozen=True, slots=True)
class _Scalars:
    """A leaf of Python or NumPy numbers of one type."""

    kind: type
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def write(self, column: Sequence[Any], field: NDArray[Any], start: int) -> bool:
        if not _uniform(map(type, column), self.kind):
            return False
        try:
            # Given its dtype, NumPy raises for an int beyond it instead of choosing another.
            field[start : start + len(column)] = np.array(column, dtype=self.dtype)
        except OverflowError:
            return False
        return True

    def read(self, field: NDArray[Any], row: int) -> Any:
        return self.kind(field[row])


@dataclass(frozen=True, slots=True)
class _Text:
    """A leaf of str or bytes: it takes no memory of the slot, but a list of its own."""

    kind: type
    gathered: Callable[[list[Any]], Any]  # default_collate gives a tuple inside sequences

    def write(self, column: Sequence[Any], field: list[Any], start: int) -> bool:
        if not _uniform(map(type, column), self.kind):
            return False
        field[start : start + len(column)] = column
        return True

    def read(self, field: list[Any], row: int) -> Any:
        return field[row]


@dataclass(frozen=True, slots=True)
class _Dict:
    keys: tuple[Any, ...]
    children: tuple[_Node, ...]

    def split(self, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
        # The batch has its first sample's order of keys, so the order has to be equal too.
        if not _uniform(map(type, samples), dict) or not _uniform(map(tuple, samples), self.keys):
            return False
        return all(
            _split(child, [sample[key] for sample in samples], columns)
            for key, child in zip(self.keys, self.children, strict=True)
        )

    def build(self, parts: Iterator[Any], *, batch: bool) -> Any:
        return {
            key: _build(child, parts, batch=batch)
            for key, child in zip(self.keys, self.children, strict=True)
        }


@dataclass(frozen=True, slots=True)
class _Sequence:
    kind: type  # tuple, list or a named tuple, exactly
    children: tuple[_Node, ...]

    def split(self, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
        if not _uniform(map(type, samples), self.kind):
            return False
        try:
            parts = list(zip(*samples, strict=True))
        except ValueError:  # they differ in length
            return False
        if len(parts) != len(self.children):
            return False
        for child, part in zip(self.children, parts, strict=True):
            if not _split(child, part, columns):
                return False
        return True

    def build(self, parts: Iterator[Any], *, batch: bool) -> Any:
        items = [_build(child, parts, batch=batch) for child in self.children]
        if self.kind is list or (self.kind is tuple and batch):
            return items
        return tuple(items) if self.kind is tuple else self.kind(*items)


_Leaf = _Array | _Scalars | _Text
_Node = _Leaf | _Dict | _Sequence


def _uniform(values: Iterable[Any], value: Any) -> bool:
    # list.count() compares in C, identity first: about 15 ns a sample, where a generator
    # expression takes 50 (one run on 3.11).
    listed = list(values)
    return listed.count(value) == len(listed)


def _split(node: _Node, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
    if isinstance(node, (_Dict, _Sequence)):
        return node.split(samples, columns)
    columns.append(samples)
    return True


def _build(node: _Node, parts: Iterator[Any], *, batch: bool) -> Any:
    if isinstance(node, (_Dict, _Sequence)):
        return node.build(parts, batch=batch)
    return next(parts)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a leaf of a batch of a given number of rows lies."""

    dtype: np.dtype[Any]
    offset: int  # bytes
    flat: tuple[int, ...]  # (rows * shape[0], *shape[1:]): what concatenate() writes into
    shape: tuple[int, ...]  # (rows, *shape)


class Layout:
    """The structure of one sample, and of the batches made of samples like it.

    Threads:
        all methods: shared.  `_places` is only ever added to, with equal values for equal keys.
    """

    __slots__ = ("_leaves", "_places", "_root")

    def __init__(self, root: _Node) -> None:
        self._root = root
        self._leaves = tuple(_leaves(root))
        self._places: dict[int, tuple[int, list[_Place | None]]] = {}  # rows -> bytes, places

    def nbytes(self, rows: int) -> int:
        """Return the bytes of memory that a batch of ``rows`` samples takes."""
        return self._place(rows)[0]

    def fields(self, memory: memoryview[Any], rows: int) -> list[Field]:
        """Lay a batch out in ``memory``, for `write`.

        Returns:
            One entry a leaf: an array ``(rows * shape[0], *shape[1:])``, or a list of strings.
        """
        return [
            [None] * rows
            if place is None
            else np.ndarray(place.flat, place.dtype, memory, place.offset)
            for place in self._place(rows)[1]
        ]

    def write(self, samples: Sequence[Any], fields: list[Field], start: int) -> bool:
        """Write samples into rows ``start`` and following.

        Returns:
            False if one of them does not fit the layout; some may be written then.
        """
        columns: list[Sequence[Any]] = []
        if not _split(self._root, samples, columns):
            return False
        for leaf, column, field in zip(self._leaves, columns, fields, strict=True):
            if not leaf.write(column, field, start):
                return False
        return True

    def read(self, fields: list[Field], row: int) -> Any:
        """Return a copy of the sample that was written into ``row``."""
        values = map(_read_row, self._leaves, fields, [row] * len(fields))
        return _build(self._root, iter(values), batch=False)

    def batch(
        self,
        root: NDArray[np.uint8],
        fields: list[Field],
        rows: int,
        convert: Callable[[NDArray[Any]], Any],
    ) -> Any:
        """Return the batch as views of ``root``.

        Args:
            root: All bytes of the memory that ``fields`` lie in.
            fields: From `fields`, written.
            rows: Samples in the batch.
            convert: Called with each leaf's array ``(rows, *shape)``.
        """
        parts = [
            leaf.gathered(field)  # type: ignore[union-attr]  # only text has no place
            if place is None
            else convert(np.ndarray(place.shape, place.dtype, root, place.offset))
            for leaf, field, place in zip(self._leaves, fields, self._place(rows)[1], strict=True)
        ]
        return _build(self._root, iter(parts), batch=True)

    def _place(self, rows: int) -> tuple[int, list[_Place | None]]:
        """Return the bytes of a batch and the place of each leaf; None where it needs none."""
        placed = self._places.get(rows)
        if placed is None:
            places: list[_Place | None] = []
            offset = 0
            for leaf in self._leaves:
                if isinstance(leaf, _Text):
                    places.append(None)
                    continue
                flat = (rows * leaf.shape[0], *leaf.shape[1:]) if leaf.shape else (rows,)
                places.append(_Place(leaf.dtype, offset, flat, (rows, *leaf.shape)))
                offset += _aligned(rows * math.prod(leaf.shape) * leaf.dtype.itemsize)
            placed = offset, places
            if len(self._places) < MAX_PLACES:
                self._places[rows] = placed
        return placed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._root == other._root

    __hash__ = None  # type: ignore[assignment]  # a dict's keys may be of any type


def infer(sample: Any) -> Layout | None:
    """Infer the layout of batches from one sample.

    Returns:
        None where the direct path does not apply: a type that `default_collate` handles in a
        way of its own, an exotic dtype, or more leaves than `MAX_LEAVES`.
    """
    node = _infer(sample, list)
    if node is None or sum(1 for _ in _leaves(node)) > MAX_LEAVES:
        return None
    return Layout(node)


def describe(value: Any) -> Any:
    """Return what has to be equal for samples to make a batch, of any sample; hashable.

    For messages: unlike `infer` it knows no limits, and no path that does not apply.
    """
    kind = type(value)
    if isinstance(value, Mapping):
        return kind, *((key, describe(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return kind, *map(describe, value)
    return kind, repr(getattr(value, "shape", None)), repr(getattr(value, "dtype", None))


def _infer(value: Any, gathered: Callable[[list[Any]], Any]) -> _Node | None:
    kind = type(value)
    if kind is dict:
        return _infer_children(value.values(), list, lambda c: _Dict(tuple(value), c))
    if kind is list or kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return _infer_children(value, tuple, lambda c: _Sequence(kind, c))
    return _infer_leaf(value, kind, gathered)


def _infer_children(
    values: Iterable[Any],
    gathered: Callable[[list[Any]], Any],
    make: Callable[[tuple[_Node, ...]], _Node],
) -> _Node | None:
    children: list[_Node] = []
    for value in values:
        child = _infer(value, gathered)
        # Stopping at the first too many keeps a list of a million numbers cheap.
        if child is None or len(children) >= MAX_LEAVES:
            return None
        children.append(child)
    return make(tuple(children))


def _infer_leaf(value: Any, kind: type, gathered: Callable[[list[Any]], Any]) -> _Leaf | None:
    if kind in _PYTHON_SCALARS:
        return _Scalars(kind, np.dtype(_PYTHON_SCALARS[kind]))
    if kind is str or kind is bytes:
        return _Text(kind, gathered)
    if kind in _NUMPY_SCALARS:
        return _Scalars(kind, value.dtype)
    if kind is np.ndarray or kind is np.memmap:
        array: NDArray[Any] | None = value
    else:
        array = _torch.array_of(value) if kind is _torch.Tensor else None
    if array is None or not array.size:
        return None
    if array.dtype.char not in _CODES or not array.dtype.isnative:
        return None
    return _Array(kind, array.dtype, array.shape)


def _leaves(node: _Node) -> Iterator[_Leaf]:
    if isinstance(node, (_Dict, _Sequence)):
        for child in node.children:
            yield from _leaves(child)
    else:
        yield node


def _read_row(leaf: _Leaf, field: Field, row: int) -> Any:
    return leaf.read(field, row)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
