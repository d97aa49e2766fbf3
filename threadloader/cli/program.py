"""A Python program, run in this process as the interpreter would run it.

Not by `runpy.run_path`, which takes ``__main__`` away when the program's last line has run: its
threads, and what it registered for the exit, go on after that, and may pickle.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from threadloader.cli.arguments import CommandError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence


_HERE = str(Path(__file__).parent) + os.sep


def run_program(words: Sequence[str], *, is_module: bool) -> None:
    """Run a script or a module as ``__main__``.

    Args:
        words: Its path or name, and its arguments.
        is_module: Whether it is a module, as after ``python -m``.

    Raises:
        CommandError: There is no such file or module.
        BaseException: What the program raises; see `traceback_of`.
    """
    main = ModuleType("__main__")
    code, facts = (_module if is_module else _script)(words[0])
    vars(main).update(facts, __builtins__=builtins, __threadloader__=sys.modules["__main__"])
    sys.modules["__main__"] = main  # the one before is kept, or its globals would be cleared
    sys.argv[:] = [facts["__file__"] if is_module else words[0], *words[1:]]
    exec(code, vars(main))  # noqa: S102  # the program that the user named


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of a program's error from the program's first frame on."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_HERE):
        found = found.tb_next
    return found


def _script(target: str) -> tuple[CodeType, dict[str, Any]]:
    path = os.path.abspath(target)  # noqa: PTH100  # as Python does
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        text = f"can't open {printable(target)}: {error.strerror}"
        raise CommandError(text, code=2) from error
    _search_first(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120  # the same
    facts = {"__file__": path, "__cached__": None}
    return compile(source, path, "exec", dont_inherit=True), facts


def _module(target: str) -> tuple[CodeType, dict[str, Any]]:
    _search_first(str(Path.cwd()))
    try:
        # What `pdb` and `trace` use; it knows packages, too.
        _, spec, code = runpy._get_module_details(target)  # type: ignore[attr-defined]  # noqa: SLF001
    except ImportError as error:
        text = f"there is no module {printable(target)} to be run: {error}"
        raise CommandError(text, code=2) from error
    names = {"__file__": spec.origin, "__cached__": spec.cached, "__package__": spec.parent}
    return code, {**names, "__spec__": spec, "__loader__": spec.loader}


def _search_first(folder: str) -> None:
    """Let imports look into a folder first, in the place of the command's own."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
