"""What switched the GIL on, on a build that can run without it.

CPython tells the name of the extension module only once, in a warning at its import, which is
mostly before threadloader's own.  But what a module has declared about the GIL stays in its object.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import types
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

from threadloader._threads.concurrency import gil_is_enabled
from threadloader.errors import GilWarning

__all__ = [
    "GilSwitch",
    "is_free_threaded",
    "modules_that_need_the_gil",
    "warn_of_the_gil",
    "what_switched_the_gil_on",
]

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class GilSwitch:
    """Why the GIL is on.

    Args:
        requested: What asked for it, ``"PYTHON_GIL=1"`` say; empty if an import did it.
        modules: The extension modules that do not say that they can do without, the one that was
            imported first before the others; empty if they are not known.
    """

    requested: str
    modules: tuple[str, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of the modules."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.modules))

    def __str__(self) -> str:
        if self.requested:
            return self.requested
        if not self.modules:
            return "an extension module that is gone"
        first, *others = self.packages
        also = f"; so would {', '.join(others[:3])}" if others else ""
        return f"the import of {first} (module {self.modules[0]}{also})"


def is_free_threaded() -> bool:
    """Whether this Python can run without a GIL; `gil_is_enabled` says whether it does."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def what_switched_the_gil_on() -> GilSwitch | None:
    """Return why the GIL is on; None if it is off, or if this build always has it."""
    if not is_free_threaded() or not gil_is_enabled():
        return None
    if os.environ.get("PYTHON_GIL") == "1" and not sys.flags.ignore_environment:
        return GilSwitch("PYTHON_GIL=1", ())
    if sys._xoptions.get("gil") == "1":  # noqa: SLF001  # documented
        return GilSwitch("-X gil=1", ())
    return GilSwitch("", modules_that_need_the_gil())


@cache  # once in a process
def warn_of_the_gil() -> None:
    """Warn if a package switched the GIL on, where the user's code called the loader."""
    switch = what_switched_the_gil_on()
    if switch is None or switch.requested:
        return
    msg = (
        f"the GIL was switched on by {switch}, so threads take turns in Python code.  Use another "
        "version of that package or do without, or set PYTHON_GIL=0 if it is known to be safe; "
        "`threadloader doctor --import MODULE` says what an import does"
    )
    if sys.version_info >= (3, 12):
        warnings.warn(msg, GilWarning, skip_file_prefixes=(_PACKAGE,))


def modules_that_need_the_gil() -> tuple[str, ...]:
    """Return the extension modules that do not say that they can do without, in order of import.

    None on another build, and none if this version of Python keeps that elsewhere.
    """
    place = _place_of_declaration()
    if place is None:
        return ()
    names = []
    modules: list[tuple[str, object]] = list(sys.modules.items())
    for name, module in modules:
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if not isinstance(loader, ExtensionFileLoader):
            continue
        if not isinstance(module, types.ModuleType) or not _declares(module, place):
            names.append(name)
    return tuple(names)


def _place_of_declaration() -> int | None:
    """Return where in a module object it says whether the module needs the GIL; None if nowhere.

    Source: ``md_gil`` in CPython's Include/internal/pycore_moduleobject.h, the last field of
    ``PyModuleObject`` in 3.13 and 3.14.  It is 1, ``Py_MOD_GIL_NOT_USED``, of every built-in
    module, and 0 of a module that is not an extension.
    """
    if not is_free_threaded() or sys.implementation.name != "cpython":
        return None
    place = types.ModuleType.__basicsize__ - _POINTER
    known = (sys.modules["_imp"], sys.modules["_thread"], sys.modules["_weakref"])
    if all(_declares(module, place) for module in known):
        return None if _declares(types.ModuleType("new"), place) else place
    return None


def _declares(module: types.ModuleType, place: int) -> bool:
    return ctypes.c_size_t.from_address(id(module) + place).value == 1
