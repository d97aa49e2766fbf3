"""SPDL: a pipeline whose stage loads whole batches in threads.

Source: https://facebookresearch.github.io/spdl/latest/getting_started/pytorch.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spdl.pipeline import PipelineBuilder

from benches.loaders.catalog import Loader, Setup
from benches.loaders.stacking import load_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Batches", "LoadBatch", "Rival", "make_builder"]


class Batches:
    """The source: the indices of each batch, anew in each epoch."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __iter__(self) -> Iterator[Sequence[int]]:
        """Yield them."""
        return self._setup.batches()


class LoadBatch:
    """The stage: from indices to a batch; an object, which a subprocess can be given."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __call__(self, indices: Sequence[int]) -> Any:
        """Load and collate."""
        return load_batch(self._setup, indices)


def make_builder(setup: Setup) -> Any:
    """Return the pipeline's definition: one stage, in order, and two batches a thread ahead."""
    stage = {"concurrency": setup.workers, "output_order": "input"}
    builder = PipelineBuilder().add_source(Batches(setup)).pipe(LoadBatch(setup), **stage)
    return builder.add_sink(2 * setup.workers)


class Rival(Loader):
    """Load with a pipeline of ``workers`` threads; it is built anew for each epoch."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __iter__(self) -> Iterator[Any]:
        """Yield one epoch."""
        pipeline = make_builder(self._setup).build(num_threads=self._setup.workers)
        with pipeline.auto_stop():
            yield from pipeline
