"""How long a loader takes to be imported where NumPy and torch have been imported already.

Nothing here may import a loader, or the package, before the clock starts.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from benches.harness.record import Answer
from benches.loaders.catalog import LOADERS

if TYPE_CHECKING:
    from benches.harness.record import Question

__all__ = ["measure_import"]


def measure_import(question: Question) -> Answer:
    """Import a loader's class; the milliseconds are those of the "first batch".

    Raises:
        ValueError: The loader has no class of its own.
    """
    where = LOADERS[question.loader].imported
    if where is None:
        raise ValueError(f"nothing is imported for {question.loader}")
    for name in ("numpy", "torch.utils.data"):
        with suppress(ImportError):
            import_module(name)
    started = time.perf_counter()
    import_module(where[0].partition(".")[0])
    alone = time.perf_counter() - started
    getattr(import_module(where[0]), where[1])
    elapsed = time.perf_counter() - started
    return Answer(
        workload=question.workload,
        loader=question.loader,
        workers=question.workers,
        rate=1 / elapsed,
        first_batch_ms=elapsed * 1000,
        cpu_us_per_sample=None,
        faults_per_batch=None,
        samples=0,
        batches=0,
        epochs=0,
        elapsed_s=elapsed,
        counters={"package_ms": alone * 1000},
    )
