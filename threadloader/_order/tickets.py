"""What is planned: how many batches ahead, and the tickets that each is cut into.

As many batches are planned as keep all workers busy, bounded in bytes.

A *ticket* is some rows of one batch, the unit that a worker takes.  It is cut when a worker asks
for one, so that its size can follow the time that the samples before it took.

Batches and tickets cross threads, and are tuples: no thread can change what another one reads.
(A frozen dataclass takes four times as long to make.)  But a list of samples that was read from an
iterable is emptied by the one worker that takes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from threadloader._order.resume import Checkpoint


SLOWEST = 32  # times the mean, from which on a sample is an exception that nobody prepares for
FORGOTTEN = 1 / 512  # of the slowest and the fastest sample's time, by each ticket
INLINE_SECONDS = 5e-5  # of a batch: to hand it over takes 16 to 26 us of CPU, and thread switches
START_SECONDS = 2e-3  # of all that is left, below which threads cost more than they save
TICKET_SECONDS = 1e-3  # work in a ticket: about 100 times what handing one over costs (bench: rows)


class PlannedBatch(NamedTuple):
    """One batch as the sampler gave it, before anything of it is loaded."""

    sequence: int  # position of the batch in the epoch, from 0
    indices: Sequence[Any] | NDArray[Any]  # one entry a row
    drawn: Any  # the sampler's own object, which `__getitems__` is called with; or samples read
    position: int = 0  # of its first sample in the epoch, from 0
    label: str = "index"  # the word for an entry of ``indices`` in notes on errors
    # A checkpoint of the sampler after this batch, or the check of all indices so far, or None.
    checkpoint: Checkpoint | int | None = None
    sharded: bool = False  # whether other ranks have batches of the same number

    @property
    def stream(self) -> int:
        """What decides the random numbers of its collate function: no other batch has it."""
        return self.position if self.sharded else self.sequence

    def index_of(self, row: int) -> Any:
        """Return a row's index, or for an iterable dataset the position of its sample."""
        if self.label != "index":
            return self.position + row
        index = self.indices[row]
        return index.item() if isinstance(self.indices, np.ndarray) else index


class Ticket(NamedTuple):
    """The unit of work: rows ``start`` to ``stop`` (excluded) of one batch."""

    batch: PlannedBatch
    start: int  # row
    stop: int  # row


