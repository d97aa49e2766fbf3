"""The structure, shapes and dtypes that all samples of a batch share.

A layout is inferred from one sample, where `default_collate` gives the same batch, and it is exact:
it has the types of the containers, their keys in order, and for each leaf its type, dtype and
shape.  Samples that fit are split into one column a leaf, and each column is written into the
batch's memory with one call.  A sample that does not fit exactly is refused, never converted:
`collate` then falls back to torch's own function.  But small tensors may have another dtype, if
that makes the same batch of them.

The batch has the structure that ``torch.utils.data.default_collate`` gives it: tuples become lists,
named tuples and dicts keep their type, strings are gathered.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


Output = Literal["torch", "numpy"]  # what the leaves of a batch are: tensors, or arrays

_STRUCT_CODES = {bool: "?", int: "q", float: "d"}  # of `struct`


class ArrayLeaf(NamedTuple):
    """A leaf of plain arrays of one dtype and shape."""

    kind: type  # numpy.ndarray or numpy.memmap, exactly
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def write(self, column: Sequence[Any], field: NDArray[Any], start: int) -> bool:
        """Write a column from row ``start`` on; return False if it does not fit."""
        if not uniform(map(type, column), self.kind):
            return False
        arrays: Sequence[NDArray[Any]] = column
        try:
            if self.shape:
                # concatenate() itself refuses another dtype and any other axis than the first.
                height = self.shape[0]
                if not uniform(map(len, arrays), height):
                    return False
            else:
                height = 1
                arrays = [array[np.newaxis] for array in arrays]
            out = field[start * height : (start + len(arrays)) * height]
            np.concatenate(arrays, out=out, casting="no")
        except (TypeError, ValueError):  # another dtype or number of axes
            return False
        return True

    def fits(self, value: Any) -> bool:
        """Whether a value has this type, dtype and shape."""
        array: Any = value
        return type(value) is self.kind and array.dtype == self.dtype and array.shape == self.shape

    def read(self, field: NDArray[Any], row: int) -> NDArray[Any]:
        """Return a copy of one row."""
        height = self.shape[0] if self.shape else 1
        return field[row * height : (row + 1) * height].reshape(self.shape).copy()


class TensorLeaf(NamedTuple):
    """A leaf of plain CPU tensors of one dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def write(self, column: Sequence[Any], field: NDArray[Any], start: int) -> bool:
        """Write a column from row ``start`` on; return False if it does not fit."""
        if not uniform(map(type, column), _torch.Tensor):
            return False
        height = self.shape[0] if self.shape else 1
        rows = field[start * height : (start + len(column)) * height]
        return _torch.stack_into(column, rows.reshape(-1, *self.shape))

    def fits(self, value: Any) -> bool:
        """Whether a value has this type, dtype and shape."""
        array = _torch.array_of(value) if type(value) is _torch.Tensor else None
        return array is not None and array.dtype == self.dtype and array.shape == self.shape

    def read(self, field: NDArray[Any], row: int) -> Any:
        """Return a copy of one row."""
        height = self.shape[0] if self.shape else 1
        array = field[row * height : (row + 1) * height].reshape(self.shape).copy()
        return _torch.tensor_of(array)


class ScalarLeaf(NamedTuple):
    """A leaf of Python or NumPy numbers of one type."""

    kind: type
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def write(self, column: Sequence[Any], field: NDArray[Any], start: int) -> bool:
        """Write a column from row ``start`` on; return False if it does not fit."""
        if not uniform(map(type, column), self.kind):
            return False
        code = _STRUCT_CODES.get(self.kind)
        try:
            if code is not None:
                # Half the time of NumPy, which first looks at each number for a common type.
                memory: Any = field  # numpy's stubs have no buffers
                at = start * self.dtype.itemsize
                struct.pack_into(f"{len(column)}{code}", memory, at, *column)
            else:
                field[start : start + len(column)] = np.array(column, dtype=self.dtype)
        except struct.error:  # an int beyond 64 bits
            return False
        return True

    def fits(self, value: Any) -> bool:
        """Whether a value has this type."""
        return type(value) is self.kind

    def read(self, field: NDArray[Any], row: int) -> Any:
        """Return a copy of one row."""
        return self.kind(field[row])


