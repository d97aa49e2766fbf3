"""Errors on their way to the consumer: as the user raised them, with a note, without our frames."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from threadloader.errors import SampleError

if TYPE_CHECKING:
    from types import TracebackType

    from threadloader._order.tickets import PlannedBatch

__all__ = ["Failure", "failure_of", "failure_of_copy", "strip", "without_stop"]

_PACKAGE = __name__.partition(".")[0]


class Failure(NamedTuple):
    """An error and its row; of several the lowest row is raised."""

    error: BaseException
    row: int


def failure_of(error: BaseException, row: int | None, plan: PlannedBatch, place: str) -> Failure:
    """Return an error for the consumer: with a note, and without our own frames."""
    strip(error)
    error = without_stop(error)
    try:
        where = f"in {place}, batch {plan.sequence}"
        if row is not None and row < len(plan.indices):
            index = plan.index_of(row) if plan.label == "index" else row
            where += f", {plan.label} {index!r}"
        error.add_note(where)
    except KeyboardInterrupt:
        raise  # in the consumer's thread
    except BaseException:  # noqa: BLE001, S110  # an index without a repr(), no notes
        pass
    return Failure(error, row or 0)


def failure_of_copy(error: BaseException, plan: PlannedBatch, device: object) -> Failure:
    """Return an error of copying a batch for the consumer: with a note, and without our frames.

    Only frames of the user's ``to()``, say, are left: ours would keep slots.
    """
    strip_all(error)
    error = without_stop(error)
    with suppress(BaseException):  # an error that refuses notes
        error.add_note(f"copying batch {plan.sequence} to {device}")
    return Failure(error, 0)


def without_stop(error: BaseException) -> BaseException:
    """Return the error, or a `SampleError` for StopIteration, which would end the epoch."""
    if not isinstance(error, StopIteration):
        return error
    stopped = SampleError("loading a sample raised StopIteration")
    stopped.__cause__ = error
    return stopped


def strip(error: BaseException) -> None:
    """Take our own frames off the traceback of an error of the user's code."""
    # Not by attribute or method: an exception's class may be a frozen dataclass, or have its own.
    BaseException.with_traceback(error, _without_our_frames(error.__traceback__))


def strip_all(error: BaseException) -> None:
    """Take our own frames off even if there are no others, as after Ctrl-C: they keep slots."""
    users = _without_our_frames(error.__traceback__)
    BaseException.with_traceback(error, None if users is error.__traceback__ else users)


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Skip the frames between a worker's loop and the user's code."""
    inner = traceback
    while inner is not None:
        module = str(inner.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] != _PACKAGE:
            return inner
        inner = inner.tb_next
    return traceback  # no code but ours: that is what there is to see
