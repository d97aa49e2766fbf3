"""What users name on the command line: numbers, and datasets as ``MODULE:NAME``.

Whatever is wrong with that ends a command with one line and an exit code, never with a traceback.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import traceback
from argparse import ArgumentTypeError
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


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


def whole(least: int) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from ``least`` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return number


def positive(text: str) -> float:
    """Return the number that an argument is.

    Raises:
        ValueError: It is none, or not above 0.
    """
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def made_dataset(name: str) -> Any:
    """Return the dataset of a name: an object, or what a function or class returns.

    Raises:
        CommandError: There is none, or the user's code fails.
    """
    found = named_object(name)
    has_samples = any(hasattr(type(found), method) for method in ("__getitem__", "__iter__"))
    if has_samples and not isinstance(found, type):
        return found
    if not callable(found):
        kind = type(found).__name__
        raise CommandError(f"{printable(name)} is of type {kind}, and no dataset", code=2)
    return tried(f"{printable(name)}()", found)


def named_object(name: str) -> Any:
    """Return the object of a name, ``MODULE:ATTRIBUTE`` or ``FILE.py:ATTRIBUTE``, with dots.

    Raises:
        CommandError: There is none.
    """
    module, colon, attributes = name.rpartition(":")
    if not (colon and module and attributes):
        text = f"{printable(name)} does not name a dataset: MODULE:NAME or FILE.py:NAME"
        raise CommandError(text, code=2)
    path, folder = Path(module), Path.cwd()
    if path.suffix == ".py":
        if not path.is_file():
            raise CommandError(f"there is no file {printable(module)}", code=2)
        module, folder = path.stem, path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return tried(printable(name), lambda: attrgetter(attributes)(importlib.import_module(module)))


def tried(what: str, function: Callable[..., T], *args: Any) -> T:
    """Return what a call of the user's code returns.

    Raises:
        CommandError: It fails.
    """
    try:
        return function(*args)
    except Exception as error:
        raise CommandError(f"{what} failed: {in_one_line(error)}", code=2) from error


def write_json(path: Path, content: Any) -> None:
    """Write what was measured to a file.

    Raises:
        CommandError: It can't be written.
    """
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"can't write {printable(path)}: {error.strerror or error}") from error


def in_one_line(error: Exception) -> str:
    """Return the kind of an error, the first line of its message, and where it was raised."""
    text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    places = traceback.extract_tb(error.__traceback__)
    ours = (__file__, "<frozen")
    at = next((at for at in reversed(places) if not at.filename.startswith(ours)), None)
    return text if at is None else f"{text} ({printable(at.filename)}:{at.lineno})"