class TextLeaf(NamedTuple):
    """A leaf of str or bytes: it has a list of its own, and no memory of a slot."""

    kind: type
    gathered: Callable[[list[Any]], Any]  # default_collate gives a tuple inside sequences

    def write(self, column: Sequence[Any], field: list[Any], start: int) -> bool:
        """Write a column from row ``start`` on; return False if it does not fit."""
        if not uniform(map(type, column), self.kind):
            return False
        field[start : start + len(column)] = column
        return True

    def fits(self, value: Any) -> bool:
        """Whether a value has this type."""
        return type(value) is self.kind

    def read(self, field: list[Any], row: int) -> Any:
        """Return a copy of one row."""
        return field[row]


Leaf = ArrayLeaf | TensorLeaf | ScalarLeaf | TextLeaf


def uniform(values: Iterable[Any], value: Any) -> bool:
    """Whether all values equal one."""
    # list.count() compares in C, identity first: about 15 ns a sample, where a generator
    # expression takes 50 (one run on 3.11).
    listed = list(values)
    return listed.count(value) == len(listed)


# A leaf of so many bytes, or more, takes a slot.  glibc keeps smaller blocks when they are freed.
# It may return larger ones to the system; then each page costs a fault when it is touched again.
# For a smaller leaf, new memory costs 3 us less than a slot (3.11 and 3.13t, best of 60 rounds).
SLOT_NBYTES = 128 << 10
MAX_PLACES = 64  # different numbers of rows for which a layout remembers the places

Field = Any  # one leaf of the whole batch while it is written: an array, or a list of strings


