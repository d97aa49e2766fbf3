"""A dataset that the user names on the command line: ``MODULE:NAME``, or ``FILE.py:NAME``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from threadloader.cli.errors import CommandError, printable

__all__ = ["importable", "in_one_line", "made_dataset", "named_object", "user_dataset"]


def user_dataset(name: str) -> Any:
    """Return the dataset of a name that has indices and a length; see `made_dataset`.

    Raises:
        CommandError: There is none.
    """
    dataset = made_dataset(name)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        kind = type(dataset).__name__
        raise CommandError(
            f"{printable(name)} is of type {kind}; bench needs __getitem__ and __len__",
            code=2,
        )
    if len(dataset) == 0:
        raise CommandError(f"{printable(name)} is empty", code=2)
    return dataset


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
    try:
        return found()
    except Exception as error:
        raise CommandError(f"{printable(name)}() failed: {in_one_line(error)}", code=2) from error


def named_object(name: str) -> Any:
    """Return the object of a name, ``MODULE:ATTRIBUTE`` with dots in both.

    Modules are looked for in the current folder, too.

    Raises:
        CommandError: There is none.
    """
    module_name, colon, attributes = name.rpartition(":")
    if not (colon and module_name and attributes):
        raise CommandError(
            f"{printable(name)!r} does not name a dataset: MODULE:NAME or FILE.py:NAME", code=2
        )
    found = _module(module_name)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise CommandError(
                f"{printable(module_name)} has no {printable(attributes)}", code=2
            ) from None
    return found


def importable(name: str) -> str:
    """Return the name by which a module, or a file, can be imported; see to it that it can.

    Raises:
        CommandError: There is no such file.
    """
    path = Path(name)
    folder, module_name = Path.cwd(), name
    if path.suffix == ".py":
        if not path.is_file():
            raise CommandError(f"there is no file {printable(name)}", code=2)
        folder, module_name = path.resolve().parent, path.stem
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # for worker processes, which import it by its name, too
    return module_name


def _module(name: str) -> Any:
    module_name = importable(name)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise CommandError(f"{printable(name)} needs {error.name}: {error}", code=2) from error
        raise CommandError(f"there is no module {printable(name)}", code=2) from error
    except Exception as error:
        raise CommandError(f"{printable(name)} failed: {in_one_line(error)}", code=2) from error


def in_one_line(error: Exception) -> str:
    """Return the kind of an error, the first line of its message, and where it was raised."""
    text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    places = traceback.extract_tb(error.__traceback__)
    ours = (__file__, "<frozen")
    at = next((at for at in reversed(places) if not at.filename.startswith(ours)), None)
    return text if at is None else f"{text} ({printable(at.filename)}:{at.lineno})"
