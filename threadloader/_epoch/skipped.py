"""The samples that were left out of their batches: how many they are, and which.

A batch is shortened, never refilled from later indices: so what is in a batch follows from the
order and the data alone, whatever the number of threads, and from any batch on.  Of an iterable
dataset, whose samples have no indices, the next one is read instead.
"""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from threadloader.errors import shortened

if TYPE_CHECKING:
    from threadloader._fetch.failure import Failure
    from threadloader._order.tickets import PlannedBatch
    from threadloader._resume.position import Position

__all__ = ["Skipped", "SkippedSamples", "Tally"]

MAX_LISTED = 1000  # samples: the latest are kept, as text
MAX_TOLD = 1000  # characters of that text


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch."""

    batch: int  # position of the batch in its epoch, from 0
    index: Any  # the sampler's; of an iterable dataset how many samples were read before it
    error: str  # its type and message, of which 1,000 characters are kept


class SkippedSamples:
    """The samples that one loader has left out.

    Invariants, whenever ``_lock`` is not held:
        1. ``_count`` is the length of ``_latest``, or more than `MAX_LISTED`.

    Threads:
        all: shared; two consumers may have an iterator each.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # All below: guarded by _lock.
        self._count = 0
        self._latest: deque[Skipped] = deque(maxlen=MAX_LISTED)

    def add(self, skipped: Skipped) -> None:
        """Count a sample that was left out of a batch."""
        with self._lock:
            self._count += 1
            self._latest.append(skipped)

    def told(self) -> tuple[int, tuple[Skipped, ...]]:
        """Return how many there are, and the latest."""
        with self._lock:
            return self._count, tuple(self._latest)


class Short(Protocol):
    """A batch that samples may have been left out of."""

    plan: PlannedBatch
    skipped: list[Failure]  # instead of rows
    unread: list[Failure]  # of an iterable dataset, between rows


class Tally:
    """The samples left out in one epoch, and how many that may be.

    Args:
        samples: Of all epochs.
        position: Of the epoch: how many there are so far is kept there, and saved with it.
        most: In this one; None for any number.

    Threads:
        all: consumer.
    """

    def __init__(self, samples: SkippedSamples, position: Position, most: int | None) -> None:
        self._samples = samples
        self._position = position
        self._most = most
        self._warning: str | None = None
        self._warned = False

    def add(self, batch: Short) -> Failure | None:
        """Count what was left out of a batch; return the first that is one too many."""
        if not (batch.skipped or batch.unread):
            return None
        plan = batch.plan
        excess = None
        for failure in [*batch.unread, *sorted(batch.skipped, key=_row)]:
            unread = any(failure is each for each in batch.unread)
            index = plan.position + failure.row if unread else plan.index_of(failure.row)
            skipped = Skipped(plan.sequence, index, _told(failure.error))
            self._samples.add(skipped)
            self._position.skipped += 1
            if self._warning is None:
                self._warning = (
                    f"a sample was left out (batch {plan.sequence}, index {index!r}): "
                    f"{skipped.error}; statistics().skipped lists all such"
                )
            if self._most is not None and self._position.skipped > self._most and excess is None:
                with suppress(Exception):  # an error that refuses notes
                    failure.error.add_note(f"more than max_skipped={self._most} samples failed")
                excess = failure
        return excess

    def warn(self) -> None:
        """Tell the consumer of the first one, once.

        Called before a batch is taken, so that a warning that is made an error loses none.
        """
        if self._warning is not None and not self._warned:
            self._warned = True
            warnings.warn(self._warning, UserWarning, stacklevel=3)


def _told(error: BaseException) -> str:
    """Return an error's type and message, the beginning of it where it is long."""
    text = ""
    with suppress(Exception):  # its own __str__
        text = str(error)
    name = type(error).__name__
    return shortened(f"{name}: {text}" if text else name, MAX_TOLD)


def _row(failure: Failure) -> int:
    return failure.row
