"""Calls that are made when an object is dropped, and a set of objects that are still there.

Not `weakref.finalize`, which keeps all finalizers of the process in one dict and runs over it at
the interpreter's exit.  Without a GIL that fails when a thread begins or drops an epoch meanwhile,
and then no finalizer of the user's is called (CPython 3.13.15: 6 of 750 runs of such a script).
"""

from __future__ import annotations

import signal
import sys
import weakref
from _thread import interrupt_main, start_new_thread
from queue import SimpleQueue
from threading import main_thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from threadloader._lifetime.exit_and_fork import Phase, at_exit

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

# Takes the place of an argument in a frame that an error keeps.
#
# An exception keeps the frames of its traceback, and each frame keeps its callers, with the values
# that their variables had at the end.  So a function of ours between a thread's loop and the user's
# code, before it returns, drops what leads to a slot, an iterator or a thread.  It does so even if
# nothing fails: the user's code may keep an error that it has recovered from, and that we never
# see.  (So frame.clear() after each failure would not be enough.  Besides, the consumer's frames
# still run when it gets an error, and a cleared frame shows no arguments.)
#
# Not ``del``: IPython asks each frame for its arguments, and shows none of them if one is missing.
DROPPED: Any = None

# Changed by single calls, which are atomic on both builds.
_watched: dict[_Call, tuple[weakref.ref[Any], ...]] = {}


def when_dropped(
    watched: object, function: Callable[..., object], *args: Any
) -> Callable[[], None]:
    """Call a function once an object is gone, at any moment and in any thread; not after the exit.

    Args:
        watched: The object, which `function` and `args` must not refer to.
        function: The function; it must not wait, since it may run inside any lock.  It is called
            again if Ctrl-C came up in it: the second call must do no harm.
        args: Its arguments.

    Returns:
        A function that makes the call now instead, unless it was made.

    Threads:
        all: shared.
    """
    call = _Call(function, args)
    # Twice: Python prints and loses a Ctrl-C that comes up just as the first begins.  The reference
    # that was made last is called first.
    _watched[call] = weakref.ref(watched, call.last), weakref.ref(watched, call.first)
    return call


class _Call:
    """A call that is made once, but again if Ctrl-C came up in it."""

    __slots__ = ("_args", "_function", "_interrupted")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._interrupted = False

    def __call__(self) -> None:
        claimed: list[Any] = []
        try:
            # Popped and noted by one call: an interrupt comes before or after it, and if several
            # threads come at once, one of them finds it.
            claimed.extend(map(_watched.pop, (self,), (None,)))
            if claimed[0] is None:
                return
            self._function(*self._args)
        except KeyboardInterrupt:
            if claimed and claimed[0] is not None:
                _watched[self] = claimed[0]  # to be called again
            raise

    def first(self, _: object, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        try:
            if not _exits():  # else an exit handler that came after `_end` has watched the object
                self()
        except KeyboardInterrupt:
            self._interrupted = True
            self()

    def last(self, reference: object) -> None:
        self.first(reference)
        if self._interrupted:
            _interrupt_later()


class _Marker:
    __slots__ = ("__weakref__",)


def _interrupt_later() -> None:
    """Let Ctrl-C come up again in the main thread, but not here, where it would be lost."""
    left: SimpleQueue[object] = SimpleQueue()
    marker = _Marker()
    end = weakref.ref(marker, left.put)  # written in C: there Ctrl-C does not come up
    start_new_thread(_interrupt, (left, end))
    del end


def _interrupt(left: SimpleQueue[object], end: object) -> None:
    left.get()  # once that frame is gone
    end = DROPPED  # noqa: F841  # it has done its work
    if not callable(signal.getsignal(signal.SIGINT)):
        return  # it would end the process, or be ignored: it was no Ctrl-C that came
    if hasattr(signal, "pthread_kill"):  # wakes the main thread, if it waits for something
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
    else:
        interrupt_main()


class AtomicWeakSet(Generic[T]):
    """A weak set of objects, whose operations are atomic.

    Not a `weakref.WeakSet`: it iterates over its references, which needs a lock where another
    thread may add one meanwhile, and a finalizer can run inside that lock.  Its callback is written
    in Python, so Ctrl-C can come up in it, and is printed and lost there.  Here references are
    added, removed and copied by single calls of C, which are atomic on both builds.

    Threads:
        all: shared, also from finalizers.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def add(self, living: T) -> None:
        """Add an object, which others keep, and whose hash is its identity."""
        self._references.add(weakref.ref(living, self._references.discard))

    def all(self) -> list[T]:
        """Return the objects that are still there."""
        found = [reference() for reference in self._references.copy()]
        return [living for living in found if living is not None]


@at_exit(Phase.END_FINALIZERS)
def _end() -> None:
    """Call no functions any more.

    As the interpreter ends it drops all objects, and what a function needs may be gone by then.
    """
    _watched.clear()
