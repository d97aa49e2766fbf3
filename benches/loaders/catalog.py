"""The list of rivals, and what a rival is: an iterable of batches, once per epoch.

Every rival is a class made from the same setup. It keeps what its users
would keep between epochs (its pool, its persistent workers), and nothing is made
before it is constructed, so that the time to the first batch has everything in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benches.harness.record import Output

__all__ = ["LOADERS", "Entry", "Loader", "Setup", "import_rival"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Who takes part, and how.

    Args:
        title: The rival in a few words, for the tables.
        workers: Numbers of threads or processes that it is measured with; ``"n"`` stands for as
            many as there are cores, or as the workload says.
        needs: The package, by the name that is imported; None for what Python itself has.
        sources: Of the workloads that it can load.
    """

    title: str
    workers: tuple[int | Literal["n"], ...]
    needs: str | None = None
    sources: tuple[str, ...] = ("samples", "arrays")

    def counts(self, threads: int, *, few: bool = False, parallel: bool = True) -> tuple[int, ...]:
        """Return the numbers of workers.

        Args:
            threads: For ``"n"``.
            few: Whether to leave out those that are rarely the best.
            parallel: Whether samples take long enough for several threads to be the best.
        """
        found = tuple(dict.fromkeys(threads if n == "n" else n for n in self.workers))
        if not few or len(found) == 1:
            return found
        return tuple(n for n in found if n in (0, threads)) if parallel else found[:1]


#: Rivals by the names of their modules. `processes` is the limit, no loader.
LOADERS = {
    "bare_loop": Entry("bare loop", (1,), sources=("samples", "arrays", "shards")),
    "processes": Entry("limit: a bare loop in each of several processes", ("n",)),
    "executor": Entry("ThreadPoolExecutor by hand", ("n",)),
    "torch_dataloader": Entry("torch DataLoader", (0, 1, 2, 4, "n"), "torch"),
    "stateful_dataloader": Entry("StatefulDataLoader", (0, "n"), "torchdata"),
    "torchdata_nodes": Entry("torchdata.nodes", ("n",), "torchdata"),
    "spdl_threads": Entry("SPDL, threads", ("n",), "spdl"),
    "spdl_subprocess": Entry("SPDL, threads of one subprocess", ("n",), "spdl"),
    "grain_threads": Entry("Grain", (0, "n"), "grain"),
    "monai_threads": Entry("MONAI ThreadDataLoader", (0, "n"), "monai"),
    "webdataset_shards": Entry("webdataset", (0, 1, 2), "webdataset", ("shards",)),
    "dataloader_rust": Entry("dataloader-rs", (0, "n"), "dataloader_rs"),
    "turboloader_map": Entry("turboloader", ("n",), "turboloader"),
    "threadloader_shared_rng": Entry(
        "ThreadLoader, isolate_rng=False", (0, "n"), sources=("samples",)
    ),
    "threadloader": Entry("ThreadLoader", (0, 1, "n"), sources=("samples", "arrays", "shards")),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a loader is asked to do.

    Args:
        dataset: What to load, in the order of its indices unless ``shuffle``.
        batch_size: Samples in a batch.
        workers: Threads or processes.
        output: ``"numpy"`` for NumPy batches where torch is installed too.
        shuffle: Whether to load in a new order each epoch.
        collate: Makes a batch of a list of samples; None for the loader's own way.
        source: As `benches.workloads.catalog.Workload` has it.
    """

    dataset: Any
    batch_size: int
    workers: int
    output: Output | None = None
    shuffle: bool = False
    collate: Callable[[Sequence[Any]], Any] | None = None
    source: str = "samples"

    def batches(self) -> Iterator[Any]:
        """Yield the indices of each batch, for those who have no sampler of their own.

        Indices to gather by are an array, or a tensor for tensors; all others are integers.
        """
        length, size = len(self.dataset), self.batch_size
        if not self.shuffle:
            yield from (range(start, start + size) for start in range(0, length, size))
            return
        order: Any = np.random.default_rng().permutation(length)
        if hasattr(self.dataset, "tensors"):
            order = import_module("torch").from_numpy(order)
        for start in range(0, length, size):
            indices = order[start : start + size]
            yield indices if self.source == "arrays" else indices.tolist()


class Loader:
    """One rival, ready to be iterated any number of times, one epoch each.

    Each module here has a ``Rival`` that makes one of a `Setup`; most wrap what users would have.
    """

    _loader: Any = None

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch; yield batches ``(values, labels)`` in order, unless it shuffles."""
        return iter(self._loader)

    def close(self) -> None:
        """Drop the loader, which stops its threads and processes."""
        self._loader = None

    def counters(self) -> dict[str, float]:
        """Return the loader's own counters, where it has any."""
        return {}


def import_rival(name: str) -> Callable[[Setup], Loader]:
    """Import a rival and all that it needs; that is not part of any timing."""
    rival: Callable[[Setup], Loader] = import_module(f"benches.loaders.{name}").Rival
    return rival
