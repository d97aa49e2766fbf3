"""Samples → batch: rows written straight into its memory, or a list and the collate function.

The direct path takes samples of one exact layout (see `layout`).  It is left batch by batch,
never sample by sample: what does not fit is put aside, and when the batch is complete the rows
that were written are read back, so that `default_collate` sees every sample and decides, with
its own results and its own errors.  The layout is then learned again.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from threadloader import _torch
from threadloader._batch.filling import Sent
from threadloader._batch.list_filling import ListFilling, SampleFilling, collated
from threadloader._batch.memory import LeasedMemory
from threadloader._batch.numpy_collate import numpy_collate, numpy_convert
from threadloader._fetch.array_rows import Rows
from threadloader._layout.inference import infer
from threadloader._lifetime.leaking import leak
from threadloader._order.window import PrefetchDepth

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.filling import Failed, Filling
    from threadloader._batch.memory import BatchMemory
    from threadloader._batch.ring import Ring
    from threadloader._layout.layout import Layout
    from threadloader._torch.device import Device

__all__ = ["Collation", "Output"]

Output = Literal["torch", "numpy"]

_NOTHING: Any = object()
MAX_SKIPPED = 64  # batches that go to the collate function unseen, between tries of the direct path


class Collation:
    """How one loader makes batches, and the layout that it has learned.

    Args:
        collate_fn: The user's function; None for the default, which torch's own stands for too.
        output: Whether batches consist of tensors or of arrays.
        batched: Whether samples are collated at all, or delivered one by one.
        ring: Where slots of ordinary memory come from.
        memory: Makes the memory of a batch of so many rows instead: page-locked; None for none.
        pin: Puts a batch that lies in no such memory into page-locked; None for nothing.

    Threads:
        open: planner, or the worker that has read the batch.
        layout_of, fitted, fell_back: worker.
        layout: any.
        Each attribute is replaced whole, atomically on both builds; a race between two threads
        loses one observation of many.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any] | None,
        *,
        output: Output,
        batched: bool,
        ring: Ring,
        memory: Callable[[Layout, int], BatchMemory] | None = None,
        pin: Callable[[Any], Any] | None = None,
    ) -> None:
        self._made_of = collate_fn, output
        self._batched = batched
        self.ring = ring
        tensors = output == "torch"
        self.function: Callable[[Any], Any] = _torch.default_collate if tensors else numpy_collate
        self.convert: Callable[[Any], Any] = _torch.tensor_of if tensors else _unchanged
        self._groups = memory is None
        self.memory = partial(LeasedMemory, ring, self.convert) if memory is None else memory
        single = _torch.default_convert if tensors else numpy_convert
        default = _torch.default_collate if batched else _torch.default_convert
        if collate_fn is default or (batched and collate_fn is self.function):
            collate_fn = None
        self.direct = batched and collate_fn is None
        if not self.direct:
            self.function = single if collate_fn is None else collate_fn
        self.pin = pin
        self._extensible = tensors
        self.layout: Layout | None = None
        self.depth = PrefetchDepth()  # follows the bytes of its batches
        self._fallbacks = 0  # batches in a row that did not fit any one layout
        self._skip = 0  # batches still to go without a try

    def is_made_of(self, collate_fn: Callable[[Any], Any] | None, output: Output) -> bool:
        """Whether these are the function and the output that it was made for."""
        return self._made_of[0] is collate_fn and self._made_of[1] == output

    @property
    def packs(self) -> bool:
        """Whether several batches may be made as one: no code of the user's sees them."""
        extended = self._extensible and _torch.is_extended()
        return self.direct and self._groups and not extended

    def open(self, rows: int, ends: tuple[int, ...] = ()) -> Filling:
        """Start a batch of ``rows`` samples.

        Args:
            rows: Samples.
            ends: Of several batches that are made as one, the row after each one's last.
        """
        if not self._batched:
            return SampleFilling(self.function, self.pin)
        if ends:
            return _GroupFilling(self, ends)
        if not self.direct or (self._extensible and _torch.is_extended()):
            return ListFilling(self.function, self.pin, default=self.direct)
        skip = self._skip
        if skip > 0:
            self._skip = skip - 1
            return ListFilling(self.function, self.pin, default=True)
        return _DirectFilling(self, rows)

    def layout_of(self, sample: Any) -> Layout | None:
        """Return the layout of a batch that begins with ``sample``; None if it has no exact one."""
        layout = self.layout
        if layout is None or not layout.fits(sample):
            layout = infer(sample)
            if layout is not None:
                self.layout = layout
        return layout

    def fitted(self) -> None:
        """Note that a batch went the direct path."""
        self._fallbacks = 0

    def fell_back(self, samples: Any) -> None:
        """Learn from a batch that did not fit its layout."""
        layout = infer(samples[0]) if isinstance(samples, list) and samples else None
        if layout is not None and all(infer(sample) == layout for sample in samples):
            self.layout, self._fallbacks = layout, 0
            return
        # Ragged by nature, or not for the direct path at all: try ever more rarely.
        self._fallbacks += 1
        self._skip = min(MAX_SKIPPED, 2**self._fallbacks)


