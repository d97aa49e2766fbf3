"""Which samples, in which order: sampler → batches → tickets.

A *ticket* is some rows of one batch, the unit that a worker takes.  Batches are drawn from the
sampler by the consumer's thread alone; tickets are cut when a worker asks for one, so that their
size can follow what the samples before them took.  No threads and no data here.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._order.tickets import PlannedBatch, Ticket
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader._order.sampler_pass import SamplerPass
    from threadloader._resume.position import Lane

__all__ = ["NO_LENGTH", "Planner", "TicketCutter", "TicketSize"]

NO_LENGTH = """the order follows from the dataset's length: give it a __len__, or the loader a \
sampler or batch_sampler"""

TICKET_SECONDS = 1e-3  # work in a ticket: about 100 times what handing one over costs (bench: rows)

MOST_ERRORS = 100  # of a sampler, while what was delivered is left out


class Planner:
    """Draws the batches of one epoch from the sampler.

    Args:
        sampler: Yields a batch's indices, or one index if not ``batched``.
        lane: What was delivered already: that is left out.
        batched: Whether a batch has many samples; else it is one sample, not collated.
        whole: Whether the dataset is given what the sampler yields, which may be any object
            then, a slice or an iterator; the batch counts as one row.

    Threads:
        all: planner only.
    """

    def __init__(
        self, sampler: SamplerPass, lane: Lane, *, batched: bool, whole: bool = False
    ) -> None:
        self._lane = lane
        self._ahead = set(lane.ahead)
        self._delivered = lane.batches
        self._drawn = sampler.batches  # of those
        self._refused: str | None = None
        self._sampler = sampler
        self._compared = sampler.known
        self._drawing = _drawing(sampler, batched=batched, whole=whole)
        self._first: list[PlannedBatch | Exception | None] = []  # drawn ahead: one, or none

    def start(self) -> None:
        """Let the sampler draw its first batch: with that it may draw the order."""
        self._first = [next(self._drawing, None)]

    def draw(self, most: int = 1) -> PlannedBatch | None:
        """Return the next batch that was not delivered, or None after the last.

        Args:
            most: Batches that may be planned as one.

        Raises:
            StateError: The sampler does not give what it gave; raised again by each further call.
            Exception: What the sampler raises; the next call goes on with what it yields then.
        """
        if not self._compared:
            self._compare_length()
        if self._drawn < self._delivered:
            self._leave_out()
        if self._refused is not None:
            raise StateError(self._refused)  # a new one: an error keeps the frames it came through
        batch = self._draw()
        while self._ahead and batch is not None and batch.sequence in self._ahead:
            self._ahead.discard(batch.sequence)
            self._lane.drawn_again(batch.sequence, batch.mark)
            batch = self._draw()
        if most == 1 or batch is None or self._ahead or not self._sampler.own:
            return batch
        return self._with_next(batch, most - 1)

    def _with_next(self, first: PlannedBatch, more: int) -> PlannedBatch:
        """Return a batch and those after it as one; they are ranges or arrays of indices."""
        batches = [first]
        while len(batches) <= more and (batch := self._draw()) is not None:
            batches.append(batch)
        if len(batches) == 1:
            return first
        ends = tuple(accumulate(len(batch.indices) for batch in batches))
        indices: Any
        if isinstance(first.indices, range):
            indices = range(first.indices.start, first.indices.start + ends[-1])
        else:
            indices = np.concatenate([batch.indices for batch in batches])
        return PlannedBatch(first.sequence, indices, indices, first.position, ends=ends)

    def _compare_length(self) -> None:
        """Compare the sampler's length with what it was; now, as it may depend on an epoch."""
        self._compared = True
        length, before = self._sampler.length(), self._lane.length
        if before is not None and length is not None and length != before:
            self._refused = f"the sampler has {length} batches, and had {before}"
        self._lane.length = length

    def _leave_out(self) -> None:
        """Draw what was delivered already, and compare it with what it was."""
        check = self._lane.check
        errors = 0
        while self._refused is None and self._drawn < self._delivered:
            try:
                batch = self._draw()
            except Exception:
                # It was raised before the state was saved, too; but not for ever.
                errors += 1
                if errors > MOST_ERRORS:
                    raise
                continue
            if batch is None:
                self._refused = (
                    f"the sampler ended after batch {self._drawn}, but {self._delivered} were "
                    "delivered when the state was saved"
                )
                return
            self._drawn += 1
            mark = batch.mark
            if check is not None and check[0] == self._drawn and type(mark) is int:
                if mark != check[1]:
                    self._refused = (
                        f"the sampler gives other indices (batches 1 to {self._drawn}) than when "
                        "the state was saved: it needs a seed, its set_epoch() before the first "
                        "batch, or a state_dict(); or it is another sampler, or rank"
                    )
                return

    def _draw(self) -> PlannedBatch | None:
        drawn = self._first.pop() if self._first else next(self._drawing, None)
        if isinstance(drawn, Exception):
            raise drawn
        return drawn


