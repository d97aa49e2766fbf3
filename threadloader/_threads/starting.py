"""Threads that can be started, and waited for, where Ctrl-C can come up at any moment.

`Thread.start` waits on a condition until the new thread runs.  An interrupt inside of it leaves the
condition locked: the new thread would wait for that lock for ever, and so would its `join`.  Only
the main thread is interrupted.  And a thread without memory may end before it can say that it runs.
So another thread starts threads in the place of the one that waits.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import start_new_thread
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


LOOK_SECONDS, LOOKS = 0.1, 50  # until threads are given up of which none begins


class Joinable(Thread):
    """A thread that can be joined again after Ctrl-C came up in `join`.

    Up to CPython 3.12, a running thread counts as ended after an interrupt in its `join` or
    `is_alive`.  Later ones need neither method here.

    Args:
        options: As for `Thread`.

    Attributes:
        died: Set before the start: called, in the thread, with the error that ends it; None lets
            that be printed.

    Invariants:
        1. ``_runs`` is released once, by the thread, when it has run; a waiting thread holds it
           for a moment.  Nothing is guarded by it.

    Threads:
        run: the thread itself.
        join: shared, once it was started.
        is_alive: shared.
    """

    died: Callable[[BaseException], None] | None = None

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
        self._began, died = True, self.died
        try:
            super().run()
            self.died = None
        except BaseException as error:
            if died is None:
                raise
            tries = 200  # as memory runs out here, too, which needs little
            while tries:
                tries -= 1
                try:
                    self.died = None
                    died(error)
                except (MemoryError, SystemError):  # CPython may forget to set the first
                    self.died = died
                    continue
                break
        finally:
            died = None  # this frame stays with the error
            self._runs.release()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread, which was started, has ended."""
        here = os.getpid() == self._pid  # in a forked child it does not run
        if timeout is None and here and sys.version_info < (3, 13):
            with self._runs:
                pass
        super().join(timeout)

    @property
    def lost(self) -> bool:
        """Whether the thread has ended, and could not call `died`, as for want of memory."""
        return self.ident is not None and not self.is_alive() and self.died is not None

    def is_alive(self) -> bool:
        """Whether the thread was started, and has not ended."""
        here = os.getpid() == self._pid
        if self._began and self._runs.locked() and here and sys.version_info < (3, 13):
            return True
        return super().is_alive()


class _Guard:
    """Dies with the thread that has it as its argument, whether that has run or not."""

    __slots__ = ("__weakref__",)


def start_all(threads: Sequence[Thread], check: Callable[[], None] | None = None) -> None:
    """Start threads, and return when they run; after an error, those before it run.

    Args:
        threads: The threads.
        check: Called before each, in the thread that starts it; its error is raised.

    Raises:
        RuntimeError: A thread can't be started, or has no memory to begin.
    """
    answers: SimpleQueue[object] = SimpleQueue()  # wakes this thread
    outcome: list[BaseException | None] = []  # one, when all were started
    guard: Any = _Guard()
    gone: ref[Any] = ref(guard, answers.put)
    run: Callable[..., object] = copy_context().run  # since 3.14 a thread may have that of another
    error = None
    try:
        try:
            start_new_thread(run, (_start, guard, threads, check, outcome, answers))
            guard = None
            _wait(threads, outcome, gone, answers)
        except RuntimeError:  # not even that thread can be started
            raise
        except BaseException:  # Ctrl-C: from here on they run, so they can be stopped and joined
            guard = None
            _wait(threads, outcome, gone, answers)
            raise
        if not outcome:
            msg = "can't start new thread: it does not begin, as for want of memory"
            raise RuntimeError(msg)
        error = outcome[0]
        if error is not None:
            raise error
    finally:
        del error, guard, outcome  # they lead to this frame


def _wait(
    threads: Sequence[Thread],
    outcome: list[BaseException | None],
    gone: ref[Any],
    answers: SimpleQueue[object],
) -> None:
    """Wait until the threads were started, or that is known not to come about.

    `Thread.start` waits for ever for a thread that ends before it has run a line of Python.  Nobody
    hears of that, so this one looks, as long as others don't begin either.
    """
    looks, begun = 0, 0
    while not outcome and gone() is not None and looks < LOOKS:
        try:
            answers.get(timeout=LOOK_SECONDS)
        except Empty:
            now = sum(thread.ident is not None for thread in threads)
            looks, begun = looks + 1 if now == begun else 0, now


def start_each(threads: Sequence[Thread], check: Callable[[], None] | None) -> None:
    """Start threads as `start_all` does, but in the calling thread."""
    for thread in threads:
        if check is not None:
            check()
        thread.start()


def _start(
    _: _Guard,
    threads: Sequence[Thread],
    check: Callable[[], None] | None,
    outcome: list[BaseException | None],
    answers: SimpleQueue[object],
) -> None:
    error = None
    try:
        start_each(threads, check)
    except BaseException as failed:  # noqa: BLE001  # handed to the waiting thread
        error = failed.with_traceback(None)
    outcome.append(error)
    answers.put(None)
    del error
