"""Columns of Arrow as what a batch is made of: NumPy arrays where they can be, else lists."""

from __future__ import annotations

from itertools import chain
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_EXACT = 1 << 53  # up to here each integer is a float


def column_of(column: Any) -> Any:
    """Return a row group's column as rows are taken from: an array of NumPy's, or of Arrow's."""
    array = column.combine_chunks()
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_primitive(array.type) or types.is_fixed_size_list(array.type):
        found = values_of(array)
        return found if isinstance(found, np.ndarray) else array
    return array


def taken(
    columns: Sequence[Any], rows: Sequence[NDArray[np.int64]], order: NDArray[np.int64]
) -> Any:
    """Return rows of some columns as one array or, of arrays that differ, as a list.

    Args:
        columns: One of each row group; see `column_of`.
        rows: Those of each group.
        order: The place of each of these rows in the result.
    """
    found = [
        column[some] if isinstance(column, np.ndarray) else values_of(column.take(pa.array(some)))
        for column, some in zip(columns, rows, strict=True)
    ]
    arrays = [each for each in found if isinstance(each, np.ndarray)]
    # Floats are integers of a group in which some are missing.
    exact = "f" not in {each.dtype.kind for each in arrays} or all(map(_exact, arrays))
    if len(arrays) == len(found) and exact and len({each.shape[1:] for each in arrays}) == 1:
        values = np.concatenate(found)
        placed = np.empty_like(values)
        placed[order] = values
        return placed
    listed: list[Any] = [None] * len(order)
    parts = (each.tolist() if getattr(each, "ndim", 0) == 1 else each for each in found)
    for place, value in zip(order.tolist(), chain.from_iterable(parts), strict=True):
        missing = not exact and isinstance(value, float) and isnan(value)
        listed[place] = None if missing else value
    return stacked(listed)


def values_of(array: Any) -> Any:
    """Return the values of an array of Arrow's.

    Numbers, truth values and times become a new array.  Missing numbers are NaN, of integers, too,
    and missing times NaT; truth values of which some are missing, and integers that are no exact
    floats then, are a list of Python's values.  Lists of numbers and the like become an array,
    ``(rows, *lengths)``, if all have one length and none is missing, and else a list of arrays.
    All else is a list of Python's values.
    """
    kind = array.type
    if types.is_primitive(kind):
        found = np.array(array.to_numpy(zero_copy_only=False))
        lossy = (
            types.is_integer(kind) and array.null_count and not _exact(values_of(array.drop_null()))
        )
        return array.to_pylist() if lossy or found.dtype == object else found
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    items = values_of(array.flatten()) if lists else None
    if not isinstance(items, np.ndarray):
        return array.to_pylist()
    if array.null_count:
        there = iter(values_of(array.drop_null()))
        return [next(there) if known else None for known in array.is_valid().to_pylist()]
    lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
    if len(array) and lengths.min() == lengths.max():
        return items.reshape(len(array), lengths[0], *items.shape[1:])
    return np.split(items, np.cumsum(lengths)[:-1])


def stacked(values: list[Any]) -> Any:
    """Return arrays of one shape and type as one array, others as a list; all else as objects.

    A loader looks into a list, for what may become a tensor, and not into an array of objects.
    """
    kinds = {(each.shape, each.dtype) if isinstance(each, np.ndarray) else None for each in values}
    if kinds == {None}:
        return np.fromiter(values, object, len(values))
    return np.stack(values) if len(kinds) == 1 else values


def _exact(values: NDArray[Any]) -> bool:
    """Whether integers are the same as floats; true of all else."""
    if values.dtype.kind not in "iu" or not len(values):
        return True
    return max(-int(values.min()), int(values.max())) <= _EXACT
