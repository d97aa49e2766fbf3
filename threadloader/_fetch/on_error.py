"""What is done about a sample that fails: the ``on_error`` argument."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from threadloader._fetch.failure import without_stop
from threadloader.errors import ClosedError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OnError", "refusal"]

Action = Literal["raise", "skip"]
# A function is given the error and the sample's index.
OnError: TypeAlias = "Action | Callable[[Exception, Any], Action]"

# Of the process and not of a sample: a package is missing, or all files that may be open are.
_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


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
