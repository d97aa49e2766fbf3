"""Waiting where Ctrl-C can come up at any moment, and stopping a thread that waits.

Not on a `threading.Condition`: it is written in Python, and an interrupt inside of it leaves its
lock held for ever, or releases it twice.  ``with lock`` and `SimpleQueue.get` are written in C: an
interrupt comes before or after them.  A finalizer may stop a thread, inside any lock; so nothing
here takes one: `SimpleQueue.put` is the one call of the standard library that is promised to be
safe there.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


Tokens: TypeAlias = "SimpleQueue[None]"


def wait_until(reached: Callable[[], bool], tokens: Tokens, timeout: float | None) -> bool:
    """Wait until ``reached()`` is true; return False if that takes too long.

    Args:
        reached: Called again with each token.
        tokens: Gets one whenever the answer may have changed.  One too many does no harm.
        timeout: Seconds; None waits for ever.
    """
    end = None if timeout is None else monotonic() + timeout
    while not reached():
        left = None if end is None else end - monotonic()
        if left is not None and left <= 0:
            return False
        try:
            tokens.get(timeout=left)
        except Empty:
            continue  # it may have been reached just now
    return True


class Stop:
    """A flag that is set once, and wakes the threads that wait for it.

    Threads:
        all: shared; ``set`` also from finalizers.
    """

    __slots__ = ("__weakref__", "_waiting", "is_set")

    def __init__(self) -> None:
        self.is_set = False  # only ever set; read and written whole, on both builds
        # The queues of waiting threads.  No lock: storing, popping and copying are atomic on both
        # builds.
        self._waiting: dict[int, SimpleQueue[None]] = {}

    def set(self) -> None:
        """Wake all waiting threads, now and later.  Idempotent."""
        self.is_set = True
        for waiter in self._waiting.copy().values():
            waiter.put(None)

    def add(self, waiter: SimpleQueue[None]) -> None:
        """Let ``waiter`` be woken; at once if the flag is set."""
        self._waiting[id(waiter)] = waiter
        if self.is_set:  # in this order, or it could be set in between and wake nobody
            waiter.put(None)

    def remove(self, waiter: SimpleQueue[None]) -> None:
        """Let ``waiter`` not be woken any more."""
        self._waiting.pop(id(waiter), None)


def is_set(stops: Sequence[Stop]) -> bool:
    """Whether any of ``stops`` is set."""
    return any(stop.is_set for stop in stops)


def wait(stops: Sequence[Stop], seconds: float) -> bool:
    """Wait until any of ``stops`` is set, or time is up; return whether one is set."""
    waiter: SimpleQueue[None] = SimpleQueue()
    for stop in stops:
        stop.add(waiter)
    try:
        waiter.get(timeout=seconds)
    except Empty:
        pass
    finally:
        for stop in stops:
            stop.remove(waiter)
    return is_set(stops)


class _Local(threading.local):
    stops: tuple[Stop, ...] = ()


_here = _Local()


def stops_here() -> tuple[Stop, ...]:
    """Return the flags that end the calling thread's work: in a worker, its pool's."""
    return _here.stops


@contextmanager
def stopped_by(*stops: Stop) -> Iterator[None]:
    """Let `stops_here` return these, too, inside this context."""
    before = _here.stops
    _here.stops = (*before, *stops)
    try:
        yield
    finally:
        _here.stops = before
