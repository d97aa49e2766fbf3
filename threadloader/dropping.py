"""What happens once an object is gone.

Not `weakref.finalize`, which keeps all finalizers of the process in one dict and runs over it at
the interpreter's exit: without a GIL that fails, and no finalizer of the user's is called, when a
thread begins or drops an epoch meanwhile (CPython 3.13.15: 6 of 750 runs of a script that does).
"""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["when_dropped"]

_watched: dict[object, weakref.ref[Any]] = {}  # by a key of its own each: changed, never iterated
# As the interpreter ends it drops all there is, by and by, and what a function needs may be gone.
atexit.register(_watched.clear)


def when_dropped(
    watched: object, function: Callable[..., object], *args: Any
) -> Callable[[], None]:
    """Call a function once an object is gone, at any moment and in any thread, but not at exit.

    Args:
        watched: The object, which `function` and `args` must not refer to.
        function: What is called; it must wait for nobody, since it may run inside any lock.
        args: Its arguments.

    Returns:
        Calls it now instead, unless it was called.

    Threads:
        all: shared.
    """
    key = object()

    def call(_: object = None) -> None:
        if _watched.pop(key, None) is not None:  # atomic on both builds: one call gets it
            function(*args)

    _watched[key] = weakref.ref(watched, call)
    return call
