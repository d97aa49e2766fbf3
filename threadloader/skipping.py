"""Samples that fail: what is done about them, and what is told of those that were left out.

A batch is shortened, never refilled from later indices: so what is in a batch follows from the
order and the data alone, whatever the number of threads, and from any batch on.  Of an iterable
dataset, whose samples have no indices, the next one is read instead.
"""

from __future__ import annotations

import errno
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from threadloader.errors import ClosedError, StateError, shortened
from threadloader.failure import without_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader.failure import Failure
    from threadloader.position import Position
    from threadloader.ticket import PlannedBatch

__all__ = ["OnError", "Skipped", "SkippedSamples", "Tally", "refusal"]

Action = Literal["raise", "skip"]
# A function is given the error and the sample's index.
OnError: TypeAlias = "Action | Callable[[Exception, Any], Action]"

MAX_LISTED = 1000  # samples: the latest are kept, as text
MAX_TOLD = 1000  # characters of that text
# Of the process and not of a sample: a package is missing, or all files that may be open are.
_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


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


def refusal(on_error: OnError, error: BaseException, index: Any) -> BaseException | None:
    """Return what is raised for a sample that failed; None if it is to be left out."""
    if on_error == "raise" or not isinstance(error, Exception):
        return error
    if isinstance(error, StateError | ClosedError):  # of the loader, not of any sample
        return error
    if on_error == "skip":
        return error if _is_everybodys(error) else None
    try:
        answer: object = on_error(error, index)
    except BaseException as other:  # noqa: BLE001  # handed to the consumer
        return without_stop(other)
    if isinstance(answer, str) and answer in ("raise", "skip"):
        return error if answer == "raise" else None
    return TypeError(f"on_error is to return 'raise' or 'skip', and returned {answer!r}")


def _is_everybodys(error: Exception) -> bool:
    """Whether an error is not the sample's: all others would be left out for it, too."""
    if isinstance(error, OSError):
        return error.errno in _OUT
    return isinstance(error, ImportError | MemoryError)


def _row(failure: Failure) -> int:
    return failure.row
