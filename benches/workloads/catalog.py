"""The list of workloads: a dataset each, and how it is batched.

A sample is always a pair ``(value, label)`` with ``label = index % 100``, so that
`benches.harness.measurement` can check what a loader delivers. Dataset classes live at
module level (worker processes pickle them) and offer ``__getitem__`` only.

An epoch has ``samples_per_worker`` samples for each worker, so that it lasts
equally long whatever the number of workers: start and end of an epoch, where
loaders are idle, then weigh the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from benches.workloads.arrays import Bandwidth, Rows
from benches.workloads.remote import Remote
from benches.workloads.spin import PurePython

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DECODERS", "SIDES", "WORKLOADS", "Dataset", "Workload"]

DECODERS = ("leanjpeg-simple", "simplejpeg", "pillow-simd", "pillow")
SIDES = (None, 224)  # pixels; None for images as they are


class Dataset(Protocol):
    """A map-style dataset of pairs, as all loaders take it."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return the sample's value and its label."""
        ...


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
    """

    title: str
    batch_size: int
    samples_per_worker: int
    make: Callable[[int, int], Dataset]
    threads: int | None = None

    def dataset(self, workers: int, spin: int = 0) -> Dataset:
        """Make the dataset of an epoch for ``workers`` workers (0 counts as 1).

        Args:
            workers: Threads or processes that will load it.
            spin: Iterations of the pure-Python workload.
        """
        return self.make(self.samples_per_worker * max(1, workers), spin)


def _photos(length: int, _: int) -> Dataset:
    """Make the photos; the only workload that needs Pillow."""
    from benches.workloads.photos import Photos

    return Photos(length)


def _decoded(decoder: str, side: int | None) -> Workload:
    """Make the workload of one decoder; needs Pillow."""

    def make(length: int, _: int) -> Dataset:
        from benches.workloads.decoded import Decoded

        return Decoded(length, decoder, side)

    what = f"decoded and resized to {side}" if side else "decoded"
    return Workload(f"JPEG 500x375, {what} by {decoder}, batch 16", 16, 512, make)


WORKLOADS = {
    "photos": Workload(
        "JPEG 500x375, decode and resize to 224 with Pillow, batch 64",
        batch_size=64,
        samples_per_worker=512,
        make=_photos,
    ),
    "rows": Workload(
        "64 float32 and an int, batch 256",
        batch_size=256,
        samples_per_worker=131_072,
        make=lambda length, _: Rows(length),
    ),
    "bandwidth": Workload(
        "3x384x384 float32 in memory, batch 16",
        batch_size=16,
        samples_per_worker=2048,
        make=lambda length, _: Bandwidth(length),
    ),
    "remote": Workload(
        "10 ms of waiting a sample, batch 32",
        batch_size=32,
        samples_per_worker=64,
        make=lambda length, _: Remote(length),
        threads=32,
    ),
    "pure_python": Workload(
        "0.2 ms of pure Python a sample, batch 64",
        batch_size=64,
        samples_per_worker=4096,
        make=PurePython,
    ),
    **{
        f"{decoder} {side or 'full'}": _decoded(decoder, side)
        for decoder in DECODERS
        for side in SIDES
    },
}
