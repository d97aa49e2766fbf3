"""The direct path: samples are written straight into the memory of their batch.

It takes samples of one exact layout (see `layout`).  A batch that is ragged, or of mixed types,
leaves it as a whole: samples that do not fit are put aside, and when the batch is complete the rows
that were written are read back.  So the default collate function sees every sample, and decides,
with its own results and its own errors.  The layout is then learned again.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from threadloader._batch.array_rows import Rows
from threadloader._batch.filling import DeviceBatch, Filling
from threadloader._batch.layout import infer

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.filling import CollateFailure
    from threadloader._batch.layout import Layout
    from threadloader._batch.memory import BatchMemory
    from threadloader._torch.device import Device


_NOTHING: Any = object()
MAX_PAUSE = 64  # batches that go to the collate function at once, between tries of the direct path


class DirectPath:
    """What the batches of one loader have in common on the direct path: the layout, once learned.

    Args:
        function: The default collate function, for batches that do not fit.
        memory: Makes the memory of a batch of so many rows.
        pin: Puts a batch of the collate function's into page-locked memory; None for nothing.

    Threads:
        admits_next: planner, or the worker that has read the batch.
        layout_of, small_layout, layout_of_rows, learn: worker.
        Each attribute is replaced whole, atomically on both builds; a race between two threads
        loses one observation of many.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        memory: Callable[[Layout, int], BatchMemory],
        pin: Callable[[Any], Any] | None,
    ) -> None:
        self.function = function
        self.memory = memory
        self.pin = pin
        self._layout: Layout | None = None
        self.misfits = 0  # batches in a row that did not fit any one layout
        self._pause = 0  # batches until the path is tried again

    def admits_next(self) -> bool:
        """Whether the next batch tries the direct path; each call counts one batch."""
        pause = self._pause
        if pause > 0:
            self._pause = pause - 1
        return pause <= 0

    def layout_of(self, sample: Any) -> Layout | None:
        """Return the layout of a batch that begins with ``sample``; None if it has no exact one."""
        layout = self._layout
        if layout is None or not layout.fits(sample):
            layout = infer(sample)
            if layout is not None:
                self._layout = layout
        return layout

    def small_layout(self, rows: int) -> Layout | None:
        """Return the layout of the batch before, if so many rows of it take no slot."""
        layout = self._layout
        return None if layout is None or layout.places(rows).slots else layout

    def layout_of_rows(self, rows: Rows) -> Layout:
        """Return the layout of a batch of ``rows``."""
        self._layout = layout = rows.arrays.layout
        return layout

    def learn(self, samples: Any) -> None:
        """Learn from a batch that did not fit its layout."""
        layout = infer(samples[0]) if isinstance(samples, list) and samples else None
        if layout is not None and all(infer(sample) == layout for sample in samples):
            self._layout, self.misfits = layout, 0
            return
        # Ragged by nature, or not for the direct path at all: try ever more rarely.
        self.misfits += 1
        self._pause = min(MAX_PAUSE, 2**self.misfits)


