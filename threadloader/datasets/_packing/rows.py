"""Rows: the sequences of a sample, which row each goes into, and a row as arrays.

A sequence goes into the first of some open rows that has room for it.  That depends on lengths
alone.  If no open row has room and there are as many as may be, the one that was opened first is
closed: so a sequence waits for a bounded number of rows.

Source: first fit, as in Johnson et al., "Worst-case performance bounds for simple one-dimensional
packing algorithms", SIAM J. Comput. 1974, over a window of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import le
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

TooLong = Literal["error", "truncate", "split", "drop"]
Piece = dict[str, NDArray[Any]]  # one sequence, or a part of one: its features

_UNNAMED = "input_ids"  # the feature of a sample that is one sequence
_ADDED = ("position_ids", "segment_ids")


class Features:
    """What is packed of a sample, and into how long rows.

    Args:
        length: Of a row; or of each feature in it.
        names: The features; None for those of ``length``, or all of the sample.
        too_long: What becomes of a sample that is longer than a row.
        padding: Value of the places that are left, for each feature; 0 for those that are missing.

    Attributes:
        lengths: Of a row: one for all features, or one for each.

    Raises:
        TypeError: ``names`` is no list.
        ValueError: An argument is out of its range, or excludes another.
    """

    def __init__(
        self,
        length: int | Mapping[str, int],
        names: Sequence[str] | None,
        too_long: TooLong,
        padding: Mapping[str, Any],
    ) -> None:
        if too_long not in get_args(TooLong):
            msg = f"too_long must be one of {get_args(TooLong)}, but got {too_long!r}"
            raise ValueError(msg)
        self._each = dict(length) if isinstance(length, Mapping) else None
        self.lengths = (length,) if not isinstance(length, Mapping) else tuple(length.values())
        if not self.lengths or any(type(one) is not int or one < 1 for one in self.lengths):
            msg = f"length must be a whole number of at least 1, or one a feature, but got {length}"
            raise ValueError(msg)
        if self._each is not None and names is not None:
            msg = "length names the features already: leave features out"
            raise ValueError(msg)
        if self._each is not None and too_long == "split":
            msg = "too_long='split' needs one length for all features"
            raise ValueError(msg)
        if isinstance(names, str):
            msg = f"features must be a list of names, but got {names!r}"
            raise TypeError(msg)
        self._names = tuple(self._each) if self._each is not None else names and tuple(names)
        self._too_long = too_long
        self._padding = padding

    def pieces_of(self, sample: Any, number: int) -> list[Piece]:
        """Return the sequences that a sample is packed as.

        Args:
            sample: A sequence, or a mapping of some.
            number: Of the sample, for errors.

        Raises:
            KeyError: A feature is missing.
            TypeError: A feature is no sequence of numbers.
            ValueError: The sample is too long, or its features differ in length and must not.
        """
        piece = self._arrays_of(sample, number)
        lengths = [len(array) for array in piece.values()]
        if self._each is None and len(set(lengths)) > 1:
            told = ", ".join(f"{name} {len(array)}" for name, array in piece.items())
            msg = (
                f"the features of sample {number} differ in length ({told}): "
                "give length={...}, with one for each"
            )
            raise ValueError(msg)
        if all(map(le, self.lengths_of(piece), self.lengths)):
            return [piece] if any(lengths) else []
        if self._too_long == "error":
            told, most = (
                " and ".join(map(str, each)) for each in (self.lengths_of(piece), self.lengths)
            )
            msg = (
                f"sample {number} has length {told}, more than a row's {most}: "
                "choose too_long='truncate', 'split' or 'drop'"
            )
            raise ValueError(msg)
        if self._too_long == "truncate":
            return [{name: array[: self._row_length(name)] for name, array in piece.items()}]
        if self._too_long == "split":
            (size,) = self.lengths
            return [
                {name: array[start : start + size] for name, array in piece.items()}
                for start in range(0, lengths[0], size)
            ]
        return []

    def lengths_of(self, piece: Piece) -> list[int]:
        """Return the lengths of a sequence that count, as many as ``lengths`` has."""
        return [len(array) for array in piece.values()][: len(self.lengths)]

    def row_of(self, pieces: Sequence[Piece]) -> dict[str, NDArray[Any]]:
        """Return a row: each feature, and where its sequences are.

        Raises:
            ValueError: Two sequences don't go together, or the padding is no value of a feature.
        """
        row: dict[str, NDArray[Any]] = {}
        for name in pieces[0]:
            arrays, length = [piece[name] for piece in pieces], self._row_length(name)
            row[name] = self._filled(name, arrays, length)
            names = _ADDED if self._each is None else [f"{name}_{added}" for added in _ADDED]
            if names[0] not in row:
                ids = _ids([len(array) for array in arrays], length)
                row.update(zip(names, ids, strict=True))
        return row

    def _row_length(self, name: str) -> int:
        return self.lengths[0] if self._each is None else self._each[name]

    def _arrays_of(self, sample: Any, number: int) -> Piece:
        if not isinstance(sample, Mapping):
            if self._names not in (None, (_UNNAMED,)):
                msg = f"sample {number} is no mapping: it has no features {', '.join(self._names)}"
                raise TypeError(msg)
            return {_UNNAMED: _array(_UNNAMED, sample, number)}
        names = self._names
        if names is None:
            names = tuple(sample)
            added = [name for name in _ADDED if name in sample]
            if added or not names:
                told = f"has {', '.join(added)}, as a row does" if added else "is empty"
                msg = f"sample {number} {told}: name those to be packed, with features=[...]"
                raise ValueError(msg)
        missing = [name for name in names if name not in sample]
        if missing:
            msg = (
                f"sample {number} has no {', '.join(missing)}: it has {', '.join(map(str, sample))}"
            )
            raise KeyError(msg)
        return {name: _array(name, sample[name], number) for name in names}

    def _filled(self, name: str, arrays: list[NDArray[Any]], length: int) -> NDArray[Any]:
        """Return sequences one after the other, and the padding."""
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            msg = f"{name} has sequences whose items have different shapes: {sorted(shapes)}"
            raise ValueError(msg)
        padding = np.asarray(self._padding.get(name, 0))
        dtype = np.result_type(*arrays)
        with np.errstate(invalid="ignore"):  # NaN as a whole number
            value = padding.astype(dtype)
        if not np.array_equal(value, padding, equal_nan=padding.dtype.kind == "f"):
            msg = f"{name} has type {dtype}, which can't hold its padding, {padding}"
            raise ValueError(msg)
        filled = np.full((length, *shapes.pop()), value)
        items = np.concatenate(arrays)
        filled[: len(items)] = items
        return filled


def _array(name: str, value: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as error:
        error.add_note(f"in {name} of sample {number}")
        raise
    if array.ndim < 1 or (array.dtype.kind not in "biufc" and array.size):
        msg = (
            f"{name} of sample {number} is no sequence of numbers, but a {type(value).__name__}: "
            "name those to be packed, with features=[...]"
        )
        raise TypeError(msg)
    return array


def _ids(lengths: Sequence[int], length: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return each item's place in its sequence, and the number of its sequence, from 1."""
    positions, segments = np.zeros(length, np.int64), np.zeros(length, np.int32)
    start = 0
    for number, size in enumerate(lengths, 1):
        positions[start : start + size] = np.arange(size)
        segments[start : start + size] = number
        start += size
    return positions, segments


