"""Where a program makes a loader: file and line of its own code, and the package that it called."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Place", "is_users", "made_here"]

_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(
    sysconfig.get_path(name) + os.sep
    for name in ("stdlib", "platstdlib")
    if sysconfig.get_path(name)
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a loader was made.

    Two loaders that a function makes for two of its callers have two places.
    """

    lines: tuple[tuple[str, int], ...]  # files and lines of the program, the innermost first
    inside: tuple[tuple[str, int], ...]  # those of packages that the program called
    package: str | None  # that made the loader, if it is none of the program's own

    def __str__(self) -> str:
        if not self.lines:
            return self.package or "?"
        file, line = self.lines[0]
        by = f" ({self.package})" if self.package else ""
        return f"{_short(file)}:{line}{by}"

    @property
    def callers(self) -> str:
        """The lines that led to the innermost one."""
        return ", ".join(f"{_short(file)}:{line}" for file, line in self.lines[1:])


def made_here(frame: FrameType | None) -> Place:
    """Return the place of a loader that is being made.

    Args:
        frame: The innermost frame that may be the program's.
    """
    lines: list[tuple[str, int]] = []
    inside: list[tuple[str, int]] = []
    package = None
    while frame is not None:
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if is_users(file) and not file.startswith("<frozen"):
            lines.append((file, frame.f_lineno))
        elif not (lines or name.startswith(("torch.utils.data", "threadloader."))):
            package = package or name.partition(".")[0]
            inside.append((file, frame.f_lineno))
        if name == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    return Place(tuple(lines), tuple(inside), package)


def is_users(file: str) -> bool:
    """Whether a file is the program's own: neither installed, nor Python's, nor ours."""
    return not (file.startswith((_OURS, *_STANDARD)) or any(part in file for part in _INSTALLED))


def _short(file: str) -> str:
    """Return a path relative to the current folder, if it lies in it."""
    try:
        return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    except (OSError, ValueError):  # the folder is gone; another drive
        return file