class DirectFilling(Filling):
    """A batch that goes the direct path as far as its samples fit.

    Invariants:
        1. ``_laid_out`` is set at most once, by the holder of ``_deciding``; or by the only ticket.
        2. A row is written in its place or put aside, never both.

    Threads:
        write, leave_out: shared, each row once.
        is_complete, finish, take: as for `Filling`.
    """

    __slots__ = ("_deciding", "_laid_out", "_object", "_path", "_rows", "_unwritten")

    def __init__(self, path: DirectPath, rows: int) -> None:
        super().__init__(path.function, path.pin)
        self._path = path
        self._rows = rows
        self._unwritten: dict[int, list[Any]] = {}  # first row -> samples that are not written
        self._object: Any = _NOTHING  # the batch as one object of no known structure
        # Whoever comes first lays the batch out, by its own samples; the others wait, some 10 us.
        # No user code runs meanwhile, but a finalizer, which must not wait for this batch.
        self._deciding = Lock()
        # Setting it is guarded by _deciding while rows are written; it is read and stored whole.
        self._laid_out: tuple[Layout, BatchMemory] | None = None

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Write rows in their place, or put them aside; see `Filling`."""
        if type(samples) is Rows:
            laid_out = self._laid_out or self._lay_out_like(self._path.layout_of_rows, samples)
            if laid_out is not None and samples.write(laid_out[0], laid_out[1].fields, start, stop):
                return
            samples = samples.as_list()
        if type(samples) is not list or len(samples) != stop - start or not samples:
            self._object = samples
            return
        if stop - start == self._rows and self._write_all(samples):
            return
        laid_out = self._laid_out or self._lay_out_like(self._path.layout_of, samples[0])
        if laid_out is None or not laid_out[0].write(samples, laid_out[1].fields, start):
            # Setting a key is atomic on both builds, and each ticket has a first row of its own.
            self._unwritten[start] = samples

    def _write_all(self, samples: list[Any]) -> bool:
        """Write all rows of a small batch like the one before; return False if they do not fit.

        To look at the first sample takes longer than to lay out a batch twice, once in a while.
        """
        laid_out = self._lay_out_like(self._path.small_layout, self._rows)
        if laid_out is None:
            return False
        written = laid_out[0].write(samples, laid_out[1].fields, 0)
        if not written:
            self.release()
        return written

    def is_complete(self) -> bool:
        """Whether all rows are in their place; see `Filling`."""
        if self._unwritten or self._laid_out is None or self._left_out:
            return False
        if self._object is not _NOTHING:
            return False
        self._path.misfits = 0
        return True

    def finish(
        self,
        collate_fn: Callable[[Any], Any] | None = None,  # noqa: ARG002  # the default is used
    ) -> CollateFailure | None:
        """Collate the batch if some samples do not fit; see `Filling`."""
        left_out, rows = self._left_out, None
        if self._object is _NOTHING and not left_out and self._write_rest():
            self._path.misfits = 0
            return None
        samples = self._gather() if self._object is _NOTHING else self._object
        self.release()
        self._object = _NOTHING
        if not left_out:
            self._path.learn(samples)
        elif samples:
            rows = [row for row in range(self._rows) if row not in left_out]
        else:
            return None
        try:
            return self._collate(self._function, samples, default=True, rows=rows)
        finally:
            samples = None  # an error keeps this frame

    def take(self) -> Any:
        """Return the batch."""
        if self._laid_out is None:
            return super().take()
        (layout, memory), self._laid_out = self._laid_out, None
        return layout.batch(memory.take())

    def copy_to(self, device: Device) -> DeviceBatch:
        """Begin to copy the batch to a device."""
        if self._laid_out is None:
            return super().copy_to(device)
        parts, tensors = self._laid_out[1].copy_to(device)  # in no variable: an error keeps those
        return DeviceBatch(self._laid_out[0].batch(parts), tensors)

    def release(self) -> None:
        """Give the memory back; see `Filling`."""
        super().release()
        laid_out, self._laid_out = self._laid_out, None
        if laid_out is not None:
            laid_out[1].release()

    def retire(self) -> None:
        """Never use the memory again; see `Filling`."""
        super().retire()
        laid_out, self._laid_out = self._laid_out, None
        if laid_out is not None:
            laid_out[1].retire()

    def _lay_out_like(
        self, layout_of: Callable[[Any], Layout | None], given: Any
    ) -> tuple[Layout, BatchMemory] | None:
        """Lay the batch out, unless another thread did; None if what is given has no layout."""
        with self._deciding:
            if self._laid_out is None:
                layout = layout_of(given)
                if layout is not None:
                    memory = self._path.memory(layout, self._rows)
                    self.nbytes = memory.nbytes
                    self._laid_out = layout, memory
            return self._laid_out

    def _write_rest(self) -> bool:
        if self._laid_out is None:
            return False
        layout, memory = self._laid_out
        for start, samples in list(self._unwritten.items()):
            if not layout.write(samples, memory.fields, start):
                return False
            del self._unwritten[start]
        return True

    def _gather(self) -> list[Any]:
        """Return all samples; those that were written are read back from their rows."""
        samples: list[Any] = []
        row = 0
        while row < self._rows:
            unwritten = self._unwritten.pop(row, None)
            if unwritten is not None:
                samples += unwritten
                row += len(unwritten)
                continue
            if self._laid_out is not None and row not in self._left_out:
                layout, memory = self._laid_out
                samples.append(layout.read(memory.fields, row))
            row += 1
        return samples
