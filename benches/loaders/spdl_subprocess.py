"""SPDL's pipeline in one subprocess, which is kept between epochs and sends batches back.

Source: https://facebookresearch.github.io/spdl/latest/getting_started/parallelism.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spdl.pipeline import run_pipeline_in_subprocess

from benches.loaders.spdl_threads import make_builder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.loaders.catalog import Setup

__all__ = ["Rival"]


class Rival:
    """Load with a pipeline of ``workers`` threads in another process."""

    def __init__(self, setup: Setup) -> None:
        config = make_builder(setup).get_config()
        self._batches: Any = run_pipeline_in_subprocess(config, num_threads=setup.workers)

    def __iter__(self) -> Iterator[Any]:
        """Start one epoch."""
        return iter(self._batches)

    def close(self) -> None:
        """Drop the iterable, which ends the process."""
        del self._batches

    def counters(self) -> dict[str, float]:
        """Return none."""
        return {}
