"""What is done with a sample that fails: the argument ``on_error``."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from threadloader._fetch.failure import without_stop
from threadloader.errors import ClosedError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OnError", "error_to_raise"]

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
