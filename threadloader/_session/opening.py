"""How an epoch is opened: which threads there are, and where their batches come from.

A loader's attributes can change between epochs, so each epoch is opened from what they are then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._epoch.feed import SamplerFeed, StreamFeed, open_stream
from threadloader._fetch.array_rows import source_of
from threadloader._fetch.fetcher import Fetcher
from threadloader._order.planner import Planner, TicketSize
from threadloader._order.sampler_pass import open_pass
from threadloader._order.window import Window
from threadloader._rng.streams import WorkerStream
from threadloader._threads.pool import SingleJob
from threadloader._work.open_batch import Stages
from threadloader._work.reading import ReadSamples
from threadloader._work.workers import (
    Workers,
    WorkerSetup,
    make_readers,
    make_transformers,
    make_workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Thread

    from threadloader._batch.collate import Collation, Output
    from threadloader._device import Device
    from threadloader._fetch.dataset_copy import DatasetCopy
    from threadloader._fetch.fetcher import Cancellable, Fetches
    from threadloader._fetch.on_error import OnError
    from threadloader._order.sampler_pass import SamplerPass
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochDraws, EpochSeeds
    from threadloader._work.counters import Stats
    from threadloader._work.open_batch import Worker

__all__ = ["Opening"]


@dataclass(frozen=True, slots=True)
class Opening:
    """What is loaded, and by whom."""

    dataset: Any  # the user's
    index_sampler: Any  # yields a batch's indices, or single ones; a dummy for an iterable dataset
    streams: bool  # whether it is read in its own order
    plain: bool  # whether it is an iterable of no class of torch's, which can't shard itself
    rows: int | None  # samples in a batch; None for samples that are not collated
    batched: bool  # whether a batch has many samples
    whole: bool  # whether ``__getitems__`` is called
    drop_last: bool
    workers: int  # threads; 0 is the calling thread
    transform: Callable[[Any], Any] | None
    init_fn: Callable[[int], Any] | None
    how: DatasetCopy
    in_order: bool  # whether batches are delivered as they are planned
    isolated: bool  # whether samples draw from streams of their own
    collate_fn: Callable[[Any], Any] | None
    output: Output
    window: Window
    timeout: float | None  # seconds to wait for a batch; None for ever
    persistent: bool  # whether threads are kept for the next epoch
    seed: int | None  # decides all random numbers
    generator: Any  # the user's; draws them otherwise
    device: Device | None  # batches are copied to it; None leaves them where they are
    ahead: int  # batches that are copied ahead
    pinned: bool  # whether batches are put into page-locked memory, for the user to copy
    every: int  # batches from one saved state of the user's objects to the next; 0 for none
    on_error: OnError  # what is done about a sample that fails
    max_skipped: int | None  # samples that may be left out of an epoch; None for any number
    ticket_size: TicketSize  # tells how large tickets should be
    length_told: int | None  # of an iterable dataset, if ``len(loader)`` has told it by now

    @classmethod
    def of(
        cls,
        loader: Any,
        index_sampler: Any,
        *,
        streams: bool,
        plain: bool,
        batched: bool,
        whole: bool,
        device: Device | None,
        pinned: bool,
        ticket_size: TicketSize,
        length_told: int | None,
    ) -> Opening:
        """Return what a `ThreadLoader` is set up for now; what it does not tell is given."""
        rows = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        window = Window.chosen(
            loader.num_workers,
            rows=rows if batched else 1,
            whole=whole,
            prefetch=loader.prefetch,
            factor=loader.prefetch_factor,
        )
        return cls(
            loader.dataset,
            index_sampler,
            streams=streams,
            plain=plain,
            rows=loader.batch_size,
            batched=batched,
            whole=whole,
            drop_last=loader.drop_last,
            workers=loader.num_workers,
            transform=loader.transform,
            init_fn=loader.worker_init_fn,
            how=loader.dataset_copy,
            in_order=bool(loader.in_order),
            isolated=loader.isolate_rng,
            collate_fn=loader.collate_fn,
            output=loader.output,
            window=window,
            timeout=loader.timeout or None,
            persistent=loader.persistent_workers,
            seed=loader.seed,
            generator=loader.generator,
            device=device,
            ahead=loader.device_prefetch,
            pinned=pinned,
            every=loader.snapshot_every_n_steps or 0,
            on_error=loader.on_error,
            max_skipped=loader.max_skipped,
            ticket_size=ticket_size,
            length_told=length_told,
        )

    @property
    def replicates(self) -> bool:
        """Whether each worker reads an iterable dataset of its own."""
        return self.streams and not self.plain

    @property
    def shares(self) -> bool:
        """Whether workers read the user's dataset itself."""
        return self.workers == 0 or self.how == ("auto" if self.plain else "shared")

    def make_workers(
        self, name: str, base_seed: int, stats: Stats, before: tuple[Thread, ...]
    ) -> Workers | None:
        """Return the threads, each with its copy of the dataset; None for the calling thread.

        Args:
            name: Prefix of the threads' names.
            base_seed: Of the workers.
            stats: Counts what they do.
            before: Readers of a plain iterable that it can't be read at once with.
        """
        if self.workers == 0:
            return None
        # Without a transform one thread is all that a plain iterable has use for.
        workers = 1 if self.plain and self.transform is None else self.workers
        setup = WorkerSetup(
            name, workers, base_seed, stats, self.isolated, before, self.collate_fn, self.how
        )
        dataset = _torch.unwrapped(self.dataset)
        # There is one reader of a plain iterable; an iterator would be read twice.
        how = "shared" if self.plain and self.how == "auto" else self.how
        if not self.streams:
            return make_workers(setup, dataset, how, self.init_fn, whole=self.whole)
        if self.transform is not None and workers > 1:
            return make_transformers(setup, dataset, self.transform, how, self.init_fn)
        return make_readers(setup, dataset, how, self.init_fn, self.transform)

    def prepare_pipes(
        self, staff: Workers | None, shared_seed: int, *, fresh: bool
    ) -> Callable[[Cancellable], None]:
        """Seed and shard what is read of a data pipe.

        Args:
            staff: As `make_workers` returned it.
            shared_seed: Of all ranks and workers.
            fresh: Whether nothing was read yet: else a worker may be reading, and does it itself.

        Returns:
            Has the workers do what is left to them, unless the epoch was cancelled by then.
        """
        pipes = [_torch.unwrapped(self.dataset)]
        if staff is not None:
            pipes = [fetcher.dataset for fetcher in staff.fetchers]
            if self.transform is not None:
                del pipes[1:]  # one reads
        prepares = [
            partial(_torch.prepare_pipe, pipe, shared_seed, len(pipes), number)
            for number, pipe in enumerate(pipes)
        ]
        if staff is not None and not fresh:
            return partial(_prepare_each, staff, prepares)
        for prepare in prepares:
            prepare()
        return _nothing_left

    def sampler_pass(self, draws: EpochDraws, position: Position) -> SamplerPass | None:
        """Start the sampler; None where there is no sampler.

        Args:
            draws: Of the epoch.
            position: Where it begins.

        Raises:
            StateError: The position is another sampler's.
        """
        if self.streams:
            return None
        arrays = not self.whole and source_of(self.dataset) is not None
        return open_pass(
            self.index_sampler, draws, every=self.every, position=position, arrays=arrays
        )

    def feed(
        self,
        sampler_pass: SamplerPass | None,
        staff: Workers | None,
        seeds: EpochSeeds,
        position: Position,
        collation: Collation,
    ) -> SamplerFeed | StreamFeed:
        """Return where the batches come from.

        Args:
            sampler_pass: As `sampler_pass` returned it.
            staff: As `make_workers` returned it.
            seeds: Of this epoch.
            position: Where the epoch begins.
            collation: Makes the batches.

        Raises:
            StateError: The position is another dataset's or sampler's.
        """
        seed = own = None
        if self.isolated:
            seed = seeds.samples
            if staff is None:
                own = WorkerStream(seeds.workers, 0)
        dataset = _torch.unwrapped(self.dataset)
        collate_fns = None  # the calling thread calls the user's own
        if staff is not None:
            collate_fns = staff.collate_fns_for(self.collate_fn, self.how, dataset)
        if sampler_pass is None:
            return open_stream(
                [] if staff is None else staff.pools,
                [ReadSamples(dataset, self.transform)] if staff is None else staff.fetchers,
                self.rows,
                drop_last=self.drop_last,
                transforms=self.transform is not None,
                ticket_size=self.ticket_size,
                collation=collation,
                announced=(self.dataset, self.length_told),
                position=position,
                every=self.every,
                goes_on=self.shares or self.persistent,
                in_order=self.in_order,
                seed=seed,
                stream=own,
                on_error=self.on_error,
                pass_seed=seeds.samples,
                collate_fns=collate_fns,
            )
        if staff is None:
            pool = None
            fetchers: list[Fetches] = [Fetcher(self.dataset, whole=self.whole)]
        else:
            pool, fetchers = staff.pools[0], staff.fetchers
        stages = Stages(
            fetchers,
            self.whole,
            self.ticket_size,
            collation,
            seed,
            self.on_error,
            gathers=collation.direct,
            collate_fns=collate_fns,
        )
        planner = Planner(sampler_pass, position.lanes[0], batched=self.batched, whole=self.whole)
        # A sampler of the user's may be told which epoch it is between iter() and the first batch.
        eager = sampler_pass.known or not position.restored
        return SamplerFeed(planner, stages, pool, position, own, eager=eager)


def _prepare_each(
    staff: Workers, prepares: Sequence[Callable[[], None]], epoch: Cancellable
) -> None:
    """Have each worker prepare its pipe before it reads on."""
    for pool, prepare in zip(staff.pools, prepares, strict=False):
        pool.put(SingleJob(partial(_prepare, prepare, epoch)))


def _prepare(prepare: Callable[[], None], epoch: Cancellable, _: Worker) -> None:
    if not epoch.cancelled:  # or a later epoch reads by now
        prepare()


def _nothing_left(_: Cancellable) -> None:
    """All was prepared."""
