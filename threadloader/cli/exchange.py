"""Threads in place of torch's DataLoader in a running program: the methods that are exchanged.

torch's class stays the same object, and its loaders stay what they are; the method that begins a
pass is exchanged.  So it does not matter who has imported the class before, has a subclass of it,
compares types, or copies and pickles a loader.  When a loader is iterated over, a `ThreadLoader` of
the same dataset and samplers loads for it, unless it asks for processes.

The program imports torch itself, when it wants to: many set environment variables before.  So this
module imports neither torch nor NumPy.
"""

from __future__ import annotations

import sys
from functools import partial, wraps
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from threadloader.cli.run_report import made_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from threadloader.cli.run_report import Place, RunReport


MODULE = "torch.utils.data.dataloader"


class when_imported:  # noqa: N801  # it reads as a function
    """Call a function with torch's module of the DataLoader, each time that it was imported."""

    def __init__(self, call: Callable[[ModuleType], None]) -> None:
        self._call = call
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the specification of torch's module; None for all others."""
        spec = PathFinder.find_spec(name, path, target) if name == MODULE else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._call(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def exchange_methods(
    module: ModuleType, report: RunReport, *, threads: int | None, replace: bool
) -> None:
    """Let the loaders of torch's class be loaded by threads, and be measured.

    Frameworks ask for the arguments of `__init__`, hence `wraps`.

    Args:
        module: ``torch.utils.data.dataloader``.
        report: Gets what is measured.
        threads: Of each loader of a map-style dataset; None for as many as it has workers, or the
            default if it has none.
        replace: Whether threads load; else torch does as before, and is measured.
    """
    loader_class: Any = module.DataLoader
    make, begin = loader_class.__init__, loader_class._get_iterator  # noqa: SLF001  # torch's own
    places: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
    replaced: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @wraps(make)
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(loader, *args, **kwargs)
        places[loader] = made_here(sys._getframe(1))  # noqa: SLF001  # documented

    @wraps(begin)
    def _get_iterator(loader: Any) -> Any:
        from threadloader.cli.replaced import Replaced  # imports torch

        # A copy was made elsewhere, or by a pickle.
        place = places.get(loader) or made_here(sys._getframe(1))  # noqa: SLF001  # the same
        if loader not in replaced:
            replaced[loader] = Replaced(begin, threads, replace=replace)
        return replaced[loader].measured(loader, partial(report.row, place, loader.num_workers))

    loader_class.__init__, loader_class._get_iterator = __init__, _get_iterator  # noqa: SLF001
