"""The list of workloads: a dataset each, how it is batched, and what is measured with it.

A sample is a pair ``(value, label)`` with ``label = index % 100`` (or the index alone), so that
`benches.harness.delivered` can check what a loader delivers.

An epoch has ``samples_per_worker`` samples for each worker, so that it lasts
equally long whatever the number of workers: start and end of an epoch, where
loaders are idle, then weigh the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["WORKLOADS", "Dataset", "Figure", "Kind", "Workload"]

#: How a workload is measured: whole epochs after a first one; the first batch alone, with loader
#: after loader in one process; whole jobs, each from the constructor to the end of its last epoch;
#: the import of ThreadLoader, and no batch.
Kind = Literal["rate", "first batch", "job", "import"]

#: The field of an answer that loaders are compared by.
Figure = Literal["rate", "first_batch_ms", "pss_mib"]


class Dataset:
    """A map-style dataset; classes below it live in modules, as worker processes pickle them.

    Args:
        length: Samples; what a workload reads may be repeated to reach it.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset and how it is batched.

    Args:
        title: The workload in a line, for the tables.
        batch_size: Samples in a batch.
        samples_per_worker: Length of an epoch for one worker; a multiple of
            ``batch_size``.
        make: Returns the dataset for ``(length, spin iterations)``.
        threads: Threads to measure with, None for as many as there are cores.
        kind: How it is measured.
        figure: What loaders are compared by; the rate is more the better, all others less.
        fixed: Whether an epoch is ``samples_per_worker`` long whatever the number of workers.
        epochs: Of a job.
        shuffle: Whether loaders shuffle; their orders may differ.
        random: Whether samples draw random numbers, so that only their labels can be compared.
        limit: Whether processes of a bare loop are measured next to the loaders.
        source: What loaders are given: ``"samples"``, ``"arrays"`` that some take whole, or
            ``"shards"``, which few can read.
        collate: What makes a batch of a list of samples: a module here and its function.
        parallel: Whether a sample takes so long that several threads may be the best.
        slow: Whether a sample takes so long that no more of them are read than are measured.
        needs: Packages beyond NumPy, by the names that are imported.
    """

    title: str
    batch_size: int
    samples_per_worker: int
    make: Callable[[int, int], Any]
    threads: int | None = None
    kind: Kind = "rate"
    figure: Figure = "rate"
    fixed: bool = False
    epochs: int = 1
    shuffle: bool = False
    random: bool = False
    limit: bool = False
    source: Literal["samples", "arrays", "shards"] = "samples"
    collate: tuple[str, str] | None = None
    parallel: bool = False
    slow: bool = False
    needs: tuple[str, ...] = ()

    @property
    def fresh(self) -> bool:
        """Whether each measurement needs a process that has done nothing before."""
        return self.kind == "import" or self.figure == "pss_mib"

    def length(self, workers: int, batches: int | None = None) -> int:
        """Return the samples of an epoch for ``workers`` workers (0 counts as 1).

        Args:
            workers: Threads or processes that will load it.
            batches: For each worker, where an epoch shall be shorter than ``samples_per_worker``.
        """
        length = self.samples_per_worker * (1 if self.fixed else max(1, workers))
        if batches is None or self.source == "shards":
            return length
        return min(length, self.batch_size * batches * max(1, workers))

    def collate_fn(self) -> Callable[[Sequence[Any]], Any] | None:
        """Return the function that makes a batch, None where loaders use their own."""
        if self.collate is None:
            return None
        module, name = self.collate
        found: Callable[[Sequence[Any]], Any] = getattr(
            import_module(f"benches.workloads.{module}"), name
        )
        return found


def _lazily(module: str, name: str, *args: Any, spins: bool = False) -> Callable[[int, int], Any]:
    """Return what makes a dataset and imports its module only then: some need torch or Pillow."""

    def make(length: int, spin: int) -> Any:
        function = getattr(import_module(f"benches.workloads.{module}"), name)
        return function(length, *args, *([spin] if spins else []))

    return make


WORKLOADS = {
    "photos": Workload(
        "JPEG 500x375, decode and resize to 224 with Pillow, batch 64",
        batch_size=64,
        samples_per_worker=512,
        make=_lazily("photos", "Photos"),
        limit=True,
        parallel=True,
        needs=("PIL",),
    ),
    **{
        f"photos_{generation}": Workload(
            f"JPEG 500x375, crop, flip and jitter by torchvision's {generation}, batch 64",
            batch_size=64,
            samples_per_worker=192,
            make=_lazily("torchvision_photos", "TorchvisionPhotos", generation),
            random=True,
            limit=True,
            parallel=True,
            needs=("PIL", "torch", "torchvision"),
        )
        for generation in ("v1", "v2")
    },
    "rows": Workload(
        "64 float32 of an array and an int, batch 256",
        batch_size=256,
        samples_per_worker=131_072,
        make=_lazily("arrays", "Rows"),
    ),
    "tensor_rows": Workload(
        "64 float32 of a tensor and a label of another, batch 256",
        batch_size=256,
        samples_per_worker=65_536,
        make=_lazily("arrays", "TensorRows"),
        needs=("torch",),
    ),
    "cifar": Workload(
        "3x32x32 tensors to float, padded, cropped and flipped at random, batch 64",
        batch_size=64,
        samples_per_worker=8192,
        make=_lazily("cifar", "Cifar"),
        random=True,
        needs=("torch",),
    ),
    "text": Workload(
        "20 to 120 words hashed in Python, padded by collate_fn, batch 64",
        batch_size=64,
        samples_per_worker=16_384,
        make=_lazily("text", "Text"),
        collate=("text", "pad_rows"),
    ),
    "empty": Workload(
        "a __getitem__ that returns the index, batch 256",
        batch_size=256,
        samples_per_worker=131_072,
        make=_lazily("indices", "Empty"),
    ),
    "arrays": Workload(
        "rows of 64 float32 of arrays and their labels, shuffled, batch 256",
        batch_size=256,
        samples_per_worker=524_288,
        make=_lazily("arrays", "Arrays"),
        fixed=True,
        shuffle=True,
        source="arrays",
    ),
    "tensor_dataset": Workload(
        "TensorDataset of rows of 64 float32 and labels, shuffled, batch 256",
        batch_size=256,
        samples_per_worker=524_288,
        make=_lazily("arrays", "row_tensors"),
        fixed=True,
        shuffle=True,
        source="arrays",
        needs=("torch",),
    ),
    "bandwidth": Workload(
        "3x384x384 float32 in memory, batch 16",
        batch_size=16,
        samples_per_worker=1024,
        make=_lazily("arrays", "Bandwidth"),
        limit=True,
        parallel=True,
    ),
    "remote": Workload(
        "10 ms of waiting a sample, batch 32",
        batch_size=32,
        samples_per_worker=64,
        make=_lazily("indices", "Remote"),
        threads=16,  # workers of forkserver take half a GB each where torch is that for GPUs
        parallel=True,
        slow=True,
    ),
    "pure_python": Workload(
        "0.2 ms of pure Python a sample, batch 64",
        batch_size=64,
        samples_per_worker=2048,
        make=_lazily("spin", "PurePython", spins=True),
        limit=True,
        parallel=True,
    ),
    "tar_zst": Workload(
        "JPEGs of 500x375 in .tar.zst, streamed and decoded, batch 64",
        batch_size=64,
        samples_per_worker=512,
        make=_lazily("tar_shards", "Shards"),
        fixed=True,
        random=True,  # decoders differ by a level or two
        source="shards",
        parallel=True,
        needs=("PIL",),
    ),
    "imports": Workload(
        "ThreadLoader imported, where NumPy and torch have been",
        batch_size=1,
        samples_per_worker=1,
        make=_lazily("indices", "Empty"),
        kind="import",
        figure="first_batch_ms",
        slow=True,
    ),
    "start_paths": Workload(
        "a loader and its first batch of 10^6 paths, in a warm process, batch 64",
        batch_size=64,
        samples_per_worker=10**6,
        make=_lazily("indices", "Paths"),
        kind="first batch",
        figure="first_batch_ms",
        fixed=True,
    ),
    "start_shuffled": Workload(
        "a loader and its first batch of 10^6 paths, shuffled, in a warm process, batch 64",
        batch_size=64,
        samples_per_worker=10**6,
        make=_lazily("indices", "Paths"),
        kind="first batch",
        figure="first_batch_ms",
        fixed=True,
        shuffle=True,
    ),
    "mnist_job": Workload(
        "TensorDataset of MNIST's size, shuffled, ten epochs from the constructor on, batch 64",
        batch_size=64,
        samples_per_worker=60_000,
        make=_lazily("arrays", "image_tensors"),
        kind="job",
        fixed=True,
        epochs=10,
        shuffle=True,
        source="arrays",
        needs=("torch",),
    ),
    "integers_job": Workload(
        "256 integers, a hundred epochs from the constructor on, batch 64",
        batch_size=64,
        samples_per_worker=256,
        make=_lazily("indices", "Empty"),
        kind="job",
        fixed=True,
        epochs=100,
    ),
    "strings": Workload(
        "5 million strings in a list, shuffled: memory of all processes, batch 256",
        batch_size=256,
        samples_per_worker=131_072,
        make=_lazily("indices", "Paths", 5_000_000),
        figure="pss_mib",
        fixed=True,
        shuffle=True,
        parallel=True,
        slow=True,
    ),
}
