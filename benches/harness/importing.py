"""How long the package takes to be imported where NumPy and torch have been imported already.

Nothing here may import the package before the clock starts.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib import import_module
from typing import Any

__all__ = ["measure_import"]


def measure_import() -> dict[str, Any]:
    """Import the loader's class; the milliseconds are those of the "first batch"."""
    for name in ("numpy", "torch.utils.data"):
        with suppress(ImportError):
            import_module(name)
    started = time.perf_counter()
    package = import_module("threadloader")
    alone = time.perf_counter() - started
    _ = package.ThreadLoader  # imported at its first use
    elapsed = time.perf_counter() - started
    return {
        "rate": 1 / elapsed,
        "first_batch_ms": elapsed * 1000,
        "counters": {"package_ms": alone * 1000},
    }
