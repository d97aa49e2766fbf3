"""The exceptions and warnings of the package; a wrong argument raises one of Python's own.

ThreadLoaderError
├── ClosedError   (RuntimeError)   the iterator or loader was closed
├── DataError     (ValueError)     a file is not what it should be: truncated, corrupt, hostile
├── RankError     (RuntimeError)   ranks that train together differ, or one did not come
├── RemoteError   (OSError)        a URL could not be read, after all retries
├── SampleError   (RuntimeError)   a sample raised StopIteration, which would end the epoch unseen
└── StateError    (ValueError)     a saved state does not belong to this loader

ThreadLoaderWarning         (UserWarning)
├── EmptyReplicaWarning     a replica, or rank, of an iterable dataset gave nothing, and others did
├── GilWarning              a package switched the GIL on, on a build that can do without
└── SlowLoadingWarning      a loop waited for batches in a notable share of its time

An error of the user's dataset, sampler or collate function is never wrapped: it arrives as the
object that was raised, with a note that names worker, batch and index.

The text of each class ends with a link to its section of `docs/errors.md`, with cause and remedy.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from operator import index as operator_index
from typing import Any

__all__ = [
    "ClosedError",
    "DataError",
    "EmptyReplicaWarning",
    "GilWarning",
    "RankError",
    "RemoteError",
    "SampleError",
    "SlowLoadingWarning",
    "StateError",
    "ThreadLoaderError",
    "ThreadLoaderWarning",
    "shortened",
]

REPOSITORY = "https://github.com/threadloader/threadloader/blob/main/"  # the site has it from here
_LONGEST_NAME = 200  # characters of a member's name in a message
_LONGEST_MESSAGE = 1000  # characters: a hostile archive chooses names, which messages quote


def shortened(text: str, most: int = _LONGEST_NAME) -> str:
    """Return a text, or its beginning with "..." where it has more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _link_of(kind: type) -> str:
    """Return a line with the link to a public class; "" for a class that is not public."""
    name = kind.__name__
    return f"\nSee {REPOSITORY}docs/errors.md#{name.lower()}" if name in __all__ else ""


def text_of(error: BaseException) -> str:
    """Return the text of an error, without its link: for a sentence around it."""
    return str(error).removesuffix(_link_of(type(error)))


class ThreadLoaderError(Exception):
    """Base of all exceptions of threadloader."""

    def __str__(self) -> str:
        return super().__str__() + _link_of(type(self))


class ClosedError(ThreadLoaderError, RuntimeError):
    """The iterator was closed; call ``iter(loader)`` for a new one."""


class DataError(ThreadLoaderError, ValueError):
    """A file is not what it should be; the message says which file, and where in it.

    Args:
        message: What is wrong; only its first 1,000 characters are kept.
        path: The file, or its URL.
        member: Name in the archive, if it is one.
        offset: Where in the file (bytes), if that is known.
    """

    def __init__(
        self, message: str, path: str, *, member: str | None = None, offset: int | None = None
    ) -> None:
        message = shortened(message, _LONGEST_MESSAGE)
        places = [path]
        if member is not None:
            places.append(f"member {shortened(member)!r}")
        if offset is not None:
            places.append(f"offset {offset:,}")
        super().__init__(f"{', '.join(places)}: {message}")
        self.message, self.path, self.member, self.offset = message, path, member, offset

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), member=self.member, offset=self.offset)
        return make, (self.message, self.path), vars(self)


class RankError(ThreadLoaderError, RuntimeError):
    """Ranks that train together do not load the same, or one did not come; the message names it."""


class RemoteError(ThreadLoaderError, OSError):
    """A URL could not be read, after all retries; the last error is ``__cause__``.

    Args:
        message: What is wrong.
        path: The URL.
        offset: Where in the file (bytes), if that is known.
    """

    def __init__(self, message: str, path: str, *, offset: int | None = None) -> None:
        place = path if offset is None else f"{path}, offset {offset:,}"
        super().__init__(f"{place}: {message}")
        self.message, self.path, self.offset = message, path, offset

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), offset=self.offset), (self.message, self.path), vars(self)


class SampleError(ThreadLoaderError, RuntimeError):
    """Loading a sample raised StopIteration; that error is ``__cause__``."""


class StateError(ThreadLoaderError, ValueError):
    """A saved state does not belong to this loader; the message says what differs."""


class ThreadLoaderWarning(UserWarning):
    """Base of the warnings of threadloader, and the category of those that have no other."""

    def __str__(self) -> str:
        return super().__str__() + _link_of(type(self))


class EmptyReplicaWarning(ThreadLoaderWarning):
    """A replica, or rank, of an iterable dataset had no batch, and others had some."""


class GilWarning(ThreadLoaderWarning):
    """An imported package switched the GIL on, on a free-threaded build."""


class SlowLoadingWarning(ThreadLoaderWarning):
    """A loop waited for batches in over 5% of its time; the text names the cause."""


def checked_count(name: str, value: Any, *, at_least: int = 0) -> int:
    """Return a whole number as an int.

    Args:
        name: Of the argument.
        value: Its value; of Python or NumPy.
        at_least: The least that it may be.

    Raises:
        TypeError: It is none.
        ValueError: It is too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        msg = f"{name} must be a whole number, but got {value!r}"
        raise TypeError(msg)
    number = operator_index(value)
    if number < at_least:
        msg = f"{name} must be at least {at_least}, but got {number}"
        raise ValueError(msg)
    return number


def checked_index(index: int, length: int, what: str) -> int:
    """Return an index from the beginning; a negative one counts from the end.

    Args:
        index: Of a sample.
        length: Number of samples.
        what: Samples in words, for the error.

    Raises:
        IndexError: There is no such sample.
    """
    number = operator_index(index)
    number += length if number < 0 else 0
    if not 0 <= number < length:
        msg = f"index {index} is out of range: there are {length} {what}"
        raise IndexError(msg)
    return number


def warn_user(message: str, category: type[Warning] = ThreadLoaderWarning) -> None:
    """Warn of something, in the name of the innermost frame that is not of this package.

    Args:
        message: The text.
        category: Of the warning; UserWarning for torch's own texts.
    """
    frame, level = sys._getframe(1), 2  # noqa: SLF001  # as `warnings.warn` itself
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == __name__.partition(".")[0]
