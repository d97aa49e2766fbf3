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
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from threadloader.errors import checked_count

TooLong = Literal["error", "truncate", "split", "drop"]
Piece = dict[str, NDArray[Any]]  # one sequence, or a part of one: its features

_UNNAMED = "input_ids"  # the feature of a sample that is one sequence
_ADDED = ("position_ids", "segment_ids")


class Features:
    """What is packed of a sample, and into how long rows.

    Args:
        length: Of a row.
        names: The features; None for all of the sample.
        too_long: What becomes of a sample that is longer than a row.
        padding: Value of the places that are left, for each feature; 0 for those that are missing.

    Raises:
        TypeError: ``names`` is no list, or ``length`` no whole number.
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        length: int,
        names: Sequence[str] | None,
        too_long: TooLong,
        padding: Mapping[str, Any],
    ) -> None:
        if too_long not in get_args(TooLong):
            msg = f"too_long must be one of {get_args(TooLong)}, but got {too_long!r}"
            raise ValueError(msg)
        if isinstance(names, str):
            msg = f"features must be a list of names, but got {names!r}"
            raise TypeError(msg)
        self.length = checked_count("length", length, at_least=1)
        self._names = names and tuple(names)
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
            ValueError: The sample is too long, or its features differ in length.
        """
        piece = self._arrays_of(sample, number)
        if len({len(array) for array in piece.values()}) > 1:
            told = ", ".join(f"{name} {len(array)}" for name, array in piece.items())
            msg = (
                f"the features of sample {number} differ in length ({told}): choose those that "
                "are packed side by side, with features=[...]"
            )
            raise ValueError(msg)
        length, most = length_of(piece), self.length
        if length <= most:
            return [piece] if length else []
        if self._too_long == "error":
            msg = (
                f"sample {number} has length {length}, more than a row's {most}: "
                "choose too_long='truncate', 'split' or 'drop'"
            )
            raise ValueError(msg)
        stop = {"truncate": most, "split": length, "drop": 0}[self._too_long]
        return [
            {name: array[start : start + most] for name, array in piece.items()}
            for start in range(0, stop, most)
        ]

    def row_of(self, pieces: Sequence[Piece]) -> dict[str, NDArray[Any]]:
        """Return a row: each feature, and where its sequences are.

        Raises:
            ValueError: Two sequences don't go together, or the padding is no value of a feature.
        """
        row: dict[str, NDArray[Any]] = {}
        for name in pieces[0]:
            row[name] = self._filled(name, [piece[name] for piece in pieces])
        return row | dict(zip(_ADDED, _ids(list(map(length_of, pieces)), self.length), strict=True))

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

    def _filled(self, name: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
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
        filled = np.full((self.length, *shapes.pop()), value)
        items = np.concatenate(arrays)
        filled[: len(items)] = items
        return filled


def length_of(piece: Piece) -> int:
    """Return the length of a sequence, which is that of each feature."""
    return len(next(iter(piece.values())))


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

    free: int  # room that is left
    opened: int  # number of the sample that it was opened for; -1 if its samples are not here
    pieces: list[Piece] = field(default_factory=list)


class OpenRows:
    """Rows that have room, in the order in which they were opened.

    Args:
        length: Of a row.
        window: Most rows that are open, at least 1.
        free: Room in rows that are open already, whose samples are not here; see `free`.
    """

    def __init__(self, length: int, window: int, free: Sequence[int] = ()) -> None:
        self.closed: deque[Row] = deque()  # in the order in which they were closed
        self._length, self._window = length, window
        self._rows = [Row(room, -1) for room in free]

    @property
    def free(self) -> list[int]:
        """The room in the open rows, one after the other."""
        return [row.free for row in self._rows]

    def opened(self) -> int | None:
        """Return the first sample that an open or a closed row was opened for; None without any."""
        return min((row.opened for row in (*self._rows, *self.closed)), default=None)

    def add(self, piece: Piece, number: int) -> None:
        """Put a sequence, which is no longer than a row, into a row.

        Args:
            piece: What the row keeps.
            number: Of its sample.
        """
        length = length_of(piece)
        for row in self._rows:
            if row.free >= length:
                break
        else:
            if len(self._rows) == self._window:
                self.close_first()
            row = Row(self._length, number)
            self._rows.append(row)
        row.pieces.append(piece)
        row.free -= length
        if not row.free:
            self._rows.remove(row)
            self.closed.append(row)

    def close_first(self) -> bool:
        """Close the row that was opened first; return False if there is none."""
        if self._rows:
            self.closed.append(self._rows.pop(0))
            return True
        return False
