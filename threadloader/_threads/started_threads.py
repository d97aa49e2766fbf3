"""Threads that a worker starts, and tasks that it gives to an executor, know what it knows.

A worker process of torch's has all its threads in it; here a thread that a dataset starts, to read
ahead say, would be nobody's.  So once there are workers `Thread.start` looks whether the calling
thread knows something to hand on, which then surrounds ``run()``, of whatever subclass.

The threads of a `ThreadPoolExecutor` are started by whoever finds too few of them, and then work
for all.  So they know nothing themselves: each task knows what its submitter knew, and the
initializer what the executor's maker did.  Not covered: ``_thread.start_new_thread``, threads of
C libraries, and tasks of other pools, whose threads know what the pool's maker did.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    # Makes the context in which another thread knows what the asking one does.
    Known = Callable[[], AbstractContextManager[None]]
    Ask = Callable[[], Known | None]

__all__ = ["HandingOn"]

_MISSING: Any = object()


class _Local(threading.local):
    submits = False  # whether the calling thread is about to start an executor's thread


_here = _Local()


class HandingOn:
    """What threads hand on to those that they start.

    It is installed once and never undone: others may have replaced the same functions since.

    Args:
        ask: Returns what the calling thread hands on; None if there is nothing, as in all threads
            that have nothing to do with workers.

    Threads:
        install: shared.  No lock, which a child could be forked with: whoever comes second puts
            the same functions in place again, since `dict.setdefault` is atomic on both builds.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._made: dict[str, Any] = {}
        self._installed = False  # only ever set

    def install(self) -> None:
        """Begin to hand on, for good."""
        if self._installed:
            return
        thread: Any = Thread
        executor: Any = ThreadPoolExecutor
        thread.start = self._made.setdefault("start", _start(thread.start, self._ask))
        executor.submit = self._made.setdefault("submit", _submit(executor.submit, self._ask))
        executor.__init__ = self._made.setdefault("init", _init(executor.__init__, self._ask))
        self._installed = True


def _start(original: Callable[[Thread], None], ask: Ask) -> Callable[[Thread], None]:
    @wraps(original)
    def start(self: Thread) -> None:
        known = ask()
        if known is None or _here.submits:
            return original(self)
        # On the instance, since subclasses have a run() of their own; it may have one, too.
        names, run = vars(self), self.run
        before = names.get("run", _MISSING)

        def run_knowing() -> None:
            put_back()
            with known():
                run()

        def put_back() -> None:
            if names.get("run") is run_knowing:
                names.pop("run") if before is _MISSING else names.update(run=before)

        names["run"] = run_knowing
        try:
            return original(self)
        except BaseException:  # no thread is to be had, or it was started before
            put_back()
            raise

    return start


def _submit(original: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    @wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        known = ask()
        if known is None or not _runs_here(self):
            return original(self, fn, *args, **kwargs)
        before, _here.submits = _here.submits, True
        try:
            return original(self, partial(_call, known, fn), *args, **kwargs)
        finally:
            _here.submits = before

    return submit


def _init(original: Callable[..., None], ask: Ask) -> Callable[..., None]:
    @wraps(original)
    def init(
        self: Any,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        **others: Any,
    ) -> None:
        known = ask()
        if known is not None and callable(initializer) and _runs_here(self):
            initializer = partial(_call, known, initializer)
        original(self, max_workers, thread_name_prefix, initializer, initargs, **others)

    return init


def _call(known: Known, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that knows what its submitter did."""
    with known():
        return function(*args, **kwargs)


def _runs_here(executor: Any) -> bool:
    """Whether tasks run in this interpreter; to another one only what can be pickled is sent."""
    return all(
        kind.__module__ != "concurrent.futures.interpreter" for kind in type(executor).__mro__
    )
