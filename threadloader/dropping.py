"""What happens once an object is gone.

Not `weakref.finalize`, which keeps all finalizers of the process in one dict and runs over it at
the interpreter's exit: without a GIL that fails, and no finalizer of the user's is called, when a
thread begins or drops an epoch meanwhile (CPython 3.13.15: 6 of 750 runs of a script that does).
"""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DROPPED", "Living", "when_dropped"]

T = TypeVar("T")

# Takes the place of an argument in a frame that an error keeps.  Not ``del``: IPython asks each
# frame for its arguments, and shows none of them where one is missing.
DROPPED: Any = None

# Both by a key of its own for each call: changed and copied, never iterated.
_watched: dict[object, weakref.ref[Any]] = {}
_called_at_exit: dict[object, Callable[[], None]] = {}


def when_dropped(
    watched: object, function: Callable[..., object], *args: Any, at_exit: bool = False
) -> Callable[[], None]:
    """Call a function once an object is gone, at any moment and in any thread.

    Args:
        watched: The object, which `function` and `args` must not refer to.
        function: What is called; it must wait for nobody, since it may run inside any lock.
        args: Its arguments.
        at_exit: Whether it is called at the interpreter's exit, too, if the object is still there.
            Later it never is.

    Returns:
        Calls it now instead, unless it was called.

    Threads:
        all: shared.
    """
    key = object()

    def call(_: object = None) -> None:
        if _watched.pop(key, None) is not None:  # atomic on both builds: one call gets it
            _called_at_exit.pop(key, None)
            function(*args)

    if at_exit:
        _called_at_exit[key] = call
    _watched[key] = weakref.ref(watched, call)
    return call


@atexit.register
def _end() -> None:
    """Call what is to be called at exit, and nothing after that.

    As the interpreter ends it drops all there is, by and by, and what a function needs may be gone.
    """
    for call in _called_at_exit.copy().values():
        call()
    _watched.clear()


class Living(Generic[T]):
    """Those of some objects that are still there.

    Not a `weakref.WeakSet`, which iterates over its references: it needs a lock where another
    thread may add one meanwhile, and a finalizer can run inside that.  Here they are added, taken
    out and copied by single calls, which are atomic on both builds.

    Threads:
        all: shared, also from finalizers.
    """

    def __init__(self) -> None:
        self._references: dict[object, weakref.ref[T]] = {}

    def add(self, living: T) -> None:
        """Add an object, which is kept by others."""
        references, key = self._references, object()
        references[key] = weakref.ref(living, lambda _: references.pop(key, None))

    def all(self) -> list[T]:
        """Return those that are still there."""
        found = (reference() for reference in self._references.copy().values())
        return [living for living in found if living is not None]
