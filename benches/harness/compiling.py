"""Modules that this process compiled, instead of loading them from their ``.pyc``.

On CPython 3.13t such code keeps reference-counted constants, and threads that share it slow each
other down: a figure of such a process is not kept.
"""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from typing import Any

__all__ = ["compiled", "watch_compilation"]

compiled: list[str] = []  # names of modules, since `watch_compilation`


def watch_compilation() -> None:
    """Note each module without a valid ``.pyc`` from here on."""
    compile_source = SourceFileLoader.source_to_code

    def source_to_code(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> Any:
        compiled.append(loader.name)
        return compile_source(loader, data, path, **options)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[assignment,method-assign]