class TicketSize:
    """The number of rows that a ticket should have, from the time that samples take.

    Args:
        fixed: Rows of a ticket, whatever time they take; None to follow the time.

    Threads:
        rows: any, with the pool's lock held.
        batches_for, is_cheap, is_short, seconds, least_seconds: consumer.
        measured, collated: worker.  Racing updates lose one measurement of many.  That is harmless:
            stores and loads of an attribute are atomic on both builds.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._seconds = 0.0  # per sample, smoothed
        self._slowest = 0.0  # seconds per sample of the slowest of the last tickets
        self._least = math.inf  # seconds per sample of the fastest of the last tickets
        self._rows_seen = 0
        self._collate_seconds = 0.0  # of all batches, beside those of their samples
        self._least_collate = math.inf  # of one batch

    def rows(self, batch_rows: int, share: Callable[[], float]) -> int:
        """Return how many rows of a batch the next ticket should have, at least 1.

        Args:
            batch_rows: Rows of the batch.
            share: Returns a thread's fair share of all that is to be done, in batches of this size.
        """
        if self._fixed is not None:
            return self._fixed
        # Grow no faster than the evidence: the first samples may be cheap by chance.
        seen, seconds = self._rows_seen or 1, self._seconds
        if batch_rows * seconds <= TICKET_SECONDS:
            return max(1, min(batch_rows, seen))
        fair = math.ceil(batch_rows * share())
        return max(1, min(fair, int(TICKET_SECONDS / seconds), seen))

    def measured(self, rows: int, seconds: float) -> None:
        """Take the time of a finished ticket into account."""
        if not rows:
            return
        per_sample = seconds / rows
        seen = self._rows_seen
        self._seconds = per_sample if not seen else 0.75 * self._seconds + 0.25 * per_sample
        self._rows_seen = seen + rows
        slowest, least = self._slowest * (1 - FORGOTTEN), self._least * (1 + FORGOTTEN)
        # No max() and min(), which take several times as long.
        self._slowest = per_sample if per_sample > slowest else slowest  # noqa: FURB136
        self._least = per_sample if per_sample < least else least  # noqa: FURB136

    def collated(self, seconds: float) -> None:
        """Take into account what a batch took once it had all its samples."""
        self._collate_seconds += seconds
        self._least_collate = min(self._least_collate, seconds)

    @property
    def seconds(self) -> float:
        """What a sample takes, in seconds; 0 if that is not known yet."""
        return self._seconds

    @property
    def least_seconds(self) -> float:
        """What a sample of the fastest ticket takes, as if no thread was in the way; or 0."""
        return self._least if self._rows_seen else 0.0

    def is_cheap(self, batch_rows: int) -> bool:
        """Whether a batch costs less than handing it over; also if that is not known yet."""
        # A mean of all samples: most batches of arrays are not collated, but for the first one.
        collate_seconds = self._collate_seconds / (self._rows_seen or 1)
        return batch_rows * (self._seconds + collate_seconds) < INLINE_SECONDS

    def is_short(self, batches: float, batch_rows: int) -> bool:
        """Whether an epoch ends before threads are worth their start.

        Args:
            batches: Of the epoch.
            batch_rows: Rows of each.
        """
        # The least: the first batch, which loads what all others find loaded, is no measure.
        collate = self._least_collate if self._least_collate < math.inf else 0.0
        return batches * (batch_rows * self._seconds + collate) < START_SECONDS

    def batches_for(
        self, threads: int, batch_rows: int, *, one_ticket: bool, for_slowest: bool = True
    ) -> int:
        """Return how many batches keep threads busy while the slowest sample is awaited.

        Args:
            threads: Threads.
            batch_rows: Rows of a batch; 0 if unknown.
            one_ticket: Whether a batch is one ticket, whatever time its samples take.
            for_slowest: Whether so many may be on their way that nobody waits for a slow sample.
        """
        seconds = self._seconds
        if not seconds or not batch_rows:
            return 0
        rows = self._fixed or max(1, int(TICKET_SECONDS / seconds))
        if one_ticket:
            rows = batch_rows
        turns = max(2.0, min(SLOWEST, self._slowest / seconds)) if for_slowest else 2.0
        return 2 + math.ceil(threads * rows * turns / batch_rows)


class TicketCutter:
    """Cuts one batch into tickets, in the order of its rows.

    Args:
        batch: The batch.
        ticket_size: Says how many rows the next ticket should have.
        share: See `TicketSize.rows`.
        one_ticket: Whether the batch is one ticket, whatever time its samples take.

    Threads:
        cut, left: compatible; the pool calls them with its lock held.
    """

    __slots__ = ("_batch", "_next", "_one_ticket", "_share", "_ticket_size")

    def __init__(
        self,
        batch: PlannedBatch,
        ticket_size: TicketSize,
        share: Callable[[], float],
        *,
        one_ticket: bool,
    ) -> None:
        self._batch = batch
        self._ticket_size = ticket_size
        self._share = share
        self._one_ticket = one_ticket
        self._next: int | None = 0  # first row that is in no ticket yet; None after the last

    def cut(self) -> Ticket | None:
        """Return the next ticket, or None after the last.  An empty batch has one, empty."""
        start = self._next
        if start is None:
            return None
        rows = len(self._batch.indices)
        if self._one_ticket:
            self._next = None
            return Ticket(self._batch, start, rows)
        stop = start + self._ticket_size.rows(rows, self._share)
        self._next = stop if stop < rows else None
        return Ticket(self._batch, start, min(rows, stop))

    def left(self) -> int:
        """Estimate how many tickets are left, at least 1."""
        if self._next is None or self._one_ticket:
            return 1
        rows = len(self._batch.indices)
        size = self._ticket_size.rows(rows, self._share)
        return max(1, -(-(rows - self._next) // size))


WINDOW = 4  # batches, at least: one in use, one due, two being made
# The same where a batch alone fills a processor's cache: each further slot is memory that has left
# it when it is written again.  With 4 of 28 MB an epoch takes a fifth longer than with 2 or 3
# (bench: bandwidth; 3.11, one and two threads); one more than 2 is for batches of unequal times.
CACHE_WINDOW = 3
CACHE_NBYTES = 16 << 20  # bytes of a batch
SMALL_WINDOW = 16  # batches: handing over costs two thread switches a window (bench: rows)
SMALL_NBYTES = 16 << 20  # bytes that a window of so many may take
UNKNOWN_ROWS = 16  # samples that are assumed in a batch of unknown size
LATE = 16  # batches: the largest of the last so many decides how many to plan
# Bytes that a window may take by default, if two batches fit into them.
LARGE_NBYTES = 1 << 30


class Window(NamedTuple):
    """How many batches may be planned and not yet returned.

    The number that the user chose, or else as many as keep all workers busy.
    """

    chosen: int | None  # batches
    needed: int  # the same, at least
    budget: int  # bytes of all batches, if more than two

    @classmethod
    def of(
        cls, workers: int, rows: int, *, whole_batches: bool, chosen: int | None, budget: int | None
    ) -> Window:
        """Return the window of an epoch.

        Args:
            workers: Threads.
            rows: Samples in a batch; 0 if that is not known.
            whole_batches: Whether one worker does a whole batch.
            chosen: Batches; None if the user did not choose.
            budget: Bytes of all batches; the same.
        """
        busy = workers if whole_batches else -(-2 * workers // (rows or UNKNOWN_ROWS))
        return cls(chosen, 2 + busy, LARGE_NBYTES if budget is None else budget)

    @property
    def most(self) -> int:
        """The largest number of batches, whatever their size."""
        return self.chosen or max(self.needed, SMALL_WINDOW)

    def room(self, nbytes: int, needed: int = 0) -> int:
        """Return how many batches to plan.

        Args:
            nbytes: Bytes that a batch takes now; 0 if unknown.
            needed: Batches that keep all threads busy.
        """
        if self.chosen:
            return self.chosen
        needed = max(self.needed, needed)
        if not nbytes:
            return max(WINDOW, needed)
        small = min(SMALL_WINDOW, SMALL_NBYTES // nbytes)
        least = max(WINDOW, small) if nbytes < CACHE_NBYTES else CACHE_WINDOW
        return min(max(least, needed), max(2, self.budget // nbytes))


class PrefetchDepth:
    """How many batches to plan, as batches grow and shrink.

    It follows the batches that were delivered.  So how far a sampler is drawn ahead depends on the
    data, and not on the speed of threads.  It grows by one for each of them: if the next batches
    are far larger, few of them are on their way when that shows.

    Threads:
        most: shared.
        all others: consumer.  Epochs of one loader share it; a race loses one observation of many.
    """

    __slots__ = ("_depth", "_grows", "_largest", "_settled", "_smaller", "needed")

    def __init__(self) -> None:
        self.needed = 0  # batches that keep all threads busy, as was measured; 0 if it was not
        self._largest = 0  # bytes: of the largest of the last batches
        self._smaller: tuple[int, ...] = ()  # bytes of those since; replaced, not changed
        self._depth = 0  # batches; 0 before any was planned
        self._grows = 0  # by how many it may grow
        # For which window and bytes it grows no more, and its depth then; replaced whole.
        self._settled: tuple[tuple[Any, ...], int] = (), 0

    def delivered(self, nbytes: int) -> None:
        """Note the bytes of a delivered batch; 0 if they are unknown."""
        self._grows = 1
        if nbytes >= self._largest:
            self._largest, self._smaller = nbytes, ()
        elif nbytes:
            smaller = *self._smaller, nbytes
            if len(smaller) == LATE:
                self._largest = max(smaller)
                smaller = smaller[LATE - smaller[::-1].index(self._largest) :]
            self._smaller = smaller

    @property
    def knows_nbytes(self) -> bool:
        """Whether the bytes of batches are known."""
        return self._largest > 0

    def most(self, window: Window) -> int:
        """Return how many batches are planned at the most, while they are as large as now."""
        return window.room(self._largest, needed=self.needed)

    def room(self, window: Window) -> int:
        """Return how many batches to plan; see `Window.room`."""
        follows_from = window, self._largest, self.needed
        known, settled = self._settled
        if known == follows_from:
            return settled
        room = most = self.most(window)
        if not window.chosen and self._depth:
            room = min(room, self._depth + self._grows)
        self._depth, self._grows = room, 0
        self._settled = (follows_from, room) if room == most else ((), 0)
        return room
