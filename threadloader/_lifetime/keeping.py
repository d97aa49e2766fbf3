"""What is never freed: memory whose release could end the process.

torch frees page-locked memory in C++: it asks the device about the copies from it, in a place
where no error can be raised.  So after an error in a kernel, or in a forked child, the process
ends there, before Python's traceback (pytorch#178154).  Not to free it costs nothing then.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PageLocked", "keep"]

_increase = ctypes.pythonapi.Py_IncRef
_increase.argtypes = [ctypes.py_object]
_increase.restype = None


def keep(thing: Any, _increase: Callable[[Any], None] = _increase) -> None:
    """Keep an object, and all that it refers to, for the life of the process.

    A list would not do: the interpreter's exit frees what modules hold.
    """
    _increase(thing)  # a reference that nobody has, and so nobody drops


class PageLocked:
    """Page-locked memory of one slot: freed only where that can't end the process.

    Args:
        memory: What owns it; the device copies from that.
        check: Does what freeing does, and raises where that would end the process.

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
        _keep: Callable[[Any], None] = keep,
    ) -> None:
        # Names of the module may be gone by now: the interpreter may be at its end.
        try:
            if self._pid == _getpid() and not _exits():
                self._check()
                return
        except BaseException:  # noqa: BLE001, S110  # whatever it is, freeing would meet it, too
            pass
        _keep(self.memory)
