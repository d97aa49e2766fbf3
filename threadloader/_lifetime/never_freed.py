"""Memory that is leaked on purpose, since freeing it could end the process.

torch frees memory of a device, and page-locked memory, in C++: it asks the device about those who
use it, in a place where no error can be raised.  So after an error in a kernel, or in a forked
child, the process ends there, before Python's traceback (pytorch#178154).  Leaking it costs nothing
then.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
