"""What crosses threads: planned batches, and tickets, which are some rows of one.

All are frozen, so that no thread can change what another one reads; but a list of samples that
was read from an iterable is emptied by the one worker that takes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from threadloader._resume.checkpoint import Checkpoint

__all__ = ["PlannedBatch", "Ticket"]


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One batch as the sampler gave it; nothing of it is loaded yet.

    Or several small ones that follow one another, to be made as one and delivered one by one.
    """

    sequence: int  # position of the batch in the epoch, from 0
    indices: Sequence[Any] | NDArray[Any]  # one entry a row
    drawn: Any  # the sampler's own object, which `__getitems__` is called with; or samples read
    position: int = 0  # of its first sample in the epoch, from 0
    label: str = "index"  # what an entry of ``indices`` is, for notes on errors
    # Of the sampler after this batch: its state, or a number that follows from what it gave.
    mark: Checkpoint | int | None = field(default=None, compare=False)
    ends: tuple[int, ...] = ()  # of several: the row after each one's last

    def index_of(self, row: int) -> Any:
        """Return a row's index, of an iterable dataset how many samples come before it."""
        if self.label != "index":
            return self.position + row
        index = self.indices[row]
        return index.item() if isinstance(self.indices, np.ndarray) else index

    def parts(self) -> Iterator[PlannedBatch]:
        """Yield the batches that it is, each by itself."""
        start = 0
        for number, end in enumerate(self.ends):
            indices = self.indices[start:end]
            first = self.position + start
            yield PlannedBatch(self.sequence + number, indices, indices, first)
            start = end

    @property
    def batches(self) -> int:
        """How many batches it is."""
        return len(self.ends) or 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """The unit of work: rows ``start`` to ``stop`` (excluded) of one batch."""

    batch: PlannedBatch
    start: int  # row
    stop: int  # row