class DictNode(NamedTuple):
    """Samples that are dicts with the same keys in the same order."""

    keys: tuple[Any, ...]
    children: tuple[Node, ...]

    def split(self, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
        """Add a column for each leaf; return False if a sample does not fit."""
        # The batch has the keys in the order of its first sample, so that has to be equal, too.
        if not uniform(map(type, samples), dict) or not uniform(map(tuple, samples), self.keys):
            return False
        return all(
            _split(child, [sample[key] for sample in samples], columns)
            for key, child in zip(self.keys, self.children, strict=True)
        )

    def fits(self, value: Any) -> bool:
        """Whether a value has these keys, with values that fit."""
        return (
            type(value) is dict
            and tuple(value) == self.keys
            and all(map(_fits, self.children, value.values()))
        )

    def build(self, parts: Iterator[Any], *, batch: bool) -> Any:
        """Return the container, of a batch or of a sample, with the next parts in it."""
        return {
            key: _build(child, parts, batch=batch)
            for key, child in zip(self.keys, self.children, strict=True)
        }


class SequenceNode(NamedTuple):
    """Samples that are lists, tuples or named tuples of the same length."""

    kind: type  # tuple, list or a named tuple, exactly
    children: tuple[Node, ...]

    def split(self, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
        """Add a column for each leaf; return False if a sample does not fit."""
        if not uniform(map(type, samples), self.kind):
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

    def fits(self, value: Any) -> bool:
        """Whether a value has this type and length, with items that fit."""
        items: Any = value
        return (
            type(value) is self.kind
            and len(items) == len(self.children)
            and all(map(_fits, self.children, items))
        )

    def build(self, parts: Iterator[Any], *, batch: bool) -> Any:
        """Return the container, of a batch or of a sample, with the next parts in it."""
        items = [_build(child, parts, batch=batch) for child in self.children]
        if self.kind is list or (self.kind is tuple and batch):
            return items
        return tuple(items) if self.kind is tuple else self.kind(*items)


Node = Leaf | DictNode | SequenceNode


def _split(node: Node, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
    if isinstance(node, (DictNode, SequenceNode)):
        return node.split(samples, columns)
    columns.append(samples)
    return True


def _fits(node: Node, value: Any) -> bool:
    return node.fits(value)


def _build(node: Node, parts: Iterator[Any], *, batch: bool) -> Any:
    if isinstance(node, (DictNode, SequenceNode)):
        return node.build(parts, batch=batch)
    return next(parts)


class Place(NamedTuple):
    """The memory that one leaf of a batch needs, for a number of rows."""

    dtype: np.dtype[Any]
    flat: tuple[int, ...]  # (rows * shape[0], *shape[1:]): what concatenate() writes into
    shape: tuple[int, ...]  # (rows, *shape)
    nbytes: int
    in_slot: bool


class Places(NamedTuple):
    """The memory that a batch needs."""

    leaves: tuple[Place | None, ...]  # None for text
    nbytes: int
    slots: list[int]  # bytes of the leaves that take a slot


class Layout:
    """The structure of one sample, and of the batches made of samples like it.

    Threads:
        all methods: shared.  `_places` is only ever added to, with equal values for equal keys.
    """

    __slots__ = ("_leaves", "_places", "_root", "_texts")

    def __init__(self, root: Node) -> None:
        self._root = root
        self._leaves = tuple(leaves_of(root))
        self._texts = [n for n, leaf in enumerate(self._leaves) if isinstance(leaf, TextLeaf)]
        self._places: dict[int, Places] = {}  # by the number of rows

    def places(self, rows: int) -> Places:
        """Return the places of the leaves in a batch of ``rows`` samples."""
        places = self._places.get(rows)
        if places is None:
            leaves = tuple(_place(leaf, rows) for leaf in self._leaves)
            arrays = [place for place in leaves if place is not None]
            nbytes = sum(place.nbytes for place in arrays)
            places = Places(leaves, nbytes, [place.nbytes for place in arrays if place.in_slot])
            if len(self._places) < MAX_PLACES:
                self._places[rows] = places
        return places

    def fits(self, sample: Any) -> bool:
        """Whether a sample seems to have this layout; `write` is exact."""
        return self._root.fits(sample)

    def write(self, samples: Sequence[Any], fields: list[Field], start: int) -> bool:
        """Write samples into rows ``start`` and following.

        Args:
            samples: The samples.
            fields: Where each leaf of them is written.
            start: The row of the first.

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

    def is_of(self, arrays: Sequence[NDArray[Any]]) -> bool:
        """Whether the leaves of a sample are rows of ``arrays``, one of each."""
        return len(arrays) == len(self._leaves) and all(
            not isinstance(leaf, TextLeaf)
            and (leaf.dtype, leaf.shape) == (array.dtype, array.shape[1:])
            for leaf, array in zip(self._leaves, arrays, strict=True)
        )

    def columns(self, fields: list[Field], start: int, stop: int) -> list[NDArray[Any]]:
        """Return rows ``start`` to ``stop`` of each leaf, ``(stop - start, *shape)``, to write.

        Args:
            fields: As for `write`; of a layout without text.
            start: First row.
            stop: Row after the last.
        """
        columns = []
        for leaf, field in zip(self._leaves, fields, strict=True):
            height = leaf.shape[0] if leaf.shape else 1  # type: ignore[union-attr]  # no text
            part = field[start * height : stop * height]
            columns.append(part.reshape(stop - start, *leaf.shape))  # type: ignore[union-attr]
        return columns

    def read(self, fields: list[Field], row: int) -> Any:
        """Return a copy of the sample that was written into ``row``."""
        values = map(_read_row, self._leaves, fields, [row] * len(fields))
        return _build(self._root, iter(values), batch=False)

    def batch(self, parts: list[Any]) -> Any:
        """Return a batch.

        Args:
            parts: One a leaf: that of the batch, or of text the list that was written.  Changed.
        """
        for number in self._texts:
            parts[number] = self._leaves[number].gathered(parts[number])  # type: ignore[union-attr]
        return _build(self._root, iter(parts), batch=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._root == other._root

    __hash__ = None  # type: ignore[assignment]  # a dict's keys may be of any type


def leaves_of(node: Node) -> Iterator[Leaf]:
    """Yield all leaves, in the order in which samples are split."""
    if isinstance(node, (DictNode, SequenceNode)):
        for child in node.children:
            yield from leaves_of(child)
    else:
        yield node


def _read_row(leaf: Leaf, field: Field, row: int) -> Any:
    return leaf.read(field, row)


def _place(leaf: Leaf, rows: int) -> Place | None:
    if isinstance(leaf, TextLeaf):
        return None
    shape = (rows, *leaf.shape)
    flat = (rows * leaf.shape[0], *leaf.shape[1:]) if leaf.shape else shape
    nbytes = math.prod(shape) * leaf.dtype.itemsize
    return Place(leaf.dtype, flat, shape, nbytes, nbytes >= SLOT_NBYTES)


MAX_LEAVES = 64  # a sample with more (a list of numbers, say) is faster in default_collate

# The dtypes that NumPy and torch share, by type code; all others fall back.  There are two 64-bit
# codes, for C's long and long long.  torch takes both if signed, and only one of them if not, while
# for NumPy they are equal: so unsigned ones fall back, too, and torch decides on each array.
_CODES = frozenset("?bBhHiIlqefdFD")
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