class _DirectFilling:
    """A batch that goes the direct path as far as its samples fit.

    Invariants:
        1. ``_laid_out`` is set at most once, by the holder of ``_deciding``.
        2. A row is written in its place or put aside, never both.

    Threads:
        write, leave_out: shared, each row once.
        finish: the worker that wrote the last row, after all others.
        take: consumer, once, after `finish`.
    """

    __slots__ = (
        "__weakref__",
        "_aside",
        "_collation",
        "_deciding",
        "_laid_out",
        "_left_out",
        "_result",
        "_rows",
        "_whole",
        "nbytes",
    )

    def __init__(self, collation: Collation, rows: int) -> None:
        self._collation = collation
        self._rows = rows
        self.nbytes = 0
        self._aside: dict[int, list[Any]] = {}  # first row -> samples that are not written
        self._left_out: set[int] = set()  # rows; adding to a set is atomic on both builds
        self._whole: Any = _NOTHING  # the batch as one object of no known structure
        self._result: Any = None
        # Whoever comes first lays the batch out, by its own samples; the others wait, some 10 us.
        # No user code runs meanwhile, but a finalizer, which must not wait for this batch.
        self._deciding = Lock()
        # Setting it is guarded by _deciding while rows are written; it is read and stored whole.
        self._laid_out: tuple[Layout, BatchMemory] | None = None

    def write(self, start: int, stop: int, samples: Any) -> None:
        if type(samples) is Rows:
            laid_out = self._laid_out or self._lay_out_like(_layout_of_rows, samples)
            if laid_out is not None and samples.write(laid_out[0], laid_out[1].fields, start, stop):
                return
            samples = samples.listed()
        if type(samples) is not list or len(samples) != stop - start or not samples:
            self._whole = samples
            return
        laid_out = self._laid_out or self._lay_out_like(self._collation.layout_of, samples[0])
        if laid_out is None or not laid_out[0].write(samples, laid_out[1].fields, start):
            # Setting a key is atomic on both builds, and each ticket has a first row of its own.
            self._aside[start] = samples

    def leave_out(self, row: int) -> None:
        self._left_out.add(row)

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> Failed | None:  # noqa: ARG002  # the default's batch
        if self._left_out:
            return self._finish_short()
        if self._whole is _NOTHING and self._write_aside():
            self._collation.fitted()
            return None
        samples = self._gather() if self._whole is _NOTHING else self._whole
        self.let_go()
        self._collation.fell_back(samples)
        self._whole = _NOTHING
        self._result, self.nbytes, failed = collated(
            self._collation.function, samples, self._collation.pin, default=True
        )
        return failed

    def _finish_short(self) -> Failed | None:
        """Make a batch of those rows that were not left out."""
        rows = [row for row in range(self._rows) if row not in self._left_out]
        samples, laid_out = self._gather(), self._laid_out
        self.let_go()
        self._rows = len(samples)
        if not samples:
            return None
        if laid_out is not None:
            layout, memory = self._lay_out(laid_out[0])
            if layout.write(samples, memory.fields, 0):
                return None
            self.let_go()
        self._result, self.nbytes, failed = collated(
            self._collation.function, samples, self._collation.pin, default=True, rows=rows
        )
        return failed

    def take(self) -> Any:
        if self._laid_out is None:
            result, self._result = self._result, None
            return result
        (layout, memory), self._laid_out = self._laid_out, None
        return layout.batch(memory.take())

    def send(self, device: Device) -> Sent:
        if self._laid_out is None:
            return Sent(*device.move(self._result))
        layout, memory = self._laid_out
        parts, tensors = memory.send(device)
        return Sent(layout.batch(parts), tensors)

    def let_go(self) -> None:
        self._result = None
        laid_out, self._laid_out = self._laid_out, None
        if laid_out is not None:
            laid_out[1].free()

    def lose(self) -> None:
        leak(self._result)
        laid_out, self._laid_out = self._laid_out, None
        if laid_out is not None:
            laid_out[1].abandon()

    def _lay_out_like(
        self, layout_of: Callable[[Any], Layout | None], sample: Any
    ) -> tuple[Layout, BatchMemory] | None:
        """Lay the batch out, unless another thread did; None if ``sample`` has no exact layout."""
        with self._deciding:
            if self._laid_out is None:
                layout = layout_of(sample)
                return None if layout is None else self._lay_out(layout)
            return self._laid_out

    def _lay_out(self, layout: Layout) -> tuple[Layout, BatchMemory]:
        memory = self._collation.memory(layout, self._rows)
        self.nbytes = memory.nbytes
        self._laid_out = laid_out = layout, memory
        return laid_out

    def _write_aside(self) -> bool:
        if self._laid_out is None:
            return False
        layout, memory = self._laid_out
        for start, samples in list(self._aside.items()):
            if not layout.write(samples, memory.fields, start):
                return False
            del self._aside[start]
        return True

    def _gather(self) -> list[Any]:
        """Return all samples; those that were written are read back from their rows."""
        samples: list[Any] = []
        row = 0
        while row < self._rows:
            aside = self._aside.pop(row, None)
            if aside is not None:
                samples += aside
                row += len(aside)
                continue
            if self._laid_out is not None and row not in self._left_out:
                layout, memory = self._laid_out
                samples.append(layout.read(memory.fields, row))
            row += 1
        return samples


