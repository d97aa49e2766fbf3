"""A debugger is in one worker at a time: `breakpoint()` in another waits for its turn.

Two debuggers would read each other's commands.  A turn lasts from the breakpoint to the end of the
worker's job, which may come to further breakpoints.
"""

from __future__ import annotations

import sys
import threading
from functools import wraps
from threading import RLock
from typing import Any

from threadloader._lifetime import in_forked_child


class _Turns:
    """Whose turn it is.

    Invariants, whenever ``_lock`` is not held:
        1. No worker is debugged by `bdb`.

    Threads:
        install: planner.
        leave: worker, at the end of a job.
    """

    def __init__(self) -> None:
        # Held over the user's session with the debugger, by the worker whose turn it is.
        self._lock = RLock()
        self._installed = False  # only ever set
        # All below: guarded by _lock.
        self.taken = 0  # how often the worker has taken it; others may look whether it is 0
        self._holder = 0  # its thread
        in_forked_child(self._forget)

    def _forget(self) -> None:
        self._lock, self.taken, self._holder = RLock(), 0, 0

    def install(self, here: Any) -> None:
        """Let debuggers in workers wait for their turns, for good.

        Args:
            here: A `threading.local`; its ``info`` says whether the calling thread is a worker.
        """
        if self._installed:
            return
        self._installed = True
        import bdb  # noqa: PLC0415  # what all debuggers of the standard library begin with

        begin: Any = bdb.Bdb.set_trace

        @wraps(begin)
        def set_trace(debugger: Any, frame: Any = None, *args: Any, **options: Any) -> Any:
            if here.info is not None:
                self._take()
            frame = sys._getframe(1) if frame is None else frame  # noqa: SLF001  # documented
            return begin(debugger, frame, *args, **options)

        bdb.Bdb.set_trace = set_trace  # type: ignore[assignment, method-assign]

    def _take(self) -> None:
        self._lock.acquire()
        self.taken += 1
        self._holder = threading.get_ident()

    def leave(self) -> None:
        """Give the turn to the next one, if it is the calling thread's."""
        if self._holder == threading.get_ident():
            times, self.taken, self._holder = self.taken, 0, 0
            for _ in range(times):
                self._lock.release()


TURNS = _Turns()


def is_debugged() -> bool:
    """Whether a debugger may have stopped a worker, for as long as the user likes."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    return bool(TURNS.taken) or ("pydevd" in sys.modules and threading.gettrace() is not None)
