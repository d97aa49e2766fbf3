"""Errors on their way to the consumer: as the user raised them, with a note, without our frames.

A dataset may raise one error object again and again, also in several threads at once.  So what is
noted of a failure is kept beside the error, and is set on it when it is raised, in the place of
what was noted of others.  What becomes of a sample that fails is the argument ``on_error``.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from threadloader.errors import ClosedError, SampleError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from threadloader._order.seeds import EpochSeeds
    from threadloader._order.tickets import PlannedBatch


_PACKAGE = __name__.partition(".")[0]


class Failure(NamedTuple):
    """An error and its row; of several the lowest row is raised."""

    error: BaseException
    row: int
    notes: tuple[str, ...] = ()  # ours, which the error has when it is raised
    is_of_row: bool = False  # whether that row failed, and not the whole batch

    def also(self, note: str) -> Failure:
        """Return the failure with one note more."""
        return self._replace(notes=(*self.notes, note))


class Origin(NamedTuple):
    """Where an error comes from, so that what failed can be made again."""

    plan: PlannedBatch
    row: int | None  # None for the whole batch
    seeds: EpochSeeds


class _Note(str):
    """A note of ours, which is told from the user's own.

    Attributes:
        origin: Of the error; None if that is not known.
    """

    __slots__ = ("origin",)

    origin: Origin | None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle it as a string: errors are read where this package is not installed."""
        return str, (str(self),)


def set_notes(error: BaseException, notes: tuple[str, ...], origin: Origin | None = None) -> None:
    """Set our notes on an error, in the place of those that it has of an earlier failure.

    The user's own notes stay.  An error that refuses notes has none.

    Args:
        error: The error.
        notes: Their texts.
        origin: See `origin_of`.
    """
    ours = list(map(_Note, notes))
    for note in ours:
        note.origin = origin
    with suppress(Exception):
        _exchange_notes(error, ours)


def _exchange_notes(error: BaseException, ours: list[_Note]) -> None:
    before = getattr(error, "__notes__", [])
    if not isinstance(before, list):
        return
    users = [note for note in before if type(note) is not _Note]
    if not ours and len(users) == len(before):
        return
    if type(error).add_note is BaseException.add_note:
        # By one assignment: another thread that does the same leaves its notes or these.
        error.__notes__ = [*users, *ours]
        return
    if len(users) < len(before):
        error.__notes__ = users
    for note in ours:
        error.add_note(note)


def origin_of(error: BaseException) -> Origin | None:
    """Return where an error comes from that a loop got; None if no note says so."""
    notes = [note for note in getattr(error, "__notes__", []) if isinstance(note, _Note)]
    return notes[-1].origin if notes else None


def failure_of(error: BaseException, row: int | None, plan: PlannedBatch, place: str) -> Failure:
    """Return an error for the consumer: with a note, and without our own frames."""
    strip(error)
    error = without_stop(error)
    notes: tuple[str, ...] = ()
    is_of_row = row is not None and row < len(plan.indices)
    try:
        where = f"in {place}, batch {plan.sequence}"
        if row is not None and is_of_row:
            index = plan.index_of(row) if plan.label == "index" else row
            where += f", {plan.label} {index!r}"
        # Set on the error by the thread that shows it: others may fail with the same object.
        hint = hint_of(error)
        notes = (where,) if hint is None else (where, hint)
    except KeyboardInterrupt:
        raise  # in the consumer's thread
    except BaseException:  # noqa: BLE001, S110  # an index without a repr()
        pass
    return Failure(error, row or 0, notes, is_of_row)


def failure_of_copy(error: BaseException, plan: PlannedBatch, device: object) -> Failure:
    """Return an error of copying a batch for the consumer: with a note, and without our frames.

    Only frames of the user's ``to()``, say, are left: ours would keep slots.
    """
    strip_all(error)
    error = without_stop(error)
    notes: tuple[str, ...] = ()
    with suppress(BaseException):  # a device without a str()
        notes = (f"copying batch {plan.sequence} to {device}",)
        set_notes(error, notes)
    return Failure(error, 0, notes)


def without_stop(error: BaseException, what: str = "loading a sample") -> BaseException:
    """Return the error, or a `SampleError` for StopIteration, which would end the epoch."""
    if not isinstance(error, StopIteration):
        return error
    stopped = SampleError(f"{what} raised StopIteration")
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


_SIGNAL = (
    "a worker is a thread, and signals are for the main thread: for a limit on the time of a "
    "sample give the loader timeout=, or the read itself one"
)
_LOOP = (
    "a worker is a thread, which has no event loop before it makes one: call asyncio.run(...), or "
    "asyncio.set_event_loop(asyncio.new_event_loop()) once in worker_init_fn"
)
_RANDOM = (
    "while there are workers, random functions draw from the sample's stream, and a compiler may "
    "not know them: compile before the loop, or choose isolate_rng=False"
)
# A package that the error's class is of, a part of its text, and what to do.
_HINTS = (
    ("builtins", "signal only works in main thread", _SIGNAL),
    ("builtins", "There is no current event loop in thread", _LOOP),
    ("torch._dynamo", "random", _RANDOM),
    ("numba", "random", _RANDOM),
)


def hint_of(error: BaseException) -> str | None:
    """Return what to do about an error; None for one that has nothing to do with threads."""
    module = type(error).__module__
    hints = [(part, hint) for package, part, hint in _HINTS if module.startswith(package)]
    return next((hint for part, hint in hints if part in str(error)), None)


Action = Literal["raise", "skip"]
# A function is called with the error and the sample's index.
OnError: TypeAlias = "Action | Callable[[Exception, Any], Action]"

# Out of files, or of memory: no error of one sample.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def error_to_raise(on_error: OnError, error: BaseException, index: Any) -> BaseException | None:
    """Return the error to raise for a sample that failed; None if the sample is left out.

    Args:
        on_error: The user's argument.
        error: The sample's error.
        index: The sample's index.
    """
    if on_error == "raise" or not isinstance(error, Exception):
        return error
    if isinstance(error, StateError | ClosedError):  # of the loader, not of a sample
        return error
    if on_error == "skip":
        return error if _is_of_process(error) else None
    try:
        answer: object = on_error(error, index)
    except BaseException as other:  # noqa: BLE001  # handed to the consumer
        return without_stop(other)
    if isinstance(answer, str) and answer in ("raise", "skip"):
        return error if answer == "raise" else None
    return TypeError(f"on_error is to return 'raise' or 'skip', and returned {answer!r}")


def _is_of_process(error: Exception) -> bool:
    """Whether an error is the process's, so that all other samples would be left out, too."""
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, ImportError | MemoryError)