class _GroupFilling(ListFilling):
    """Several small batches of array rows, which are made at once and taken one by one.

    Each is copied out as it is taken, so that whoever keeps one keeps no other.

    Invariants:
        1. ``_laid_out`` is set at most once, by the holder of ``_deciding``.

    Threads:
        As for `ListFilling`.
    """

    __slots__ = ("_bounds", "_collation", "_deciding", "_laid_out")

    def __init__(self, collation: Collation, ends: tuple[int, ...]) -> None:
        super().__init__(partial(_in_parts, collation.function, ends), None, default=True)
        self._collation = collation
        self._bounds = (0, *ends)
        self._deciding = Lock()
        # Setting it is guarded by _deciding while rows are written; it is read and stored whole.
        self._laid_out: tuple[Layout, BatchMemory] | None = None

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Gather rows; see `Filling`."""
        if type(samples) is Rows:
            layout, memory = self._laid_out or self._lay_out(samples.source.layout)
            if samples.write(layout, memory.fields, start, stop):
                return
        super().write(start, stop, samples)

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> Failed | None:
        """Collate, if some rows were no rows of arrays; see `Filling`."""
        if not self._parts:
            return None
        if self._laid_out is not None:
            (layout, memory), self._laid_out = self._laid_out, None
            listed = set(self._rows())
            for row in range(self._bounds[-1]):
                if row not in listed:
                    self._parts[row] = [layout.read(memory.fields, row)]
            memory.free()
        return super().finish(collate_fn)

    def take(self) -> Callable[[int], Any]:
        """Return what gives each batch, by its number."""
        if self._laid_out is None:
            in_parts: Callable[[int], Any] = super().take()
            return in_parts
        layout, memory = self._laid_out
        convert, bounds = self._collation.convert, self._bounds
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
                memory = self._collation.memory(layout, self._bounds[-1])
                self.nbytes = memory.nbytes // (len(self._bounds) - 1)
                self._laid_out = layout, memory
            return self._laid_out


def _in_parts(function: Callable[[Any], Any], ends: tuple[int, ...], samples: Any) -> Any:
    """Collate several batches; see `ticket.PlannedBatch`."""
    parts = [function(samples[start:end]) for start, end in pairwise((0, *ends))]
    return parts.__getitem__


def _layout_of_rows(rows: Rows) -> Layout:
    return rows.source.layout


def _unchanged(array: Any) -> Any:
    return array
