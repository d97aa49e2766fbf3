"""What the thread of ``iter()`` has of its own, and its workers have, too, as forked ones would.

Context variables (and with them decimal's precision and NumPy's error handling), torch's modes, and
options that a library keeps in a `threading.local`.  Of those only what is plain data, as an option
is: what a thread has opened or set up for itself (a handle, a number, a flag) is not for others.
"""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack, suppress
from contextvars import copy_context
from threading import local as Local  # noqa: N812  # it is a class
from typing import Any, Self

import numpy as np

from threadloader import _torch

_OLD_NUMPY = np.__version__.startswith("1.")  # before it had a context variable
_PLAIN = (bool, bytes, complex, float, int, str, type(None))
MOST = 200  # entries of a container: one that has more is no option
_DECLARED = (bool, int)  # carried only where the class has a default of the same type
_SKIPPED = sys.stdlib_module_names | {"numpy", "threadloader", "torch"} - {"__main__"}


class Surroundings:
    """What the calling thread has of its own.

    Threads:
        adopt: any, several at once.
    """

    def __init__(self) -> None:
        self._variables = copy_context()
        self._modes = _torch.inherited_modes()
        self._options = [(local, kept) for local in _locals.found() if (kept := _plain_in(local))]
        self._errors: tuple[Any, ...] = (np.geterr(), np.geterrcall()) if _OLD_NUMPY else ()

    def adopt(self, life: ExitStack) -> None:
        """Let the calling thread have the same.

        Args:
            life: Is closed when the thread ends.
        """
        for variable, value in self._variables.items():
            variable.set(value)
        decimal = sys.modules.get("decimal")
        if decimal is not None:  # its variable has an object, which threads would share
            decimal.setcontext(decimal.getcontext().copy())
        if self._errors:
            np.seterrcall(self._errors[1])
            np.seterr(**self._errors[0])
        for local, options in self._options:
            with suppress(Exception):  # of the user's ``__init__``, which runs for each thread
                vars(local).update(copy.deepcopy(options))
        self._modes(life)


class Adopting:
    """Gives a worker's thread the surroundings of the latest epoch.

    Args:
        latest: Has them as its one item; another thread may exchange it.

    Threads:
        all: the worker.
    """

    def __init__(self, latest: list[Surroundings]) -> None:
        self._latest = latest
        self._adopted: Surroundings | None = None
        self._life = ExitStack()

    def __call__(self) -> None:
        """Adopt the latest surroundings, unless that was done."""
        latest = self._latest[0]
        if latest is not self._adopted:
            latest.adopt(self._life)
            self._adopted = latest

    def __enter__(self) -> Self:
        self()
        return self

    def __exit__(self, *error: object) -> None:
        self._life.close()


class _Locals:
    """The `threading.local` objects in the globals of modules that mention them.

    Threads:
        found: shared; of two at once one may look twice.
    """

    def __init__(self) -> None:
        self._looked_into: dict[str, tuple[int, int, list[Any]]] = {}  # by a module's name
        self._mentioning: list[str] = []
        self._modules = 0

    def found(self) -> list[Any]:
        """Return the objects; a module is looked into again when it has more names."""
        modules = sys.modules
        if len(modules) != self._modules:
            self._modules = len(modules)
            self._mentioning = [
                name
                for name, module in modules.copy().items()
                if name.partition(".")[0] not in _SKIPPED and _mentions(module)
            ]
        found: list[Any] = []
        for name in ("__main__", *self._mentioning):
            names = getattr(modules.get(name), "__dict__", None)
            if type(names) is not dict:
                continue
            before = self._looked_into.get(name)
            if before is None or before[:2] != (id(names), len(names)):
                local = [each for each in names.copy().values() if isinstance(each, Local)]
                before = self._looked_into[name] = id(names), len(names), local
            found += before[2]
        return found


def _mentions(module: Any) -> bool:
    """Whether a module has imported `threading`, or `threading.local`, by its name."""
    names = getattr(module, "__dict__", None)
    return type(names) is dict and ("threading" in names or "local" in names)


def _plain_in(local: Any) -> dict[str, Any]:
    """Return the attributes that the calling thread has set; nothing if any may be no option."""
    names: dict[str, Any] = {}
    with suppress(Exception):  # of a class of the user's
        kind, names = type(local), dict(vars(local))
        if all(_is_option(value, getattr(kind, name, None)) for name, value in names.items()):
            return copy.deepcopy(names)
    return {}


def _is_option(value: Any, default: Any) -> bool:
    kind = type(value)
    if kind in _DECLARED:
        return type(default) is kind
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        value = [*value, *value.values()]
    elif kind not in (list, set, tuple):
        return False
    return len(value) <= MOST and all(map(_is_plain, value))


_locals = _Locals()
