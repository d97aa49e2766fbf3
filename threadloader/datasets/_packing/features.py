"""The features of samples that are packed: cut from a sample, and put together to a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Features", "TooLong"]

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
        if too_long not in ("error", "truncate", "split", "drop"):
            msg = f"too_long must be 'error', 'truncate', 'split' or 'drop', but got {too_long!r}"
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

    def pieces_of(self, sample: Any, number: int) -> Iterator[tuple[Piece, Sequence[int]]]:
        """Yield the sequences that a sample is packed as, and the length of each feature.

        Args:
            sample: A sequence, or a mapping of some.
            number: Of the sample, for errors.

        Raises:
            KeyError: A feature is missing.
            TypeError: A feature is no sequence of numbers.
            ValueError: The sample is too long, or its features differ in length and must not.
        """
        piece = self._arrays_of(sample, number)
        lengths = self._lengths_of(piece, number)
        if all(one <= most for one, most in zip(lengths, self.lengths, strict=True)):
            if any(lengths):
                yield piece, lengths
            return
        if self._too_long == "error":
            msg = (
                f"sample {number} has length {_told(lengths)}, more than a row's "
                f"{_told(self.lengths)}: choose too_long='truncate', 'split' or 'drop'"
            )
            raise ValueError(msg)
        if self._too_long == "truncate":
            cut = {name: array[: self._row_length(name)] for name, array in piece.items()}
            yield cut, [min(pair) for pair in zip(lengths, self.lengths, strict=True)]
        elif self._too_long == "split":
            (size,) = self.lengths
            for start in range(0, lengths[0], size):
                part = {name: array[start : start + size] for name, array in piece.items()}
                yield part, [min(size, lengths[0] - start)]

    def _lengths_of(self, piece: Piece, number: int) -> list[int]:
        """Return the length of each feature in ``lengths``."""
        lengths = [len(array) for array in piece.values()]
        if self._each is not None:
            return lengths
        if any(length != lengths[0] for length in lengths):
            told = ", ".join(f"{name} {len(array)}" for name, array in piece.items())
            msg = (
                f"the features of sample {number} differ in length ({told}): "
                "give length={...}, with one for each"
            )
            raise ValueError(msg)
        return lengths[:1]

    def _row_length(self, name: str) -> int:
        return self.lengths[0] if self._each is None else self._each[name]

    def row_of(self, pieces: Sequence[Piece]) -> dict[str, NDArray[Any]]:
        """Return a row: each feature, and where its sequences are.

        Raises:
            ValueError: Two sequences don't go together, or the padding is no value of a feature.
        """
        row: dict[str, NDArray[Any]] = {}
        for name in pieces[0]:
            arrays, length = [piece[name] for piece in pieces], self._row_length(name)
            row[name] = self._filled(name, arrays, length)
            prefix = "" if self._each is None else f"{name}_"
            if f"{prefix}{_ADDED[0]}" not in row:
                ids = _ids([len(array) for array in arrays], length)
                row.update(
                    (f"{prefix}{added}", one) for added, one in zip(_ADDED, ids, strict=True)
                )
        return row

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
        padding = self._padding.get(name, 0)
        dtype = np.result_type(*arrays)
        value = np.asarray(padding)
        with np.errstate(invalid="ignore"):  # NaN as a whole number
            converted = value.astype(dtype)
        if not np.array_equal(converted, value, equal_nan=value.dtype.kind == "f"):
            msg = f"{name} has type {dtype}, which can't hold its padding, {padding!r}"
            raise ValueError(msg)
        filled = np.full((length, *shapes.pop()), converted)
        start = 0
        for array in arrays:
            filled[start : start + len(array)] = array
            start += len(array)
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


def _told(lengths: Sequence[int]) -> str:
    return str(lengths[0]) if len(lengths) == 1 else str(tuple(lengths))
