"""The leaves of samples (arrays, numbers, text), and how a column of one is written into a batch.

A value that does not fit exactly is refused, never converted.  But small tensors may have another
dtype, if torch's function makes the same batch of them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray


Output = Literal["torch", "numpy"]  # what the leaves of a batch are: tensors, or arrays

_CODES = {bool: "?", int: "q", float: "d"}  # of `struct`


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
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


@dataclass(frozen=True, slots=True)
class TensorLeaf:
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


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """A leaf of Python or NumPy numbers of one type."""

    kind: type
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def write(self, column: Sequence[Any], field: NDArray[Any], start: int) -> bool:
        """Write a column from row ``start`` on; return False if it does not fit."""
        if not uniform(map(type, column), self.kind):
            return False
        code = _CODES.get(self.kind)
        try:
            if code is not None:
                # Half the time of NumPy, which first looks at each number for a common type.
                numbers = struct.Struct(f"{len(column)}{code}")
                memory: Any = field  # numpy's stubs have no buffers
                numbers.pack_into(memory, start * numbers.size // len(column), *column)
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


@dataclass(frozen=True, slots=True)
class TextLeaf:
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
