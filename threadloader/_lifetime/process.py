"""The end of the process, and forks: what the package does then, and in which order.

At the interpreter's exit, after the user's handlers that were registered later:

1. `Phase.CANCEL_EPOCHS`: no thread starts any more, and no sample.
2. `Phase.END_THREADS`: pools stop, and their threads are waited for, each within its limit.
3. `Phase.CLOSE_INSTANCES`: the main thread closes what it has of each `PerThread`.
4. `Phase.CALL_FINALIZERS`: what is to be called at exit is called, and nothing after that.

So it is whatever is imported first: each owner names the phase in which it has something to do.

A forked child has one thread, and a lock that another thread held at the fork stays locked for
ever.  There each owner makes anew what it keeps for the process; none needs another for that.
"""

from __future__ import annotations

import atexit
import os
from enum import Enum, auto
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Phase", "at_exit", "end_thread_at_exit", "in_forked_child", "is_exiting"]

F = TypeVar("F", bound="Callable[[], object]")


class Phase(Enum):
    """What is done at the interpreter's exit, in this order."""

    CANCEL_EPOCHS = auto()
    END_THREADS = auto()
    CLOSE_INSTANCES = auto()
    CALL_FINALIZERS = auto()


_at_exit: dict[Phase, Callable[[], object]] = {}  # one owner each
_exiting = False  # only ever set; read and written whole, on both builds


def at_exit(phase: Phase) -> Callable[[F], F]:
    """Return a decorator of the function that is called in a phase of the interpreter's exit."""

    def register(function: F) -> F:
        _at_exit[phase] = function
        return function

    return register


def in_forked_child(function: F) -> F:
    """Call a function in each forked child, before the user's code goes on there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def is_exiting() -> bool:
    """Whether the interpreter exits; then no thread may start, as nobody would wait for it."""
    return _exiting


def end_thread_at_exit() -> None:
    """End the calling thread without a word if the interpreter exits.

    What consumes batches then, outside the main thread, is a daemon thread that the user left
    to its fate: there is nobody to tell, and a traceback on the screen would look like a bug.

    Raises:
        SystemExit: Ends the thread; `threading` prints nothing for it.
    """
    if _exiting and current_thread() is not main_thread():
        raise SystemExit


def _run(phase: Phase) -> None:
    """Go through one phase."""
    global _exiting  # noqa: PLW0603  # there is one interpreter to leave
    _exiting = True
    function = _at_exit.get(phase)
    if function is not None:
        function()


# One handler each: where one fails, or is interrupted, Python tells so and calls the next.
for _phase in reversed(Phase):
    atexit.register(_run, _phase)  # the last is called first
