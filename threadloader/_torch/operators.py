"""The redirection of torch's random operators, as it is called with torch and without."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from threadloader._lifetime.dropping import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["NoOperators", "RandomOperators"]

T = TypeVar("T")


class RandomOperators(Protocol):
    """The redirection of torch's random operators to the calling thread's stream.

    Threads:
        all: any.
    """

    def redirecting(self) -> AbstractContextManager[None]:
        """Return a context in which the calling thread's operators draw from its stream."""

    def redirected(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function, in the calling thread, as in `redirecting`."""

    def stop(self) -> None:
        """Redirect no operators in the calling thread any more."""


class NoOperators:
    """Redirects nothing: there is no torch, or it lacks what operators are redirected by."""

    def redirecting(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return nullcontext()

    def redirected(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function."""
        try:
            return function(*args)
        finally:
            function, args = DROPPED, ()  # an error keeps this frame

    def stop(self) -> None:
        """Do nothing."""