def _drawing(
    sampler: SamplerPass, *, batched: bool, whole: bool
) -> Iterator[PlannedBatch | Exception]:
    """Yield the batches of the sampler, and its errors.

    A generator, because an error keeps the frames that called the sampler's code.  They end
    here, while it is suspended, instead of leading to the epoch and its batches.
    """
    sequence, position = sampler.batches, sampler.samples
    # torch accepts any iterable.  A list is copied: some samplers fill one again and again.
    kept = (list, tuple, range, np.ndarray) if sampler.own else (tuple,)
    while True:
        try:
            drawn = next(sampler)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001  # raised to the consumer, in its place
            yield _with_advice(error, sampler, None)
            continue
        if not batched or (whole and not isinstance(drawn, (list, tuple))):
            indices: Any = (drawn,)
        else:
            try:
                indices = drawn if type(drawn) in kept else list(drawn)
            except Exception as error:  # noqa: BLE001  # the same
                yield _with_advice(error, sampler, drawn)
                continue
            drawn = indices if type(drawn) is list else drawn
        first, position = position, position + len(indices)
        try:
            mark = sampler.mark(sequence + 1, position, indices)
        except Exception as error:  # noqa: BLE001  # the same, of its state_dict
            mark = None
            yield error
        yield PlannedBatch(sequence, indices, drawn, first, mark=mark)
        sequence += 1


def _with_advice(error: Exception, sampler: SamplerPass, drawn: Any) -> Exception:
    """Return an error with what to do about it, if that is known."""
    if type(error) is TypeError:
        if sampler.known and str(error).endswith("has no len()"):  # the dataset
            error.add_note(NO_LENGTH)
        elif drawn is not None and not hasattr(drawn, "__iter__"):
            error.add_note(f"batch_sampler must yield lists of indices, but gave {drawn!r}")
    return error


class TicketSize:
    """How long a sample takes, and so how many rows a ticket should have.

    Args:
        fixed: Rows that one has whatever they take; None to follow the time.

    Threads:
        rows: any, with the pool's lock held.
        measured: worker.  Racing updates lose one measurement of many, which is harmless: each
            attribute is stored and loaded whole, on both builds.
    """

    __slots__ = ("_fixed", "_rows_seen", "_seconds")

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._seconds = 0.0  # a sample, smoothed
        self._rows_seen = 0

    def rows(self, batch_rows: int, threads: int, batches: int = 1) -> int:
        """Return how many rows of a batch the next ticket should have, at least 1.

        Args:
            batch_rows: Of the batch.
            threads: That share the work.
            batches: Like it, that they share.
        """
        if self._fixed is not None:
            return self._fixed
        if not self._rows_seen:
            return 1
        if batch_rows * self._seconds <= TICKET_SECONDS:
            rows = batch_rows
        else:
            fair = -(-batch_rows * batches // threads)
            rows = min(fair, int(TICKET_SECONDS / self._seconds))
        # Grow no faster than the evidence: the first samples may be cheap by chance.
        return max(1, min(rows, self._rows_seen))

    def measured(self, rows: int, seconds: float) -> None:
        """Take the time of a finished ticket into account."""
        if not rows:
            return
        each = seconds / rows
        seen = self._rows_seen
        self._seconds = each if not seen else 0.75 * self._seconds + 0.25 * each
        self._rows_seen = seen + rows


class TicketCutter:
    """Cuts one batch into tickets, in the order of its rows.

    Args:
        batch: The batch.
        ticket_size: Tells how large the next ticket should be.
        threads: Threads that share the work.
        batches: Tells how many batches they share; None for this one.
        whole: Whether the batch is one ticket, whatever its samples take.

    Threads:
        cut, left: compatible; the pool calls them with its lock held.
    """

    __slots__ = ("_batch", "_batches", "_next", "_threads", "_ticket_size", "_whole")

    def __init__(
        self,
        batch: PlannedBatch,
        ticket_size: TicketSize,
        threads: int,
        batches: Callable[[], int] | None = None,
        *,
        whole: bool,
    ) -> None:
        self._batch = batch
        self._ticket_size = ticket_size
        self._threads = threads
        self._batches = batches
        self._whole = whole
        self._next: int | None = 0  # first row that is in no ticket yet; None after the last

    def cut(self) -> Ticket | None:
        """Return the next ticket, or None after the last.  An empty batch has one, empty."""
        start = self._next
        if start is None:
            return None
        rows = len(self._batch.indices)
        size = rows if self._whole else self._size(rows)
        stop = min(rows, start + size)
        self._next = stop if stop < rows else None
        return Ticket(self._batch, start, stop)

    def left(self) -> int:
        """Estimate how many tickets are left, at least 1."""
        if self._next is None or self._whole:
            return 1
        rows = len(self._batch.indices)
        return max(1, -(-(rows - self._next) // self._size(rows)))

    def _size(self, rows: int) -> int:
        batches = 1 if self._batches is None else self._batches()
        return self._ticket_size.rows(rows, self._threads, batches)