@dataclass(slots=True)
class Row:
    """Some sequences that fit into a row together."""

    free: list[int]  # room that is left, for each feature
    opened: int  # number of the sample that it was opened for; -1 if its samples are not here
    pieces: list[Piece] = field(default_factory=list)


class OpenRows:
    """Rows that have room, in the order in which they were opened.

    Args:
        lengths: Of a row, for each feature.
        window: Most rows that are open, at least 1.
        free: Room in rows that are open already, whose samples are not here; see `free`.
    """

    def __init__(self, lengths: Sequence[int], window: int, free: Sequence[int] = ()) -> None:
        self.closed: deque[Row] = deque()  # in the order in which they were closed
        self._lengths = tuple(lengths)
        self._window = window
        each = len(self._lengths)
        self._rows = [Row(list(free[at : at + each]), -1) for at in range(0, len(free), each)]

    @property
    def free(self) -> list[int]:
        """The room in the open rows, one after the other, for each feature."""
        return [room for row in self._rows for room in row.free]

    def opened(self) -> int | None:
        """Return the first sample that an open or a closed row was opened for; None without any."""
        return min((row.opened for row in (*self._rows, *self.closed)), default=None)

    def add(self, piece: Piece, lengths: Sequence[int], number: int) -> None:
        """Put a sequence into a row.

        Args:
            piece: What the row keeps.
            lengths: For each feature, none longer than a row's.
            number: Of its sample.
        """
        first = lengths[0]  # most rows have no room for it: a comparison tells
        for row in self._rows:
            if row.free[0] >= first and all(map(le, lengths, row.free)):
                break
        else:
            if len(self._rows) == self._window:
                self.close_first()
            row = Row(list(self._lengths), number)
            self._rows.append(row)
        row.pieces.append(piece)
        row.free = [room - length for room, length in zip(row.free, lengths, strict=True)]
        if not any(row.free):
            self._rows.remove(row)
            self.closed.append(row)

    def close_first(self) -> bool:
        """Close the row that was opened first; return False if there is none."""
        if self._rows:
            self.closed.append(self._rows.pop(0))
            return True
        return False
