"""Which samples, in which order: sampler → batches → tickets.

A *ticket* is some rows of one batch, the unit that a worker takes.  Batches are drawn from the
sampler by the consumer's thread alone; tickets are cut when a worker asks for one, so that their
size can follow what the samples before them took.  No threads and no data here.
"""

from __future__ import annotations

import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader.permutation import KeyedPermutation
from threadloader.seeds import draw_seed
from threadloader.ticket import PlannedBatch, Ticket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

__all__ = [
    "BatchSampler",
    "KeyedSampler",
    "Pace",
    "Planner",
    "RandomSampler",
    "SequentialSampler",
    "TicketCutter",
    "make_sampler",
    "with_generator",
]

_SPAN = 1024  # indices that are computed at once, in 0.3 ms
TICKET_SECONDS = 1e-3  # work in a ticket: about 100 times what handing one over costs (bench: rows)


class Planner:
    """Draws the batches of one epoch from the sampler.

    Args:
        sampler: Yields a batch's indices, or one index if not ``batched``.
        batched: Whether a batch has many samples; else it is one sample, not collated.
        whole: Whether the dataset is given what the sampler yields, which may be any object
            then, a slice or an iterator; the batch counts as one row.

    Threads:
        draw: planner only.
    """

    def __init__(self, sampler: Iterable[Any], *, batched: bool, whole: bool = False) -> None:
        self._drawing = _drawing(iter(sampler), batched=batched, whole=whole)

    def draw(self) -> PlannedBatch | None:
        """Return the next batch, or None after the last.

        Raises:
            Exception: What the sampler raises; the next call goes on with what it yields then.
        """
        drawn = next(self._drawing, None)
        if isinstance(drawn, Exception):
            raise drawn
        return drawn


def _drawing(
    sampler: Iterator[Any], *, batched: bool, whole: bool
) -> Iterator[PlannedBatch | Exception]:
    """Yield the batches of the sampler, and its errors.

    A generator, because an error keeps the frames that called the sampler's code.  They end
    here, while it is suspended, instead of leading to the epoch and its batches.
    """
    sequence = position = 0
    while True:
        try:
            drawn = next(sampler)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001  # raised to the consumer, in its place
            yield error
            continue
        if not batched or (whole and not isinstance(drawn, (list, tuple))):
            indices: Any = (drawn,)
        else:
            # torch accepts any iterable.  A list is copied: some samplers fill one again and again.
            try:
                indices = drawn if type(drawn) is tuple else list(drawn)
            except Exception as error:  # noqa: BLE001  # the same
                yield error
                continue
            drawn = indices if type(drawn) is list else drawn
        yield PlannedBatch(sequence, indices, drawn, position)
        sequence += 1
        position += len(indices)


class Pace:
    """How long a sample takes, and so how many rows a ticket should have.

    Threads:
        rows: any, with the pool's lock held.
        measured: worker.  Racing updates lose one measurement of many, which is harmless: each
            attribute is stored and loaded whole, on both builds.
    """

    __slots__ = ("_rows_seen", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0  # a sample, smoothed
        self._rows_seen = 0

    def rows(self, batch_rows: int, threads: int) -> int:
        """Return how many rows of a batch the next ticket should have, at least 1."""
        if not self._rows_seen:
            return 1
        if batch_rows * self._seconds <= TICKET_SECONDS:
            rows = batch_rows
        else:
            fair = -(-batch_rows // threads)
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
        pace: Tells how large the next ticket should be.
        threads: Threads that share the work.
        whole: Whether the batch is one ticket, whatever its samples take.

    Threads:
        cut, left: compatible; the pool calls them with its lock held.
    """

    __slots__ = ("_batch", "_next", "_pace", "_threads", "_whole")

    def __init__(self, batch: PlannedBatch, pace: Pace, threads: int, *, whole: bool) -> None:
        self._batch = batch
        self._pace = pace
        self._threads = threads
        self._whole = whole
        self._next: int | None = 0  # first row that is in no ticket yet; None after the last

    def cut(self) -> Ticket | None:
        """Return the next ticket, or None after the last.  An empty batch has one, empty."""
        start = self._next
        if start is None:
            return None
        rows = len(self._batch.indices)
        size = rows if self._whole else self._pace.rows(rows, self._threads)
        stop = min(rows, start + size)
        self._next = stop if stop < rows else None
        return Ticket(self._batch, start, stop)

    def left(self) -> int:
        """Estimate how many tickets are left, at least 1."""
        if self._next is None or self._whole:
            return 1
        rows = len(self._batch.indices)
        return max(1, -(-(rows - self._next) // self._pace.rows(rows, self._threads)))


def make_sampler(dataset: Any, generator: Any, *, shuffle: bool) -> Iterable[int]:
    """Return the sampler for ``shuffle`` where torch's are not there, or can't draw."""
    return RandomSampler(dataset, generator) if shuffle else SequentialSampler(dataset)


def with_generator(sampler: Any, generator: Any) -> Any:
    """Return ``sampler``, or a copy of it that draws from ``generator``.

    Args:
        sampler: A copy is made of torch's or our own that would draw from the process's random
            state, alone or in a `BatchSampler`.
        generator: Draws the order.
    """
    kind = type(sampler)
    if kind in (BatchSampler, *_torch.BATCHING):
        name, before = "sampler", sampler.sampler
        after = with_generator(before, generator)
    elif kind in (RandomSampler, KeyedSampler, *_torch.DRAWING):
        name, before = "generator", sampler.generator
        after = generator if before is None else before
    else:
        return sampler
    if after is before:
        return sampler
    twin = copy.copy(sampler)
    setattr(twin, name, after)
    return twin


class SequentialSampler:
    """Indices 0, 1, 2 ... where torch's sampler of this name is not there."""

    def __init__(self, dataset: Sized) -> None:
        self.data_source = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler:
    """A fresh permutation each epoch where torch's sampler of this name is not there.

    Args:
        dataset: Tells the number of samples.
        generator: Draws the permutations; by default NumPy's global state, so that
            ``numpy.random.seed`` decides the order as ``torch.manual_seed`` does with torch.
    """

    def __init__(self, dataset: Sized, generator: np.random.Generator | None = None) -> None:
        self.data_source = dataset
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        # When it is asked for the first index, like torch's: the seed of workers is drawn before.
        draw = np.random if self.generator is None else self.generator
        yield from draw.permutation(len(self.data_source)).tolist()

    def __len__(self) -> int:
        return len(self.data_source)


class KeyedSampler:
    """A fresh permutation each epoch in constant memory: see `threadloader.permutation`.

    Args:
        dataset: Tells the number of samples.
        generator: Draws one seed an epoch; None for the process's own random state.
    """

    def __init__(self, dataset: Any, generator: Any = None) -> None:
        self.data_source: Sized = dataset
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        samples = len(self.data_source)
        order = KeyedPermutation(samples, draw_seed(self.generator))
        for start in range(0, samples, _SPAN):
            yield from order.span(start, min(samples, start + _SPAN)).tolist()

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler:
    """Lists of ``batch_size`` indices where torch's sampler of this name is not there."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: object) -> None:
        if type(drop_last) is not bool:  # in torch's words
            msg = f"drop_last should be a boolean value, but got drop_last={drop_last}"
            raise ValueError(msg)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]  # TypeError, as in torch
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
