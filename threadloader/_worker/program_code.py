"""Whose a piece of code is, by its file: the program's own, or that of something installed."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = (
    "<frozen",
    *(path + os.sep for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))),
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_users(file: str) -> bool:
    """Whether a file is the program's own: neither installed, nor Python's, nor ours."""
    return not (file.startswith((_OURS, *_STANDARD)) or any(part in file for part in _INSTALLED))


def short_path(file: str) -> str:
    """Return a path relative to the current folder, if it lies in it."""
    try:
        return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    except (OSError, ValueError):  # the folder is gone; another drive
        return file
