"""Whose code a line is: the user's, a library's, or the loader's own."""

from __future__ import annotations

import importlib
import os
import queue
import threading
from functools import cache
from typing import TYPE_CHECKING

from threadloader import datasets
from threadloader._check.findings import Line
from threadloader._fetch.program_code import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType


USER, LIBRARY, OURS = "user", "library", "ours"

_DATASETS = os.path.dirname(datasets.__file__) + os.sep  # noqa: PTH120  # compared as text, often
_PACKAGE = os.path.dirname(os.path.dirname(_DATASETS)) + os.sep  # noqa: PTH120  # the same
# Locks and queues are there for threads, and imports are of the process.
_FOR_THREADS = (
    threading.__file__,
    queue.__file__,
    os.path.dirname(importlib.__file__) + os.sep,  # noqa: PTH120  # the same
)


@cache
def whose(filename: str) -> str:
    """Return whose code a file is; `OURS` counts what is never looked at."""
    path = os.path.abspath(filename)  # noqa: PTH100  # the same
    ours = path.startswith(_PACKAGE) and not path.startswith(_DATASETS)
    if ours or filename.startswith("<frozen") or path.startswith(_FOR_THREADS):
        return OURS
    return USER if is_users(path) else LIBRARY


def innermost(frames: Iterable[tuple[FrameType, int]]) -> Line | None:
    """Return the innermost line of the user's, or else a library's.

    Args:
        frames: From the innermost outwards, each with its line.
    """
    library = None
    for frame, number in frames:
        file = frame.f_code.co_filename
        owner = whose(file)
        if owner == USER:
            return Line(file, number or frame.f_code.co_firstlineno)
        if owner == LIBRARY and library is None:
            library = Line(file, number or frame.f_code.co_firstlineno)
    return library
