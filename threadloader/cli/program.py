"""A Python program, run in this process as the interpreter would run it.

Not `runpy`, which takes ``__main__`` away when the program's last line has run: its threads, and
what it registered for the exit, go on after that, and may pickle.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from threadloader.cli.errors import CommandError, printable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["Program", "traceback_of"]

_HERE = str(Path(__file__).parent) + os.sep


@dataclass(frozen=True, slots=True)
class Program:
    """A script or a module, and its arguments.

    Args:
        target: A path, or the name of a module.
        arguments: Of the program, ``sys.argv`` without its first.
        is_module: Whether it is a module, as after ``python -m``.
    """

    target: str
    arguments: tuple[str, ...]
    is_module: bool

    def run(self) -> None:
        """Run it, as ``__main__``.

        Raises:
            CommandError: There is no such file or module.
            BaseException: What the program raises; see `traceback_of`.
        """
        main = ModuleType("__main__")
        vars(main)["__builtins__"] = builtins
        prepare = self._prepare_module if self.is_module else self._prepare_script
        before, sys.modules["__main__"] = sys.modules["__main__"], main
        vars(main)["__threadloader__"] = before  # dropped, its globals would be cleared
        exec(prepare(main), vars(main))  # noqa: S102  # the program that the user named

    def _prepare_script(self, main: ModuleType) -> CodeType:
        path = Path(self.target)
        try:
            with io.open_code(str(path.absolute())) as file:
                source = file.read()
        except OSError as error:
            raise CommandError(
                f"can't open {printable(self.target)}: {error.strerror}", code=2
            ) from error
        _search_first(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120  # as Python does
        sys.argv[:] = [self.target, *self.arguments]
        name = str(path.absolute())
        vars(main).update(__file__=name, __cached__=None)
        return compile(source, name, "exec", dont_inherit=True)

    def _prepare_module(self, main: ModuleType) -> CodeType:
        _search_first(str(Path.cwd()))
        spec = self._spec(self.target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = self._spec(f"{self.target}.__main__")
        code = getattr(spec.loader, "get_code", lambda _: None)(spec.name) if spec else None
        if spec is None or code is None:
            raise CommandError(f"there is no module {printable(self.target)} to be run", code=2)
        sys.argv[:] = [str(spec.origin), *self.arguments]
        vars(main).update(
            __file__=spec.origin,
            __cached__=spec.cached,
            __package__=spec.parent,
            __spec__=spec,
            __loader__=spec.loader,
        )
        return code  # type: ignore[no-any-return]

    def _spec(self, name: str) -> ModuleSpec | None:
        try:
            return importlib.util.find_spec(name)
        except (ModuleNotFoundError, ValueError):
            return None


def _search_first(folder: str) -> None:
    """Let imports look into a folder first, in the place of the command's own."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of a program's error from the program's first frame on."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_HERE):
        found = found.tb_next
    return found
