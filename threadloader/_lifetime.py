"""What happens when objects are dropped, the interpreter exits, or the process forks.

At the interpreter's exit there are six phases:

1. `Phase.CANCEL_EPOCHS`: no thread starts any more, and no sample.
2. `Phase.END_THREADS`: pools stop, and their threads are waited for, each within its limit.
3. `Phase.CLOSE_INSTANCES`: the main thread closes its instance of each `PerThread`.
4. `Phase.LEAVE_RANKS`: other ranks are told which epochs this one has left.
5. `Phase.END_COPIES`: objects that are copies for workers are dropped without a ``__del__``.
6. `Phase.END_FINALIZERS`: nothing is called any more when an object is dropped.

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
import ctypes
import os
import signal
import sys
import weakref
from _thread import interrupt_main, start_new_thread
from contextlib import suppress
from enum import Enum, auto
from queue import SimpleQueue
from threading import RLock, current_thread, get_ident, main_thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[[], object]")
T = TypeVar("T")


class Phase(Enum):
    """What is done at the interpreter's exit, in this order."""

    CANCEL_EPOCHS = auto()
    END_THREADS = auto()
    CLOSE_INSTANCES = auto()
    LEAVE_RANKS = auto()
    END_COPIES = auto()
    END_FINALIZERS = auto()


_at_exit: dict[Phase, Callable[[], object]] = {}  # one owner each
_exiting = False  # in a process only ever set; read and written whole, on both builds
_exit_thread = 0  # which runs the exit


def at_exit(phase: Phase) -> Callable[[F], F]:
    """Return a decorator of the one function that is called in a phase of the exit."""

    def register(function: F) -> F:
        _at_exit[phase] = function  # again after Ctrl-C in an import, say
        return function

    return register


def in_forked_child(function: F) -> F:
    """Call a function in each forked child, before the user's code goes on there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


FORK_SECONDS = 1.0  # how long a fork waits for a lock; far longer than such a lock is held


def fork_waits_for(lock: Callable[[], RLock]) -> None:
    """Let each fork wait until no other thread holds a lock, but not for ever: it is the user's.

    Args:
        lock: Returns the lock; a child makes it anew.
    """

    def acquire() -> None:
        lock().acquire(timeout=FORK_SECONDS)

    def release() -> None:
        with suppress(RuntimeError):  # the lock is not this thread's: it has waited long enough
            lock().release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=acquire, after_in_parent=release)


_importing = RLock()


def importing() -> RLock:
    """Return a lock to hold while a module is imported late, which a fork waits for.

    A child that is forked while another thread imports a module can't import it any more: CPython
    makes no module's lock anew.
    """
    return _importing


fork_waits_for(importing)


@in_forked_child
def _forget_importing() -> None:
    global _importing  # noqa: PLW0603  # of the process, and this is a new one
    _importing = RLock()


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

# Calls that are made when an object is dropped.
#
# Not by `weakref.finalize`, which keeps all finalizers of the process in one dict and runs over it
# at the interpreter's exit.  Without a GIL that fails when a thread begins or drops an epoch
# meanwhile, and then no finalizer of the user's is called (CPython 3.13.15: 6 of 750 runs of such a
# script).

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
            interrupt_later()


class _Marker:
    __slots__ = ("__weakref__",)


def interrupt_later() -> None:
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


# Memory that is leaked on purpose, since freeing it could end the process.
#
# torch frees memory of a device, and page-locked memory, in C++: it asks the device about those who
# use it, in a place where no error can be raised.  So after an error in a kernel, or in a forked
# child, the process ends there, before Python's traceback (pytorch#178154).  Leaking it costs
# nothing then.

_increase = ctypes.pythonapi.Py_IncRef
_increase.argtypes = [ctypes.py_object]
_increase.restype = None


def leak(thing: Any, _increase: Callable[[Any], None] = _increase) -> None:
    """Leak an object: it, and all that it refers to, is never freed.

    A list would not do: the interpreter's exit frees the objects that modules hold.
    """
    _increase(thing)  # a reference that nobody has, and so nobody drops


class DeviceMemory:
    """Memory that a device uses: freed only where that can't end the process.

    Args:
        memory: Whatever owns the memory; it may be set anew.
        check: Asks the device as freeing does; raises an error where freeing would end the process.

    Threads:
        all: any.  It may be dropped by any thread, and from a finalizer.
    """

    __slots__ = ("_check", "_pid", "memory")

    def __init__(self, memory: Any, check: Callable[[], None]) -> None:
        self.memory = memory
        self._check = check
        self._pid = os.getpid()

    def __del__(
        self,
        _getpid: Callable[[], int] = os.getpid,
        _exits: Callable[[], bool] = sys.is_finalizing,
        _leak: Callable[[Any], None] = leak,
    ) -> None:
        # Names of the module may be gone by now: the interpreter may be at its end.
        try:
            if self._pid == _getpid() and not _exits():
                self._check()
                return
        except BaseException:  # noqa: BLE001, S110  # freeing would meet the same error
            pass
        _leak(self.memory)
