"""An instance of its own for each thread, of a file, connection or client that they can't share.

A thread makes its instance on first use, and closes it itself when it ends.  So no thread closes a
file that another one reads, and objects that only their own thread may close (a `sqlite3`
connection) are closed, too.

That needs no hook in the code that runs the threads: a thread that ends drops its storage for
`threading.local`, and the finalizers of its instances run in that very thread, on ordinary and
free-threaded builds alike.  By then its storage is gone, so they must not ask for it: CPython
would give the thread a new one, and never free it (0.5 KiB, tried on 3.11 and 3.13t).  There is
one `threading.local` for all, never dropped.  With one for each `PerThread`, and a weak reference
to it from each thread, 3 of 40 runs that dropped them all the time crashed or hung on 3.13t; with
this one, none.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from threadloader._lifetime import Phase, at_exit, in_forked_child, when_dropped

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


@final
class PerThread(Generic[T]):
    """An object of which each thread has its own instance, made on first use and closed at the end.

    Keep it on a dataset, and call it where a sample is read::

        self.file = PerThread(lambda: h5py.File(path))
        ...
        return self.file()["images"][index]

    The thread that made an instance closes it, once: when it calls `close`, when it ends, when it
    drops this object, or when it leaves the interpreter.  If another thread drops this object, it
    does so when it next makes an instance of anything, or ends.  A daemon thread that is cut off
    by the interpreter's exit closes nothing.

    A copy is the object itself, so that all copies of a dataset have one instance in a thread.
    Pickling sends ``factory`` and ``close``, but no instance.  A forked child makes its own
    instances and leaves its parent's alone.

    Args:
        factory: Makes an instance, in the thread that asks.  It may use other objects of this
            kind, whose instances are closed after the one that it makes.
        close: Closes an instance.  The default calls its ``close()``, or else its ``__exit__()``,
            if it has one of them.  An error at the end of a thread goes to `sys.unraisablehook`,
            and the thread's other instances are closed all the same.

    Raises:
        TypeError: ``factory`` can't be called.

    Threads:
        all: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name
    __slots__ = ("__weakref__", "_close", "_factory", "_key")

    def __init__(
        self, factory: Callable[[], T], close: Callable[[T], object] | None = None
    ) -> None:
        if not callable(cast("object", factory)):
            msg = f"factory makes an instance, but {factory!r} can't be called: use a lambda"
            raise TypeError(msg)
        self._factory = factory
        self._close = close
        self._key = _Key()
        when_dropped(self, _drop, self._key)

    def __call__(self) -> T:
        """Return the calling thread's instance, which is made now if there is none.

        Raises:
            Exception: The factory's error; the next call tries again.
        """
        opened, place = _here.opened, (self._key, get_ident())
        mine: _Opened[T] | None = opened.get(place)
        if mine is None:
            opened.close_dropped()
            mine = opened[place] = _Opened(self._factory(), self._close or _close)
        return mine.instance

    def close(self) -> None:
        """Close the calling thread's instance, if there is one; the next call makes another.

        Other threads keep theirs.

        Raises:
            Exception: The error of closing it; it counts as closed.
        """
        opened = _here.opened.pop((self._key, get_ident()), None)
        if opened is not None:
            opened.close()

    def __copy__(self) -> PerThread[T]:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> PerThread[T]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self._factory, self._close)


def _close(instance: Any) -> None:
    if hasattr(instance, "close"):
        instance.close()
    elif hasattr(instance, "__exit__"):
        instance.__exit__(None, None, None)


class _Key:
    """Stands for a `PerThread` in the storage of threads, and does not keep it alive."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = False  # only ever set; read and written whole, on both builds


class _Opened(Generic[T]):
    """An instance that is closed on request, or when it is dropped.

    An error in ``__del__`` goes to `sys.unraisablehook`, and the thread that dropped it goes on.
    """

    __slots__ = ("_close", "_process", "instance")

    def __init__(self, instance: T, close: Callable[[T], object]) -> None:
        self.instance = instance
        self._close: Callable[[T], object] | None = close
        self._process = os.getpid()

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close(self.instance)

    def __del__(self) -> None:
        if self._process == os.getpid():
            self.close()
        else:
            _here.inherited.append(self.instance)


class _OpenedHere(dict[tuple[_Key, int], _Opened[Any]]):
    """The instances of one thread, the last at the end; no other thread sees them.

    The thread is in the keys, too: in one of some hundred runs of the tests, on 3.13t, a thread
    found the storage of another that had ended (not found out), and must not use its instances.

    A finalizer may change it in the middle of anything, so each step is a single call.
    """

    __slots__ = ()

    def close_dropped(self) -> None:
        """Close instances whose `PerThread` was dropped by another thread."""
        for place in reversed(list(self)):
            if place[0].dropped:
                self.pop(place, None)

    def close_all(self) -> None:
        """Close all instances, the last first."""
        with suppress(KeyError):  # there is none left
            while True:
                self.popitem()

    def __del__(self) -> None:
        while self:  # nobody else can reach it any more
            self.popitem()


class _Here(threading.local):
    """The storage of the calling thread."""

    def __init__(self) -> None:
        self.opened = _OpenedHere()
        # A parent's instances, in a forked child: kept, as their own finalizers close them, too,
        # and SQLite for one would remove the log that the parent still writes.
        # Source: "Carrying an open database across a fork" in sqlite.org/howtocorrupt.html.
        self.inherited: list[Any] = []


_here = _Here()


def _drop(key: _Key) -> None:
    """Close the calling thread's instance of a `PerThread` that is gone; others close their own."""
    key.dropped = True
    # The collector may come in the middle of `_Here`'s own beginning: there is nothing opened then.
    opened: _OpenedHere | None = getattr(_here, "opened", None)
    if opened is not None:
        opened.pop((key, get_ident()), None)


@in_forked_child  # where instances of the parent's are not closed; see `_Opened`
@at_exit(Phase.CLOSE_INSTANCES)
def close_here() -> None:
    """Close all instances of the calling thread, while the interpreter is still whole."""
    _here.opened.close_all()
