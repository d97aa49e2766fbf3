"""The layout of a batch: the structure that all its samples share, and where each leaf lies.

A layout is inferred from one sample and exact: the types of the containers, their keys and
their order, and for each leaf its type, dtype and shape.  Samples that fit are split into one
column a leaf and written into the batch's memory with one call a column.  What does not fit
exactly is refused, never converted: `collate` then falls back to torch's own function.

A batch that fits becomes what ``torch.utils.data.default_collate`` makes of it: tuples become
lists, named tuples and dicts keep their type, strings are gathered.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader.leaves import Leaf, TextLeaf, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = [
    "DictNode",
    "Layout",
    "Node",
    "SequenceNode",
    "leaves_of",
]

ALIGNMENT = 64  # bytes between the starts of leaves; the ring aligns the whole slot alike

# Bytes from which on a leaf is copied to a device by itself.  Beginning a copy takes about as long
# as 256 KiB take at 25 GB/s, so that four times as much is not slowed down by it; not measured.
ALONE_NBYTES = 1 << 20
MAX_PLACES = 64  # numbers of rows that a layout remembers the places for

Field = Any  # one leaf of the whole batch while it is written: an array, or a list of strings


@dataclass(frozen=True, slots=True)
class DictNode:
    """Samples that are dicts with the same keys in the same order."""

    keys: tuple[Any, ...]
    children: tuple[Node, ...]

    def split(self, samples: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
        """Add a column for each leaf; return False if a sample does not fit."""
        # The batch has its first sample's order of keys, so the order has to be equal too.
        if not uniform(map(type, samples), dict) or not uniform(map(tuple, samples), self.keys):
            return False
        return all(
            _split(child, [sample[key] for sample in samples], columns)
            for key, child in zip(self.keys, self.children, strict=True)
        )

    def build(self, parts: Iterator[Any], *, batch: bool) -> Any:
        """Return the container, of a batch or of a sample, with the next parts in it."""
        return {
            key: _build(child, parts, batch=batch)
            for key, child in zip(self.keys, self.children, strict=True)
        }


@dataclass(frozen=True, slots=True)
class SequenceNode:
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


def _build(node: Node, parts: Iterator[Any], *, batch: bool) -> Any:
    if isinstance(node, (DictNode, SequenceNode)):
        return node.build(parts, batch=batch)
    return next(parts)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a leaf of a batch of a given number of rows lies."""

    dtype: np.dtype[Any]
    offset: int  # bytes
    flat: tuple[int, ...]  # (rows * shape[0], *shape[1:]): what concatenate() writes into
    shape: tuple[int, ...]  # (rows, *shape)
    alone: bool  # whether it is copied to a device by itself


class Layout:
    """The structure of one sample, and of the batches made of samples like it.

    Threads:
        all methods: shared.  `_places` is only ever added to, with equal values for equal keys.
    """

    __slots__ = ("_leaves", "_places", "_root")

    def __init__(self, root: Node) -> None:
        self._root = root
        self._leaves = tuple(leaves_of(root))
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
            fields: From `fields`; of a layout without text.
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
        return self.batch_of(
            fields,
            rows,
            lambda offset, dtype, shape: convert(np.ndarray(shape, dtype, root, offset)),
        )

    def part_maker(
        self,
        root: NDArray[np.uint8],
        fields: list[Field],
        ends: Sequence[int],
        convert: Callable[[NDArray[Any]], Any],
    ) -> Callable[[int], Any]:
        """Return what makes each of several batches that were written as one; see `batch`.

        Args:
            root: All bytes of the memory that ``fields`` lie in.
            fields: From `fields`, written; of a layout without text.
            ends: The row after the last of each.
            convert: Called with each leaf's array ``(rows, *shape)``.
        """
        leaves: list[NDArray[Any]] = []
        self.batch(root, fields, ends[-1], leaves.append)
        starts = (0, *ends)

        def make(number: int) -> Any:
            rows = slice(starts[number], ends[number])
            return _build(self._root, iter([convert(leaf[rows]) for leaf in leaves]), batch=True)

        return make

    def batch_of(
        self,
        fields: list[Field],
        rows: int,
        view: Callable[[int, np.dtype[Any], tuple[int, ...]], Any],
    ) -> Any:
        """Return the batch, wherever its leaves lie.

        Args:
            fields: From `fields`, written.
            rows: Samples in the batch.
            view: Returns a leaf, of its offset in `fields`' memory (bytes), dtype and shape
                ``(rows, *shape)``.
        """
        parts = [
            leaf.gathered(field)  # type: ignore[union-attr]  # only text has no place
            if place is None
            else view(place.offset, place.dtype, place.shape)
            for leaf, field, place in zip(self._leaves, fields, self._place(rows)[1], strict=True)
        ]
        return _build(self._root, iter(parts), batch=True)

    def spans(self, rows: int) -> list[tuple[int, int]]:
        """Return the parts in which a batch is copied to a device.

        Small leaves together, so that there are few copies; each large one alone, so that who
        keeps one leaf of a batch keeps no other's memory.

        Returns:
            First byte, and the one after the last, of each, in their order.
        """
        nbytes, places = self._place(rows)
        starts = {place.offset for place in places if place is not None and place.alone}
        bounds = sorted({0, nbytes, *starts})  # large ones lie last, without gaps
        return list(itertools.pairwise(bounds))

    def _place(self, rows: int) -> tuple[int, list[_Place | None]]:
        """Return the bytes of a batch and the place of each leaf; None where it needs none.

        The small leaves lie before the large ones.
        """
        placed = self._places.get(rows)
        if placed is None:
            places: list[_Place | None] = [None] * len(self._leaves)
            sized = [
                (rows * math.prod(leaf.shape) * leaf.dtype.itemsize, number, leaf)
                for number, leaf in enumerate(self._leaves)
                if not isinstance(leaf, TextLeaf)
            ]
            offset = 0
            for nbytes, number, leaf in sorted(sized, key=lambda each: each[0] >= ALONE_NBYTES):
                flat = (rows * leaf.shape[0], *leaf.shape[1:]) if leaf.shape else (rows,)
                alone = nbytes >= ALONE_NBYTES
                places[number] = _Place(leaf.dtype, offset, flat, (rows, *leaf.shape), alone)
                offset += _aligned(nbytes)
            placed = offset, places
            if len(self._places) < MAX_PLACES:
                self._places[rows] = placed
        return placed

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


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
