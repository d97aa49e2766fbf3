"""The lengths of samples, read some at a time, and checked: they are other people's numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["LARGEST", "Lengths", "whole_number"]

LARGEST = 1 << 53  # beyond it, floats skip whole numbers
_CHECKED = 1 << 24  # lengths that are checked at once, in 40 ms


class Lengths:
    """A positive number for each sample.

    Args:
        lengths: An array is kept as it is, so a memory-map is not read.  A function is called with
            an array of indices, shape ``(n,)``, and returns ``n`` lengths.  All else becomes an
            array.
        num_samples: Number of samples if it is a function, else None.
        multiple: Lengths are rounded up to a multiple of this; 1 leaves them as they are.
        most: Longest that a sample may be; None for no limit.

    Raises:
        TypeError: These are no numbers; or ``num_samples`` is missing, or given without need.
        ValueError: There are none, or not one for each sample; or one is not positive, or too long.
            Beyond 16 million, they are not checked before they are asked for.
    """

    def __init__(
        self, lengths: Any, num_samples: int | None, multiple: int, most: float | None
    ) -> None:
        self._multiple = multiple
        self._most = most
        self._array: NDArray[Any] | None = None
        self._function: Callable[[NDArray[np.int64]], Any] | None = None
        if callable(lengths) and not hasattr(lengths, "__array__"):
            if num_samples is None:
                msg = "lengths is a function, so num_samples must say how many samples there are"
                raise TypeError(msg)
            self._function, self._samples = lengths, whole_number("num_samples", num_samples)
            return
        if num_samples is not None:
            msg = "num_samples is for a function only: the number of lengths says it"
            raise TypeError(msg)
        self._array = _as_array(lengths)
        if self._array.ndim != 1:
            msg = f"lengths must be one number for each sample, but have shape {self._array.shape}"
            raise ValueError(msg)
        self._samples = len(self._array)
        if not self._samples:
            msg = "lengths is empty: there are no samples"
            raise ValueError(msg)
        _check_type(self._array)
        if self._samples <= _CHECKED:
            self._rounded(self._array, None)

    def __len__(self) -> int:
        return self._samples

    def at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the lengths of some samples, rounded up.

        Args:
            indices: Of the samples, shape ``(n,)``.

        Raises:
            TypeError: A function does not return numbers.
            ValueError: A length is not positive, not finite, or too long; or a function does not
                return as many as it was asked for.
        """
        if self._array is not None:
            found = self._array[indices]
        else:
            assert self._function is not None  # noqa: S101  # one of the two
            found = np.asarray(self._function(indices))
            if found.shape != indices.shape:
                msg = f"the lengths of {len(indices)} samples have shape {found.shape}"
                raise ValueError(msg)
            _check_type(found)
        return self._rounded(found, indices)

    def _rounded(self, found: NDArray[Any], indices: NDArray[np.int64] | None) -> NDArray[Any]:
        """Return lengths, rounded up, if all are right.

        Args:
            found: The lengths.
            indices: Of their samples; None for all.
        """
        # Unsigned and narrow numbers would overflow where they are negated or rounded up.
        lengths = found.astype(np.float64 if found.dtype.kind == "f" else np.int64)
        wrong = ~((lengths > 0) & (lengths <= LARGEST))  # NaN is neither
        if wrong.any():
            at, index = _first(wrong, indices)
            msg = (
                f"the length of sample {index} is {found[at]}: "
                "it must be positive, and at most 2**53"
            )
            raise ValueError(msg)
        if self._multiple > 1:
            lengths = np.ceil(lengths / self._multiple).astype(np.int64) * self._multiple
        most = self._most
        if most is not None and (wrong := lengths > most).any():
            at, index = _first(wrong, indices)
            rounded = "" if lengths[at] == found[at] else f", {lengths[at]} with padding"
            msg = (
                f"sample {index} has length {found[at]}{rounded}, more than max_tokens={most:g}: "
                "shorten it, or choose too_long='drop' or 'alone'"
            )
            raise ValueError(msg)
        return lengths


def whole_number(name: str, value: Any, *, at_least: int = 1) -> int:
    """Return an argument that is a whole number.

    Raises:
        TypeError: It is none.
        ValueError: It is too small.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        msg = f"{name} must be a whole number, but got {value!r}"
        raise TypeError(msg)
    if number < at_least:
        msg = f"{name} must be at least {at_least}, but got {value}"
        raise ValueError(msg)
    return number


def _as_array(lengths: Any) -> NDArray[Any]:
    if not isinstance(lengths, (np.ndarray, list, tuple)) and not hasattr(lengths, "__array__"):
        try:
            lengths = lengths[:]  # a column of a table: faster than item by item
        except Exception as error:
            msg = f"lengths must be an array or a list, but is a {type(lengths).__name__}"
            raise TypeError(msg) from error
    try:
        return np.asarray(lengths)
    except ValueError as error:  # lists of different lengths
        msg = "lengths must be one number for each sample"
        raise TypeError(msg) from error


def _check_type(array: NDArray[Any]) -> None:
    if array.dtype.kind not in "iuf":
        msg = f"lengths must be numbers, but have type {array.dtype}"
        raise TypeError(msg)


def _first(wrong: NDArray[np.bool_], indices: NDArray[np.int64] | None) -> tuple[int, int]:
    """Return the place of the first wrong length, and the index of its sample."""
    at = int(np.argmax(wrong))
    return at, at if indices is None else int(indices[at])
