"""How the feed of an epoch is opened: of a sampler, or of the replicas of an iterable dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader._epoch.sampler_feed import SamplerFeed
from threadloader._fetch.fetcher import Fetcher
from threadloader._fetch.own_generators import seeded
from threadloader._order.planner import Planner
from threadloader._rng.streams import Current, WorkerStream
from threadloader._threads.worker_info import Introduction
from threadloader._work.open_batch import Pipeline
from threadloader._work.workers import may_draw

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._epoch.iterable_feed import IterableFeed
    from threadloader._epoch.steps import Steps
    from threadloader._fetch.fetcher import Fetches
    from threadloader._order.sampler_pass import SamplerPass
    from threadloader._order.shares import Share
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochSeeds
    from threadloader._settings import Settings
    from threadloader._work.open_batch import PerWorker
    from threadloader._work.workers import Workers

__all__ = ["open_feed"]


def open_feed(
    settings: Settings,
    sampler_pass: SamplerPass | None,
    workers: Workers | None,
    seeds: EpochSeeds,
    position: Position,
    collation: Collation,
    share: Share | None = None,
    steps: Steps | None = None,
) -> SamplerFeed | IterableFeed:
    """Return the feed of one epoch.

    Args:
        settings: Of the loader.
        sampler_pass: The pass over the sampler; None for an iterable dataset.
        workers: Whose threads do the work; None for the calling thread.
        seeds: Of the epoch.
        position: Where the epoch begins; it is given a lane for each replica, if it has none.
        collation: Makes the batches.
        share: Of an iterable dataset; None where it shares itself out.
        steps: Are told what is read of an iterable dataset; None where nobody asks.

    Raises:
        StateError: The position is that of another number of replicas.
        Exception: What the dataset's ``__iter__`` raises, where no thread calls it.
    """
    if sampler_pass is None:
        # Most loaders read no iterable, and these modules are a tenth of the package's import.
        from threadloader._epoch.open_iterable_feed import open_iterable_feed  # noqa: PLC0415

        rng = _rng_here(seeds, workers, isolated=settings.isolate_rng)
        return open_iterable_feed(settings, workers, seeds, position, collation, rng, share, steps)
    pool = None if workers is None else workers.pools[0]
    fetchers: list[Fetches] = [Fetcher(settings.dataset, whole_batches=settings.whole_batches)]
    isolated = settings.isolate_rng and may_draw(
        settings, fetchers if workers is None else workers.fetchers
    )
    pipeline = Pipeline(
        fetchers,
        settings.whole_batches,
        settings.ticket_size,
        collation,
        seeds.samples if isolated else None,
        settings.on_error,
        gathers=collation.direct,
        collate_fns=_own_collate_fn(settings),
    )
    if workers is not None and pool is not None:
        pipeline = pipeline._replace(
            fetchers=workers.fetchers,
            collate_fns=workers.collate_fns_for(settings),
            concurrency=pool.concurrency,
            in_process=pipeline,
        )
    planner = Planner(
        sampler_pass,
        position.lanes[0],
        batched=settings.batched,
        whole_batches=settings.whole_batches,
    )
    # A sampler of the user's may be told which epoch it is between iter() and the first batch.
    eager = settings.draws_ahead and (sampler_pass.known or not position.restored)
    inline = workers is None or workers.begins_inline
    rng = _rng_here(seeds, None if inline else workers, isolated=isolated)
    introduction = None
    if workers is not None and inline:
        generators = Current() if isolated else WorkerStream(seeds.workers, 0)
        introduction = Introduction(
            0, workers.num_workers, seeds.workers, settings.dataset, generators
        )
    return SamplerFeed(planner, pipeline, pool, position, rng, introduction, eager=eager)


def _own_collate_fn(settings: Settings) -> PerWorker:
    """Return what the calling thread collates by; None for the user's own function itself."""
    function = seeded(settings.collate_fn, None)
    return [None if function is settings.collate_fn else function]


def _rng_here(seeds: EpochSeeds, workers: Workers | None, *, isolated: bool) -> WorkerStream | None:
    """Return what the calling thread draws from; None for its own random state."""
    return WorkerStream(seeds.workers, 0) if workers is None and isolated else None
