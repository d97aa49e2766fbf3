"""Samples → batch: rows written straight into a slot, or a list and the collate function.

The direct path takes samples of one exact layout (see `layout`).  It is left batch by batch,
never sample by sample: what does not fit is put aside, and when the batch is complete the rows
that were written are read back, so that `default_collate` sees every sample and decides, with
its own results and its own errors.  The layout is then learned again.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from threadloader import _torch
from threadloader.filling import Sent
from threadloader.gather import Rows
from threadloader.inference import infer
from threadloader.list_filling import ListFilling, SampleFilling, collated
from threadloader.numpy_collate import numpy_collate, numpy_convert

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from threadloader.device import Device
    from threadloader.filling import Failed, Filling
    from threadloader.layout import Field, Layout
    from threadloader.ring import FreshSlots, Ring, Slot

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
        ring: Where slots come from.
        pinned: Makes page-locked slots instead, which batches are views of; None for none.

    Threads:
        open: planner, or the worker that has read the batch.
        learn, fitted, fell_back: worker.
        layout, first_nbytes: any.
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
        pinned: FreshSlots | None = None,
    ) -> None:
        self._made_of = collate_fn, output
        self._batched = batched
        self._most_rows = 0  # of the batches so far: slots are sized for a full one
        self.ring = ring
        self.pinned = pinned
        self.slots: Ring | FreshSlots = ring if pinned is None else pinned
        tensors = output == "torch"
        self.function: Callable[[Any], Any] = _torch.default_collate if tensors else numpy_collate
        self.convert: Callable[[Any], Any] = _torch.tensor_of if tensors else _unchanged
        single = _torch.default_convert if tensors else numpy_convert
        default = _torch.default_collate if batched else _torch.default_convert
        if collate_fn is default or (batched and collate_fn is self.function):
            collate_fn = None
        self.direct = batched and collate_fn is None
        if not self.direct:
            self.function = single if collate_fn is None else collate_fn
        self._extensible = tensors
        self.layout: Layout | None = None
        # Bytes of the first batch delivered, 0 if it was in no slot; set by the consumer, so that
        # the window, and with it how far a sampler is drawn, depends on no worker's speed.
        self.first_nbytes: int | None = None
        self._fallbacks = 0  # batches in a row that did not fit any one layout
        self._skip = 0  # batches still to go without a try

    def is_made_of(self, collate_fn: Callable[[Any], Any] | None, output: Output) -> bool:
        """Whether these are the function and the output that it was made for."""
        return self._made_of[0] is collate_fn and self._made_of[1] == output

    @property
    def packs(self) -> bool:
        """Whether several batches may be made as one: no code of the user's sees them."""
        extended = self._extensible and _torch.is_extended()
        return self.direct and self.pinned is None and not extended

    def open(self, rows: int, ends: tuple[int, ...] = ()) -> Filling:
        """Start a batch of ``rows`` samples.

        Args:
            rows: Samples.
            ends: Of several batches that are made as one, the row after each one's last.
        """
        if not self._batched:
            return SampleFilling(self.function)
        function = partial(_in_parts, self.function, ends) if ends else self.function
        if not self.direct or (self._extensible and _torch.is_extended()):
            return ListFilling(function, default=self.direct)
        skip = self._skip
        if skip > 0:
            self._skip = skip - 1
            return ListFilling(function, default=True)
        self._most_rows = max(rows, self._most_rows)
        return _SlotFilling(self, function, rows, self._most_rows, ends)

    def learn(self, layout: Layout) -> None:
        """Lay out the batches that are opened from now on like this."""
        self.layout = layout

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


