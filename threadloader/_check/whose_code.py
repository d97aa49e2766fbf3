"""Whose code a line is: the user's, a library's, or the loader's own."""

from __future__ import annotations

import os
import sysconfig
import threading
from functools import cache
from typing import TYPE_CHECKING

from threadloader._check.findings import Line

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

__all__ = ["LIBRARY", "OURS", "USER", "line_of", "line_of_error", "line_of_frame", "whose"]

USER, LIBRARY, OURS = "user", "library", "ours"

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # compared as text, often
_LIBRARIES = tuple(
    {
        os.path.abspath(path) + os.sep  # noqa: PTH100  # the same
        for name, path in sysconfig.get_paths().items()
        if name in {"stdlib", "platstdlib"}
    }
)
# A thread that is held in one of these would hold up all others.
_NEVER_HELD = (
    threading.__file__,
    *(os.path.join(os.path.dirname(threading.__file__), name) for name in ("importlib", "queue")),  # noqa: PTH118, PTH120
)


@cache
def whose(filename: str) -> str:
    """Return whose code a file is; `OURS` counts what is never looked at."""
    if filename.startswith("<frozen") or filename.startswith(_NEVER_HELD):
        return OURS
    path = os.path.abspath(filename)  # noqa: PTH100  # the same
    if path.startswith(os.path.join(_PACKAGE, "datasets") + os.sep):  # noqa: PTH118  # the same
        return LIBRARY
    if path.startswith(_PACKAGE + os.sep):
        return OURS
    installed = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
    return LIBRARY if installed or path.startswith(_LIBRARIES) else USER


def line_of_frame(frame: FrameType | None, line: int | None = None) -> Line | None:
    """Return the innermost line of the user's from a frame outwards, or else a library's.

    Args:
        frame: The innermost frame.
        line: Its line, if it is not the one that it is at now.
    """
    library = None
    while frame is not None:
        code = frame.f_code
        owner = whose(code.co_filename)
        if owner != OURS:
            number = frame.f_lineno if line is None else line
            found = Line(code.co_filename, number or code.co_firstlineno)
            if owner == USER:
                return found
            library = library or found
        elif library is not None:
            return library
        frame, line = frame.f_back, None
    return library


def line_of_error(traceback: TracebackType | None) -> Line | None:
    """Return the innermost line of the user's in a traceback, or else a library's."""
    user = library = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if whose(file) == USER:
            user = Line(file, traceback.tb_lineno)
        elif whose(file) == LIBRARY:
            library = Line(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return user or library


def line_of(code: CodeType | None) -> Line | None:
    """Return the line where a function begins."""
    return None if code is None else Line(code.co_filename, code.co_firstlineno)
