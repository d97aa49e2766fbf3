"""A worker's context reaches the threads that it starts, and the tasks that it submits.

In torch, threads that a dataset starts are in a worker's process, and `get_worker_info()` answers
there.  Here they would belong to no worker.  So once there are workers, `Thread.start` asks for
the calling thread's context, and the new thread runs in it, whatever its class.

Any thread may start a thread of a `ThreadPoolExecutor`, which then works for all.  So such a thread
has no context of its own: each task runs in the context of its submitter.  Not covered:
``_thread.start_new_thread``, threads of C libraries, an executor's ``initializer``, and tasks of
other pools, which run in the context of the pool's maker.
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

    # Makes a context manager, inside of which another thread has the asking thread's context.
    MakesContext = Callable[[], AbstractContextManager[None]]
    Ask = Callable[[], MakesContext | None]


_MISSING: Any = object()


class _Local(threading.local):
    submits = False  # whether the calling thread is about to start an executor's thread


_here = _Local()


class Propagation:
    """Propagates a thread's context to the threads that it starts.

    It is installed once and never undone: others may have replaced the same functions since.

    Args:
        ask: Returns what makes the calling thread's context; None if it has none, as all threads
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
        """Begin to propagate contexts, for good."""
        if self._installed:
            return
        thread: Any = Thread
        executor: Any = ThreadPoolExecutor
        thread.start = self._made.setdefault("start", _start(thread.start, self._ask))
        executor.submit = self._made.setdefault("submit", _submit(executor.submit, self._ask))
        self._installed = True


def _start(original: Callable[[Thread], None], ask: Ask) -> Callable[[Thread], None]:
    @wraps(original)
    def start(self: Thread) -> None:
        context = ask()
        if context is None or _here.submits:
            return original(self)
        # On the instance, since subclasses have a run() of their own; it may have one, too.
        names, run = vars(self), self.run
        before = names.get("run", _MISSING)

        def run_in_context() -> None:
            put_back()
            with context():
                run()

        def put_back() -> None:
            if names.get("run") is run_in_context:
                names.pop("run") if before is _MISSING else names.update(run=before)

        names["run"] = run_in_context
        try:
            return original(self)
        except BaseException:  # no thread is to be had, or it was started before
            put_back()
            raise

    return start


def _submit(original: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    @wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        context = ask()
        if context is None or not _runs_here(self):
            return original(self, fn, *args, **kwargs)
        before, _here.submits = _here.submits, True
        try:
            return original(self, partial(_call, context, fn), *args, **kwargs)
        finally:
            _here.submits = before

    return submit


def _call(context: MakesContext, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function in its submitter's context."""
    with context():
        return function(*args, **kwargs)


def _runs_here(executor: Any) -> bool:
    """Whether tasks run in this interpreter; to another one only what can be pickled is sent."""
    return all(
        kind.__module__ != "concurrent.futures.interpreter" for kind in type(executor).__mro__
    )
