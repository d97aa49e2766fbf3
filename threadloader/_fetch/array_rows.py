"""Array datasets: the rows of a ticket are gathered from each array by one call.

That a dataset is nothing but arrays is known of exact types only: NumPy arrays, plain CPU tensors,
torch's ``TensorDataset``, ``Subset`` of one of them, and classes which themselves define, next to
``__getitem__``, a method ``gathered_arrays()``: it returns an array for each leaf of a sample, of
which ``__getitem__`` gives one row.  What does not fit, an index out of range say, is left to the
dataset's ``__getitem__``, its errors too.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._layout.inference import infer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from threadloader._layout.layout import Field, Layout

__all__ = ["RowSource", "Rows", "listed", "source_of"]

_INTEGERS = frozenset({int, np.int64, np.int32, np.intp})  # as samplers yield them


class RowSource:
    """The arrays of one dataset.

    Args:
        dataset: Gives the same rows by ``__getitem__``.
        layout: Of its samples.
        arrays: One a leaf, ``(length, *shape)``.
        through: The indices of each `Subset` around them, from the outside in.
        made_of: All objects that the arrays were found in; see `is_current`.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = (
        "_arrays",
        "_dataset",
        "_fits",
        "_length",
        "_made_of",
        "_takes",
        "_through",
        "layout",
    )

    def __init__(
        self,
        dataset: Any,
        layout: Layout,
        arrays: list[NDArray[Any]],
        through: list[Sequence[int]],
        made_of: list[Any],
    ) -> None:
        self._dataset = dataset
        self.layout = self._fits = layout
        self._arrays = arrays
        # Of any other array take() would first copy all of it.
        self._takes = [array.flags.c_contiguous and array.flags.aligned for array in arrays]
        self._through = through
        self._made_of = made_of
        self._length = len(arrays[0])

    def rows(self, indices: Any) -> Rows | None:
        """Return rows, to be written later; None if an index is none, or not in range.

        Args:
            indices: A range, an array of whole numbers, or a list, tuple.
        """
        try:
            inner = indices
            for subset in self._through:
                inner = [subset[index] for index in _plain(inner)]
            places = _places(inner, self._length)
        except Exception:  # noqa: BLE001  # the dataset's __getitem__ raises it, in its place
            return None
        return None if places is None else Rows(self, places, indices)

    def is_current(self) -> bool:
        """Whether the dataset still consists of these arrays, by identity: 1 us."""
        now = _made_of(self._dataset)
        return len(now) == len(self._made_of) and all(map(operator.is_, now, self._made_of))

    def fits(self, layout: Layout) -> bool:
        """Whether a batch is laid out as these rows are."""
        if layout is self._fits:
            return True
        if layout != self.layout:
            return False
        self._fits = layout  # another worker's: equal, and compared only once
        return True

    def write(self, places: slice | NDArray[Any], columns: list[NDArray[Any]]) -> None:
        """Gather rows.

        Args:
            places: Of the rows, all in range.
            columns: Written, one a leaf: ``(rows, *shape)``.
        """
        for array, takes, column in zip(self._arrays, self._takes, columns, strict=True):
            if takes and type(places) is np.ndarray:
                # Any other mode gathers into memory of its own first; what "clip" would do to an
                # index out of range can't happen, they were looked at.
                array.take(places, 0, column, "clip")
            else:
                column[...] = array[places]

    def listed(self, indices: Any) -> list[Any]:
        """Return the rows as samples."""
        dataset = self._dataset
        return [dataset[index] for index in _plain(indices)]


class Rows:
    """The samples of one ticket, as rows that are still in their arrays."""

    __slots__ = ("_indices", "_places", "source")

    def __init__(self, source: RowSource, places: slice | NDArray[Any], indices: Any) -> None:
        self.source = source
        self._places = places
        self._indices = indices

    def __len__(self) -> int:
        places = self._places
        return places.stop - places.start if isinstance(places, slice) else len(places)

    def write(self, layout: Layout, fields: list[Field], start: int, stop: int) -> bool:
        """Write the rows into rows ``start`` to ``stop``; return False if the layout is another."""
        if not self.source.fits(layout):
            return False
        self.source.write(self._places, layout.columns(fields, start, stop))
        return True

    def listed(self) -> list[Any]:
        """Return the samples."""
        return self.source.listed(self._indices)


def listed(samples: Any) -> Any:
    """Return what a fetcher gave, with rows as a list of samples."""
    return samples.listed() if type(samples) is Rows else samples


def source_of(dataset: Any) -> RowSource | None:
    """Return the arrays of a dataset that is nothing but arrays; else None."""
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
    return RowSource(dataset, layout, arrays, through, made_of)


def _made_of(dataset: Any) -> list[Any]:
    """Return indices and dataset of each `Subset`, then the arrays; no arrays if it has others."""
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
    with suppress(Exception):  # or what has that name is no hook
        made += hook(dataset)
    return made


def _array_of(part: Any) -> Any:
    """Return an array or a tensor as a plain array; None of what is none that NumPy sees into."""
    if type(part) in (np.ndarray, np.memmap):
        return np.asarray(part)  # a memory-map too, whose slices cost less then
    return _torch.array_of(part) if type(part) is _torch.Tensor else None


def _layout_of(dataset: Any) -> Layout | None:
    try:
        return infer(dataset[0])
    except Exception:  # noqa: BLE001  # of a class with a hook; it comes up again in its place
        return None


def _places(indices: Any, length: int) -> slice | NDArray[Any] | None:
    """Return indices as NumPy wants them; None unless all are whole numbers in range."""
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
    # One pass for both ends: a negative number is a large one without its sign.
    if not len(indices) or int(indices.view(np.uint64).max()) >= length:
        return None
    return indices  # type: ignore[no-any-return]


def _plain(indices: Any) -> Any:
    """Return indices as Python's own numbers, where they are an array."""
    return indices.tolist() if type(indices) is np.ndarray else indices
