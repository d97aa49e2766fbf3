"""The end of the process, and forks: what the package does then, and in which order.

At the interpreter's exit there are five phases:

1. `Phase.CANCEL_EPOCHS`: no thread starts any more, and no sample.
2. `Phase.END_THREADS`: pools stop, and their threads are waited for, each within its limit.
3. `Phase.CLOSE_INSTANCES`: the main thread closes its instance of each `PerThread`.
4. `Phase.LEAVE_RANKS`: other ranks are told which epochs this one has left.
5. `Phase.END_FINALIZERS`: nothing is called any more when an object is dropped.

The order of imports does not matter: each owner names the phase in which it has something to do.
Exit handlers that the user registered after this module was imported come before all phases, and
can load batches.  Those from before come after all phases: iterators are closed there, no thread
can start, and an epoch without threads works.

A forked child has one thread, and a lock that another thread held at the fork stays locked for
ever.  There each owner makes anew what it keeps for the process; none needs another for that.  A
child exits by itself: it does not take part in an exit that another thread of its parent runs.
"""

from __future__ import annotations

import atexit
import os
from enum import Enum, auto
from threading import current_thread, get_ident, main_thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[[], object]")


class Phase(Enum):
    """What is done at the interpreter's exit, in this order."""

    CANCEL_EPOCHS = auto()
    END_THREADS = auto()
    CLOSE_INSTANCES = auto()
    LEAVE_RANKS = auto()
    END_FINALIZERS = auto()


_at_exit: dict[Phase, Callable[[], object]] = {}  # one owner each
_exiting = False  # in a process only ever set; read and written whole, on both builds
_exit_thread = 0  # which runs the exit


def at_exit(phase: Phase) -> Callable[[F], F]:
    """Return a decorator of the function that is called in a phase of the interpreter's exit.

    Raises:
        ValueError: Another module has that phase: its function would not be called any more.
    """

    def register(function: F) -> F:
        owner = _at_exit.get(phase, function).__module__
        if owner != function.__module__:  # the same one: it is imported again, after Ctrl-C say
            msg = f"{phase} belongs to {owner}, so {function.__module__} needs a phase of its own"
            raise ValueError(msg)
        _at_exit[phase] = function
        return function

    return register


def in_forked_child(function: F) -> F:
    """Call a function in each forked child, before the user's code goes on there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def around_fork(before: Callable[[], object], after_in_parent: Callable[[], object]) -> None:
    """Call one function before each fork, and the other one after it in the parent.

    They must not raise, nor wait without a limit: the fork is the user's.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent)


@in_forked_child
def _forget_exit() -> None:
    """Let threads start in a child that a daemon thread forks while the main thread exits."""
    global _exiting  # noqa: PLW0603  # of the process, and this is a new one
    _exiting = _exiting and _exit_thread == get_ident()


def is_exiting() -> bool:
    """Whether the interpreter exits; then no thread may start, as nobody would wait for it."""
    return _exiting


def end_thread_at_exit() -> None:
    """End the calling thread without a word if the interpreter exits.

    Outside the main thread, only a daemon thread of the user's consumes batches then.  Nobody
    would catch an error there, and a traceback on the screen would look like a bug.

    Raises:
        SystemExit: Ends the thread; `threading` prints nothing for it.
    """
    if _exiting and current_thread() is not main_thread():
        raise SystemExit


def _run(phase: Phase) -> None:
    """Go through one phase."""
    global _exiting, _exit_thread  # noqa: PLW0603  # there is one interpreter to leave
    _exit_thread = get_ident()
    _exiting = True
    function = _at_exit.get(phase)
    if function is not None:
        function()


# One handler each: where one fails, or is interrupted, Python prints that and calls the next.
for _phase in reversed(Phase):
    atexit.register(_run, _phase)  # the last is called first
