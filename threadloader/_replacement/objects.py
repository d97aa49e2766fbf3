"""The objects that a dataset or a collate function leads to, as far as a program's own go."""

from __future__ import annotations

import functools
import io
import sqlite3
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["objects_in", "open_file_in"]

MOST = 500  # objects that are looked at
ENTRIES = 100  # of a container: a larger one counts as data
DEPTH = 6

_DATA = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic, range)
# Packages whose readers have a position in a file, or belong to a thread.
_READERS = {"av", "cv2", "decord", "netCDF4", "rasterio", "soundfile"}


def objects_in(*roots: Any) -> Iterator[tuple[str, Any]]:
    """Yield objects and how they are reached; no arrays, tensors, text, classes and modules.

    Args:
        roots: Where to begin: a dataset, a collate function.
    """
    waiting = deque((type(root).__name__, root, 0) for root in roots)
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST:
        path, value, depth = waiting.popleft()
        skipped = (*_DATA, _torch.Tensor, type, types.ModuleType, types.BuiltinFunctionType)
        if id(value) in seen or isinstance(value, skipped):
            continue
        seen[id(value)] = value
        yield path, value
        if depth < DEPTH:
            waiting += ((name, part, depth + 1) for name, part in _parts(path, value))


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if len(value) <= ENTRIES:
            yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        if len(value) <= ENTRIES:
            yield from ((f"{path}[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((path, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield path, value.__self__
    elif isinstance(value, types.FunctionType):
        yield from ((path, part) for part in _closed_over(value))
    else:
        attributes = dict(getattr(value, "__dict__", {}))
        yield from ((f"{path}.{name}", part) for name, part in attributes.items())


def _closed_over(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is empty
            continue
    return found


def open_file_in(dataset: Any) -> str | None:
    """Return, as a reason, the first open file that the copies of a dataset would share."""
    for path, value in objects_in(dataset):
        reader = type(value).__module__.partition(".")[0] in _READERS
        if isinstance(value, io.IOBase):
            if not value.closed:
                return f"{path} is an open file, and threads would share its position"
        elif reader or isinstance(value, sqlite3.Connection):
            return f"{path} is a {type(value).__name__}, which is for one thread"
    return None