class _SlotFilling:
    """A batch that goes the direct path as far as its samples fit.

    It is its slot's holder: the slot is not reused while this object lives.

    Invariants:
        1. ``_layout`` is set at most once, by the holder of ``_deciding``, after ``_slot`` and
           ``_fields``.
        2. A row is written in its place or put aside, never both.

    Threads:
        write, leave_out: shared, each row once.  `_deciding` is only tried, never waited for.
        finish: the worker that wrote the last row, after all others.
        take: consumer, once, after `finish`.
    """

    __slots__ = (
        "__weakref__",
        "_aside",
        "_collation",
        "_deciding",
        "_ends",
        "_fields",
        "_function",
        "_layout",
        "_left_out",
        "_result",
        "_rows",
        "_slot",
        "_slot_rows",
        "_whole",
    )

    def __init__(
        self,
        collation: Collation,
        function: Callable[[Any], Any],
        rows: int,
        slot_rows: int,
        ends: tuple[int, ...] = (),
    ) -> None:
        self._collation = collation
        self._function = function
        self._ends = ends
        self._rows = rows
        self._slot_rows = slot_rows
        self._aside: dict[int, list[Any]] = {}  # first row -> samples that are not written
        self._left_out: set[int] = set()  # rows; adding to a set is atomic on both builds
        self._whole: Any = _NOTHING  # the batch as one object of no known structure
        self._layout: Layout | None = None
        self._fields: list[Field] = []
        self._slot: Slot | None = None
        self._result: Any = None
        # Nothing is guarded by it: whoever takes it decides the layout, and never releases it.
        self._deciding = Lock()
        if collation.layout is not None:
            self._lay_out(collation.layout)

    def write(self, start: int, stop: int, samples: Any) -> None:
        if type(samples) is Rows:
            if self._gathered(start, stop, samples):
                return
            samples = samples.listed()
        if type(samples) is not list or len(samples) != stop - start or not samples:
            self._whole = samples
            return
        if self._layout is None:
            self._decide(infer, samples[0])
        if self._layout is None or not self._layout.write(samples, self._fields, start):
            # Nobody waits for a layout: what comes before it is written by `finish`.  Setting
            # a key is atomic on both builds, and each ticket has a first row of its own.
            self._aside[start] = samples

    def leave_out(self, row: int) -> None:
        self._left_out.add(row)

    def finish(self) -> Failed | None:
        if self._left_out:
            return self._finish_short()
        if self._whole is _NOTHING and self._write_aside():
            self._collation.fitted()
            return None
        samples = self._gather() if self._whole is _NOTHING else self._whole
        if self._slot is not None:
            self._collation.slots.free(self._slot)
            self._slot = None
        self._collation.fell_back(samples)
        self._result, failed = collated(self._function, samples, default=True)
        self._whole = _NOTHING
        return failed

    def _finish_short(self) -> Failed | None:
        """Make a batch of those rows that were not left out."""
        rows = [row for row in range(self._rows) if row not in self._left_out]
        samples, layout = self._gather(), self._layout
        self.let_go()
        self._rows = len(samples)
        if not samples:
            return None
        if layout is not None:
            self._lay_out(layout)
            if layout.write(samples, self._fields, 0):
                return None
            self.let_go()
        self._result, failed = collated(self._function, samples, default=True, rows=rows)
        return failed

    def take(self) -> Any:
        slot, layout = self._slot, self._layout
        nbytes = layout.nbytes(self._slot_rows) if slot is not None and layout is not None else 0
        if self._collation.first_nbytes is None:
            self._collation.first_nbytes = nbytes
        if slot is None or layout is None:
            result, self._result = self._result, None
            return result
        self._slot = None
        if self._collation.pinned is not None:
            return layout.batch_of(self._fields, self._rows, partial(_torch.view_of, slot.source))
        root: NDArray[Any] = self._collation.ring.lease(slot)
        convert = self._collation.convert
        if self._ends:
            return layout.part_maker(root, self._fields, self._ends, convert)
        return layout.batch(root, self._fields, self._rows, convert)

    def send(self, device: Device) -> Sent:
        slot, layout = self._slot, self._layout
        if slot is None or layout is None:
            result, self._result = self._result, None
            return Sent(*device.move(result), nbytes=0)
        spans = layout.spans(self._rows)
        memories = device.copy(slot.source, spans)
        starts = [start for start, _ in spans]

        def view(offset: int, dtype: Any, shape: tuple[int, ...]) -> Any:
            number = bisect_right(starts, offset) - 1
            return device.view(memories[number], offset - starts[number], dtype, shape)

        batch = layout.batch_of(self._fields, self._rows, view)
        return Sent(batch, memories, nbytes=layout.nbytes(self._slot_rows))

    def let_go(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._collation.slots.free(slot)

    def lose(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._collation.slots.abandon(slot)

    def _gathered(self, start: int, stop: int, rows: Rows) -> bool:
        """Write rows of arrays, unless the batch is not laid out like them."""
        if self._layout is None:
            self._decide(_layout_of, rows)
        return self._layout is not None and rows.write(self._layout, self._fields, start, stop)

    def _decide(self, tell: Callable[[Any], Layout | None], samples: Any) -> None:
        """Lay the batch out as ``tell(samples)`` says, unless another thread does."""
        if not self._deciding.acquire(blocking=False):
            return
        layout = tell(samples)
        if layout is not None:
            self._lay_out(layout)
            self._collation.learn(layout)

    def _lay_out(self, layout: Layout) -> None:
        slot = self._collation.slots.take(layout.nbytes(self._slot_rows), self)
        self._slot = slot
        self._fields = layout.fields(slot.memory, self._rows)
        self._layout = layout  # last: other workers write as soon as they see it

    def _write_aside(self) -> bool:
        layout = self._layout
        if layout is None:
            return False
        for start, samples in list(self._aside.items()):
            if not layout.write(samples, self._fields, start):
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
            if self._layout is not None and row not in self._left_out:
                samples.append(self._layout.read(self._fields, row))
            row += 1
        return samples


def _in_parts(function: Callable[[Any], Any], ends: tuple[int, ...], samples: Any) -> Any:
    """Collate several batches; see `ticket.PlannedBatch`."""
    starts = (0, *ends)
    parts = [function(samples[start:end]) for start, end in zip(starts, ends, strict=False)]
    return parts.__getitem__


def _layout_of(rows: Rows) -> Layout:
    return rows.source.layout


def _unchanged(array: Any) -> Any:
    return array
