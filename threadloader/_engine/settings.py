"""What a loader is set up for: its arguments, read once for each epoch.

The attributes of a loader may change between two epochs, and an epoch goes on with those that it
began with.  A field has the name of the argument that it comes from, here and wherever it is used.
What outlives the beginning of an epoch keeps the fields that it needs, not the settings: they refer
to the dataset and the sampler.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from threadloader._order.tickets import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.layout import Output
    from threadloader._order.share import Uneven
    from threadloader._torch.device import Device
    from threadloader._worker.failure import OnError


DatasetCopy = Literal["auto", "shared", "deep"]

# The fields that are attributes of torch's loader, too; the others are arguments of ours.
TORCHS = (
    *("dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "collate_fn"),
    *("drop_last", "timeout", "worker_init_fn", "generator", "persistent_workers", "in_order"),
    "prefetch_factor",
)


class Settings(NamedTuple):
    """The arguments of a `ThreadLoader`, and what follows from them.

    Threads:
        all: any; nothing in it is replaced.
    """

    # As the arguments and attributes of a loader.
    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    generator: Any
    persistent_workers: bool
    in_order: bool
    prefetch_factor: int | None
    prefetch: int | None
    output: Output
    dataset_copy: DatasetCopy
    transform: Callable[[Any], Any] | None
    seed: int | None
    isolate_rng: bool
    snapshot_every_n_steps: int | None
    device_prefetch: int
    on_error: OnError
    max_skipped: int | None
    max_threads: int
    memory_budget: int | None  # bytes
    shard: Any
    uneven: Uneven
    # What follows from them.
    name: str  # prefix of the threads' names, the loader's own
    iterable: bool  # whether the dataset is read in its own order
    unsharded: bool  # whether it is an iterable of no class of torch's, which all threads share
    whole_batches: bool  # whether one worker fetches a batch, by ``__getitems__`` or as an iterable
    tunes_threads: bool  # whether the user chose no number of threads
    device: Device | None  # batches are copied to it; None leaves them where they are
    move: Callable[[Any], Any] | None  # moves a batch to a device without streams; None for none
    pinned: bool  # whether batches are put into page-locked memory, for the user to copy
    chunk_size: int | None  # samples of a ticket; None to find the number
    reported_length: int | None  # of an iterable dataset, by the latest ``len(loader)``

    @property
    def batched(self) -> bool:
        """Whether samples are collated."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def window(self) -> Window:
        """How many batches may be planned."""
        rows = self.batch_size or getattr(self.batch_sampler, "batch_size", None) or 0
        return Window.of(
            self.num_workers,
            rows if self.batched else 1,
            whole_batches=self.whole_batches,
            chosen=self.prefetch or (self.prefetch_factor or 0) * self.num_workers or None,
            budget=self.memory_budget,
        )

    @property
    def index_sampler(self) -> Any:
        """Yields the indices of a batch, or single ones; a dummy for an iterable dataset."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def needs_threads(self) -> bool:
        """Whether there must be threads: that they are kept, or waited for, or copy ahead."""
        return bool(self.persistent_workers or self.timeout or self.device or self.worker_init_fn)

    @property
    def is_default(self) -> bool:
        """Whether the user chose neither a number of threads, nor what needs some."""
        return self.tunes_threads and not (self.iterable or self.needs_threads)

    @property
    def batches(self) -> float:
        """The batches of an epoch; infinite if unknown."""
        try:
            return len(self.index_sampler)
        except Exception:  # noqa: BLE001  # of a dataset without length, say
            return math.inf

    @property
    def kept_batches(self) -> int:
        """The batches that free slots are kept for, while no more are planned than by default."""
        # A consumer holds two batches for a moment: its last, and the one it is just given.
        copied = 0 if self.device is None else self.device_prefetch
        return self.window.most + 2 + copied

    @property
    def shared_out(self) -> str:
        """What threads have of an iterable dataset: samples, replicas or one; "" if map-style."""
        if not self.iterable:
            return ""
        return "samples" if self.transform is not None else "one" if self.unsharded else "replicas"

    @property
    def replicated(self) -> bool:
        """Whether each worker reads an iterable dataset of its own."""
        return self.iterable and not self.unsharded

    @property
    def shares_dataset(self) -> bool:
        """Whether workers read the user's dataset itself."""
        shared = "auto" if self.unsharded else "shared"
        return self.num_workers == 0 or self.dataset_copy == shared
