"""Samples that fail: what is done about them, and what is told of those that were left out.

A batch is shortened, never refilled from later indices: so what is in a batch follows from the
order and the data alone, whatever the number of threads, and from any batch on.
"""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader.failure import Failure
    from threadloader.ticket import PlannedBatch

__all__ = ["OnError", "Skipped", "SkippedSamples", "Tally", "refusal"]

Action = Literal["raise", "skip"]
# A function is given the error and the sample's index.
OnError: TypeAlias = "Action | Callable[[Exception, Any], Action]"

MAX_LISTED = 1000  # samples: the latest are kept, as text


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch."""

    batch: int  # position of the batch in its epoch, from 0
    index: Any  # the sampler's; of an iterable dataset how many samples were read before it
    error: str  # its type and message


class SkippedSamples:
    """The samples that one loader has left out.

    Threads:
        all: consumer.
    """

    def __init__(self) -> None:
        self.count = 0
        self.latest: deque[Skipped] = deque(maxlen=MAX_LISTED)

    def add(self, plan: PlannedBatch, failure: Failure) -> None:
        """Count a sample that was left out of a batch."""
        self.count += 1
        indexed = plan.label == "index"
        index = plan.indices[failure.row] if indexed else plan.position + failure.row
        error = f"{type(failure.error).__name__}: {failure.error}"
        self.latest.append(Skipped(plan.sequence, index, error))


class Short(Protocol):
    """A batch that samples may have been left out of."""

    plan: PlannedBatch
    skipped: list[Failure]  # instead of rows
    unread: list[Failure]  # of an iterable dataset, between rows


class Tally:
    """The samples left out in one epoch, and how many that may be.

    Args:
        samples: Of all epochs.
        most: In this one; None for any number.

    Threads:
        all: consumer.
    """

    def __init__(self, samples: SkippedSamples, most: int | None) -> None:
        self._samples = samples
        self._most = most
        self._count = 0

    def add(self, batch: Short) -> Failure | None:
        """Count what was left out of a batch; return the first that is one too many."""
        if not (batch.skipped or batch.unread):
            return None
        plan = batch.plan
        for failure in [*batch.unread, *sorted(batch.skipped, key=_row)]:
            self._samples.add(plan, failure)
            self._count += 1
            if self._count == 1:
                warnings.warn(
                    f"a sample was left out (batch {plan.sequence}, row {failure.row}): "
                    f"{failure.error!r}; statistics().skipped lists all such",
                    UserWarning,
                    stacklevel=5,
                )
            if self._most is not None and self._count > self._most:
                failure.error.add_note(f"more than max_skipped={self._most} samples failed")
                return failure
        return None


def refusal(on_error: OnError, error: BaseException, index: Any) -> BaseException | None:
    """Return what is raised for a sample that failed; None if it is to be left out."""
    if on_error == "raise" or not isinstance(error, Exception):
        return error
    if on_error == "skip":
        return None
    try:
        answer: object = on_error(error, index)
    except BaseException as other:  # noqa: BLE001  # handed to the consumer
        return other
    if answer == "raise":
        return error
    if answer == "skip":
        return None
    return TypeError(f"on_error is to return 'raise' or 'skip', and returned {answer!r}")


def _row(failure: Failure) -> int:
    return failure.row
