"""Several small batches of array rows that are written as one, and taken one by one."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

from threadloader._batch.list_filling import ListFilling
from threadloader._fetch.array_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.filling import CollateFailure
    from threadloader._batch.memory import BatchMemory
    from threadloader._layout.layout import Layout

__all__ = ["GroupedFilling"]


class GroupedFilling(ListFilling):
    """Several small batches of array rows, which are made at once and taken one by one.

    Each is copied out as it is taken, so that whoever keeps one keeps no other.

    Args:
        function: The default collate function, for rows that are in no array.
        memory: Makes the memory of so many rows.
        convert: Makes a part of a batch of the array of a leaf.
        ends: The row after the last one of each batch.

    Invariants:
        1. ``_laid_out`` is set at most once, by the holder of ``_deciding``.

    Threads:
        As for `ListFilling`.
    """

    __slots__ = ("_bounds", "_convert", "_deciding", "_laid_out", "_memory")

    def __init__(
        self,
        function: Callable[[Any], Any],
        memory: Callable[[Layout, int], BatchMemory],
        convert: Callable[[Any], Any],
        ends: tuple[int, ...],
    ) -> None:
        super().__init__(partial(_collate_each, function, ends), None, default=True)
        self._memory = memory
        self._convert = convert
        self._bounds = (0, *ends)
        self._deciding = Lock()
        # Setting it is guarded by _deciding while rows are written; it is read and stored whole.
        self._laid_out: tuple[Layout, BatchMemory] | None = None

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Gather rows; see `Filling`."""
        if type(samples) is Rows:
            layout, memory = self._laid_out or self._lay_out(samples.arrays.layout)
            if samples.write(layout, memory.fields, start, stop):
                return
        super().write(start, stop, samples)

    def is_complete(self) -> bool:
        """Whether all rows were rows of arrays; see `Filling`."""
        return not self._parts

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> CollateFailure | None:
        """Collate; see `Filling`."""
        if self._laid_out is not None:
            (layout, memory), self._laid_out = self._laid_out, None
            listed = set(self._rows())
            for row in range(self._bounds[-1]):
                if row not in listed:
                    self._parts[row] = [layout.read(memory.fields, row)]
            memory.release()
        return super().finish(collate_fn)

    def take(self) -> Callable[[int], Any]:
        """Return what gives each batch, by its number."""
        if self._laid_out is None:
            in_parts: Callable[[int], Any] = super().take()
            return in_parts
        layout, memory = self._laid_out
        convert, bounds = self._convert, self._bounds
        leaves = [
            field.reshape(place.shape)
            for field, place in zip(memory.fields, layout.places(bounds[-1]), strict=True)
            if place  # rows of arrays have no text
        ]

        def batch(number: int) -> Any:
            rows = slice(bounds[number], bounds[number + 1])
            return layout.batch([convert(leaf[rows].copy()) for leaf in leaves])

        return batch

    def _lay_out(self, layout: Layout) -> tuple[Layout, BatchMemory]:
        """Lay the batches out, unless another thread did."""
        with self._deciding:
            if self._laid_out is None:
                memory = self._memory(layout, self._bounds[-1])
                self.nbytes = memory.nbytes // (len(self._bounds) - 1)
                self._laid_out = layout, memory
            return self._laid_out


def _collate_each(function: Callable[[Any], Any], ends: tuple[int, ...], samples: Any) -> Any:
    """Collate several batches; see `tickets.PlannedBatch`."""
    batches = [function(samples[start:end]) for start, end in pairwise((0, *ends))]
    return batches.__getitem__
