"""Threads that can be started, and waited for, where Ctrl-C can come up at any moment.

`Thread.start` waits on a condition until the new thread runs.  An interrupt inside of it leaves the
condition locked: the new thread would wait for that lock for ever, and so would its `join`.  Only
the main thread is interrupted, so another thread starts threads in its place.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Joinable", "start_all", "start_each"]

Outcome: TypeAlias = "SimpleQueue[BaseException | None]"


class Joinable(Thread):
    """A thread that can be joined again after Ctrl-C came up in `join`.

    Up to CPython 3.12, a running thread counts as ended after an interrupt in its `join` or
    `is_alive`.

    Args:
        options: As for `Thread`.

    Invariants:
        1. ``_runs`` is released once, by the thread, when it has run; a waiting thread holds it
           for a moment.  Nothing is guarded by it.

    Threads:
        run: the thread itself.
        join: shared, once it was started.
        is_alive: shared.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # A weak set for CPython's own tests.  It has a callback in Python, so Ctrl-C that comes up
        # when the thread is dropped would be printed and lost there.
        getattr(threading, "_dangling", set()).discard(self)
        self._pid = os.getpid()
        self._began = False  # only ever set
        self._runs = Lock()
        self._runs.acquire()

    def run(self) -> None:
        """Run the thread's target."""
        self._began = True
        try:
            super().run()
        finally:
            self._runs.release()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread, which was started, has ended."""
        if timeout is None and os.getpid() == self._pid:  # in a forked child it does not run
            with self._runs:
                pass
        super().join(timeout)

    def is_alive(self) -> bool:
        """Whether the thread was started, and has not ended."""
        if self._began and self._runs.locked() and os.getpid() == self._pid:
            return True
        return super().is_alive()


def start_all(threads: Sequence[Thread], check: Callable[[], None] | None = None) -> None:
    """Start threads, and return when they run; after an error, those before it run.

    Args:
        threads: The threads.
        check: Called before each, in the thread that starts it; its error is raised.

    Raises:
        RuntimeError: A thread can't be started.
    """
    if current_thread() is not main_thread():
        start_each(threads, check)
        return
    outcome: Outcome = SimpleQueue()
    context = copy_context()  # since 3.14 a thread may have that of the one that starts it
    error = None
    try:
        try:
            start_new_thread(context.run, (_start, threads, check, outcome))
            error = outcome.get()
        except RuntimeError:  # not even that thread can be started
            raise
        except BaseException:  # Ctrl-C: from here on they run, so they can be stopped and joined
            outcome.get()
            raise
        if error is not None:
            raise error
    finally:
        del error  # it leads to this frame


def start_each(threads: Sequence[Thread], check: Callable[[], None] | None) -> None:
    """Start threads as `start_all` does, but in the calling thread."""
    for thread in threads:
        if check is not None:
            check()
        thread.start()


def _start(threads: Sequence[Thread], check: Callable[[], None] | None, outcome: Outcome) -> None:
    error = None
    try:
        start_each(threads, check)
    except BaseException as failed:  # noqa: BLE001  # handed to the waiting thread
        error = failed.with_traceback(None)
    # Twice: an interrupt may come up when the first has just been taken.
    outcome.put(error)
    outcome.put(error)
    del error
