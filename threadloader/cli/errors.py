"""How a command fails: one line for the user and an exit code, never a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CommandError", "printable"]


class CommandError(ThreadLoaderError):
    """A command failed.

    Args:
        message: One line, for the user.
        code: Exit code: 1 if something failed, 2 if the request itself is wrong, or its dataset
            can't be loaded.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def printable(path: str | Path) -> str:
    """Return a path for one line in any encoding: names may hold newlines or stray bytes."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
