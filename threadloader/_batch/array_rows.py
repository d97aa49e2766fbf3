"""Array datasets: one call for each array gathers all rows of a ticket.

Only datasets of exact types are known to be nothing but arrays: NumPy arrays, plain CPU tensors,
torch's ``TensorDataset``, ``Subset`` of one of them, and classes that themselves define a method
``gathered_arrays()`` next to ``__getitem__``.  It returns an array for each leaf of a sample, and
``__getitem__`` returns one row of each.  Indices that do not fit, one out of range say, are left to
the dataset's ``__getitem__``, and so are its errors.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._batch.layout import infer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from threadloader._batch.layout import Field, Layout


_INTEGERS = frozenset({int, np.int64, np.int32, np.intp})  # as samplers yield them


class DatasetArrays:
    """The arrays of one dataset.

    Args:
        dataset: Its ``__getitem__`` returns the same rows.
        layout: The layout of its samples.
        arrays: One for each leaf, ``(length, *shape)``.
        through: The indices of each `Subset` around the arrays, from the outside in.
        made_of: The arrays, and all objects that they were found in; see `is_current`.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = (
        "_fits",
        "_length",
        "_made_of",
        "_through",
        "arrays",
        "dataset",
        "layout",
        "takes",
    )

    def __init__(
        self,
        dataset: Any,
        layout: Layout,
        arrays: list[NDArray[Any]],
        through: list[Sequence[int]],
        made_of: list[Any],
    ) -> None:
        self.dataset = dataset
        self.layout = self._fits = layout
        self.arrays = arrays
        # take() would first copy all of any other array.
        self.takes = [array.flags.c_contiguous and array.flags.aligned for array in arrays]
        self._through = through
        self._made_of = made_of
        self._length = len(arrays[0])

    def rows(self, indices: Any) -> Rows | None:
        """Return rows, to be written later; None if an index is no whole number, or out of range.

        Args:
            indices: A range, an array of whole numbers, a list or a tuple.
        """
        try:
            inner = indices
            for subset in self._through:
                inner = [subset[index] for index in _plain(inner)]
            places = _places(inner, self._length)
        except Exception:  # noqa: BLE001  # the dataset's __getitem__ will raise it
            return None
        return None if places is None else Rows(self, places, indices)

    def is_current(self) -> bool:
        """Whether the dataset still consists of these same arrays (1 us)."""
        now = _made_of(self.dataset)
        return len(now) == len(self._made_of) and all(map(operator.is_, now, self._made_of))

    def fits(self, layout: Layout) -> bool:
        """Whether a batch has the layout of these rows."""
        if layout is self._fits:
            return True
        if layout != self.layout:
            return False
        self._fits = layout  # an equal one of another worker's, which is compared only once
        return True


class Rows:
    """The samples of one ticket, as rows that are still in their arrays."""

    __slots__ = ("_indices", "_places", "arrays")

    def __init__(self, arrays: DatasetArrays, places: slice | NDArray[Any], indices: Any) -> None:
        self.arrays = arrays
        self._places = places
        self._indices = indices

    def __len__(self) -> int:
        places = self._places
        return places.stop - places.start if isinstance(places, slice) else len(places)

    def write(self, layout: Layout, fields: list[Field], start: int, stop: int) -> bool:
        """Write the rows into rows ``start`` to ``stop``; return False if the layout is another."""
        arrays, places = self.arrays, self._places
        if not arrays.fits(layout):
            return False
        columns = layout.columns(fields, start, stop)
        for array, takes, column in zip(arrays.arrays, arrays.takes, columns, strict=True):
            if takes and type(places) is np.ndarray:
                # Any other mode gathers into memory of its own first.  "clip" would change an index
                # out of range, and there is none.
                array.take(places, 0, column, "clip")
            else:
                column[...] = array[places]
        return True

    def as_list(self) -> list[Any]:
        """Return the samples."""
        dataset = self.arrays.dataset
        return [dataset[index] for index in _plain(self._indices)]


def as_list(samples: Any) -> Any:
    """Return fetched samples as they are, but `Rows` as a list of samples."""
    return samples.as_list() if type(samples) is Rows else samples


def is_data(dataset: Any) -> bool:
    """Whether a dataset of arrays stays one: no code of the user's says that it is."""
    while _torch.is_subset(dataset):
        dataset = dataset.dataset
    kind = type(dataset)
    return "gathered_arrays" not in vars(kind) or kind.__module__.startswith("threadloader.")


def arrays_of(dataset: Any) -> DatasetArrays | None:
    """Return the arrays of a dataset, or None if it is more than arrays."""
    inner, through = dataset, []
    while _torch.is_subset(inner):
        through.append(inner.indices)
        inner = inner.dataset
    made_of = _made_of(dataset)
    arrays = [_array_of(part) for part in made_of[2 * len(through) :]]
    if not arrays or not all(array is not None and array.ndim for array in arrays):
        return None
    lengths = set(map(len, arrays))
    layout = _layout_of(inner) if len(lengths) == 1 and 0 not in lengths else None
    if layout is None or not layout.is_of(arrays):
        return None
    return DatasetArrays(dataset, layout, arrays, through, made_of)


def _made_of(dataset: Any) -> list[Any]:
    """Return indices and dataset of each `Subset`, then the arrays; no arrays if it is more."""
    made: list[Any] = []
    while _torch.is_subset(dataset):
        made += (dataset.indices, dataset.dataset)
        dataset = dataset.dataset
    kind = type(dataset)
    if kind in (np.ndarray, np.memmap, _torch.Tensor):
        return [*made, dataset]
    # The class's own, not inherited: a subclass may have another ``__getitem__``.
    hook = vars(kind).get("gathered_arrays")
    if hook is None:
        return [*made, *_torch.tensors_in(dataset)]
    with suppress(Exception):  # something else may have that name
        made += hook(dataset)
    return made


def _array_of(part: Any) -> Any:
    """Return an array or a tensor as a plain array; None if NumPy can't share its memory."""
    if type(part) in (np.ndarray, np.memmap):
        return np.asarray(part)  # also a memory-map: slices of it would cost more
    return _torch.array_of(part) if type(part) is _torch.Tensor else None


def _layout_of(dataset: Any) -> Layout | None:
    try:
        return infer(dataset[0])
    except Exception:  # noqa: BLE001  # of a class with a hook; the sample will raise it again
        return None


def _places(indices: Any, length: int) -> slice | NDArray[Any] | None:
    """Return indices as a slice or an array; None unless all are whole numbers in range."""
    if type(indices) is range:
        if not indices or indices.step != 1 or indices[0] < 0 or indices[-1] >= length:
            return None
        return slice(indices.start, indices.stop)
    if type(indices) is np.ndarray:
        if indices.dtype != np.int64 or indices.ndim != 1:
            return None
    else:
        if not set(map(type, indices)) <= _INTEGERS:
            return None
        indices = np.array(indices, dtype=np.int64)
    # One pass for both ends: without its sign, a negative number is a large one.
    if not len(indices) or int(indices.view(np.uint64).max()) >= length:
        return None
    return indices  # type: ignore[no-any-return]


def _plain(indices: Any) -> Any:
    """Return an array of indices as a list of Python's own numbers; all else as it is."""
    return indices.tolist() if type(indices) is np.ndarray else indices
