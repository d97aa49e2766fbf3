"""CUDA graphs: our threads go on while another thread captures one.

While a thread captures in CUDA's default mode, ``"global"``, calls that may allocate or wait are
forbidden in all threads: they fail, and the capture with them.  That leaves out a thread whose own
mode is "thread local", and its calls are not captured.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ignore_captures"]

_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal, and HIP's


def ignore_captures() -> None:
    """Let the calling thread go on while others capture; do nothing where CUDA has no such call.

    Source: ``cudaThreadExchangeStreamCaptureMode``, which torch itself calls for its allocator.
    """
    for exchange in _exchanges():
        # It writes the former mode into its argument.
        if exchange(ctypes.byref(ctypes.c_int(_THREAD_LOCAL))) == 0:
            return


def _exchanges() -> Iterator[Callable[[Any], int]]:
    """Yield the runtime's function, from libraries that torch has loaded, never from others."""
    name = "hip" if torch.version.hip else "cuda"
    for library in _libraries():
        with suppress(OSError, AttributeError):
            yield getattr(ctypes.CDLL(library), f"{name}ThreadExchangeStreamCaptureMode")


def _libraries() -> Iterator[str]:
    # A library's handle finds the names of all libraries that it was linked with; not on Windows,
    # where a library is found by its name once it is loaded.
    yield torch._C.__file__
    version = (torch.version.cuda or "").split(".")
    if hasattr(ctypes, "WinDLL") and version[0]:
        yield f"cudart64_{'110' if version[0] == '11' else version[0]}.dll"
