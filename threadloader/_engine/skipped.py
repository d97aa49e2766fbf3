"""The samples that were left out of their batches: how many, and which.

A batch is shortened, never refilled from later indices.  So its content follows from the order and
the data alone, whatever the number of threads, and also after resuming.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

from threadloader.errors import shortened, text_of, warn_user

if TYPE_CHECKING:
    from threadloader._engine.open_batch import OpenBatch
    from threadloader._order.resume import Position
    from threadloader._worker.failure import Failure


MAX_LISTED = 1000  # samples; the latest ones
MAX_TEXT = 1000  # characters of an error


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch."""

    batch: int  # position of the batch in its epoch, from 0
    index: Any  # for an iterable dataset the number of samples that were read before it
    error: str  # the type and message, at most 1,000 characters


class SkippedSamples:
    """The samples that one loader has left out.

    Invariants, whenever ``_lock`` is not held:
        1. ``_count`` is the length of ``_latest``, or more than `MAX_LISTED`.

    Threads:
        all: shared; two consumers may have an iterator each.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # re-entrant for a signal handler that asks for a report
        # All below: guarded by _lock.
        self._count = 0
        self._latest: deque[Skipped] = deque(maxlen=MAX_LISTED)

    def add(self, skipped: Skipped) -> None:
        """Count a sample."""
        with self._lock:
            self._count += 1
            self._latest.append(skipped)

    def count_and_latest(self) -> tuple[int, tuple[Skipped, ...]]:
        """Return how many there are, and the latest ones."""
        with self._lock:
            return self._count, tuple(self._latest)


class Tally:
    """Counts the samples that are left out in one epoch.

    Args:
        samples: Those of all epochs.
        position: Of the epoch; has the number of samples left out so far, for saved states.
        most: Samples that may be left out in this epoch; None for any number.
        in_step: Whether other ranks have a batch for each of this one's, so that none is left out.

    Threads:
        all: consumer.
    """

    def __init__(
        self, samples: SkippedSamples, position: Position, most: int | None, *, in_step: bool
    ) -> None:
        self._samples = samples
        self._position = position
        self._most, self._in_step = most, in_step
        self._warning: str | None = None
        self.must_warn = False  # whether `warn` has something to do

    def add(self, batch: OpenBatch) -> Failure | None:
        """Count the samples left out of a batch.

        Returns:
            One to raise: the first beyond the limit, or of a batch that other ranks need; or None.
        """
        plan = batch.plan
        excess = None
        for failure in sorted(batch.skipped, key=attrgetter("row")):
            index = plan.index_of(failure.row)
            skipped = Skipped(plan.sequence, index, _text_of(failure.error))
            self._samples.add(skipped)
            self._position.skipped += 1
            if self._warning is None:
                self._warning = (
                    f"a sample was left out (batch {plan.sequence}, index {index!r}): "
                    f"{skipped.error}; statistics().skipped lists all such"
                )
                self.must_warn = True
            if self._most is not None and self._position.skipped > self._most and excess is None:
                excess = failure.also(f"more than max_skipped={self._most} samples failed")
        if self._in_step and batch.empty and excess is None:
            excess = batch.skipped[0].also(
                "all samples of the batch failed: it can't be left out, since other ranks have a "
                "batch for the same step"
            )
        return excess

    def warn(self) -> None:
        """Warn the consumer of the first sample, once.

        Called before a batch is taken, so that no batch is lost if warnings are made errors.
        """
        if self.must_warn and self._warning is not None:
            self.must_warn = False
            warn_user(self._warning)


def _text_of(error: BaseException) -> str:
    """Return the type and message of an error, shortened."""
    text = ""
    with suppress(Exception):  # its own __str__
        text = text_of(error)
    name = type(error).__name__
    return shortened(f"{name}: {text}" if text else name, MAX_TEXT)
