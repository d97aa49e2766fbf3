"""A call that is made as soon as torch's module of the DataLoader has been imported.

The program imports torch itself, when it wants to: many set environment variables before.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]

MODULE = "torch.utils.data.dataloader"


def when_imported(call: Callable[[ModuleType], None]) -> None:
    """Call a function with torch's module: now, or when the program imports it."""
    module = sys.modules.get(MODULE)
    if module is not None:
        call(module)
    else:
        sys.meta_path.insert(0, _Finder(call))


class _Finder(MetaPathFinder):
    """Finds the one module, as the other finders do, and changes how it is loaded."""

    def __init__(self, call: Callable[[ModuleType], None]) -> None:
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of torch's module; None for all others."""
        del path, target
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            # The module may only be looked for, or its first import fail.
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self, module: ModuleType) -> None:
        """Find the module no more, and call the function."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._call(module)


class _Loader(Loader):
    """Loads the module as another loader does, and then calls the function."""

    def __init__(self, loader: Any, call: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module, or None for the usual one."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, and call the function."""
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._call(module)
