"""How the feed of an epoch is opened: of a sampler, or of the replicas of an iterable dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader._epoch.sampler_feed import SamplerFeed
from threadloader._order.planner import Planner
from threadloader._work.open_batch import Pipeline

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._epoch.iterable_feed import IterableFeed
    from threadloader._order.sampler_pass import SamplerPass
    from threadloader._ranks.share import Share
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochSeeds
    from threadloader._settings import Settings
    from threadloader._work.workers import Workers

__all__ = ["open_feed"]


def open_feed(
    settings: Settings,
    sampler_pass: SamplerPass | None,
    workers: Workers | None,
    seeds: EpochSeeds,
    position: Position,
    collation: Collation,
    *,
    isolates: bool,
    share: Share | None = None,
) -> SamplerFeed | IterableFeed:
    """Return the feed of one epoch.

    Args:
        settings: Of the loader.
        sampler_pass: The pass over the sampler; None for an iterable dataset.
        workers: Whose threads do the work; None for the calling thread.
        seeds: Of the epoch.
        position: Where the epoch begins; it is given a lane for each replica, if it has none.
        collation: Makes the batches.
        isolates: Whether samples draw from streams of their own.
        share: Of an iterable dataset; None where it shares itself out.

    Raises:
        StateError: The position is that of another number of replicas.
    """
    transforms = settings.transform is not None
    pipeline = Pipeline(
        settings.whole_batches if sampler_pass is not None else not transforms,
        settings.ticket_size,
        collation,
        # Without a transform all that a replica draws comes from its worker's stream, as in torch.
        seeds.samples if isolates and (sampler_pass is not None or transforms) else None,
        settings.on_error,
        gathers=collation.direct and sampler_pass is not None,
        exchanged=None if workers is None else workers.exchanged(settings),
    )
    if sampler_pass is None:
        # Most loaders read no iterable, and these modules are a tenth of the package's import.
        from threadloader._epoch.iterable_feed import open_iterable_feed  # noqa: PLC0415

        return open_iterable_feed(settings, pipeline, workers, seeds, position, share)
    planner = Planner(
        sampler_pass,
        position.lanes[0],
        batched=settings.batched,
        whole_batches=settings.whole_batches,
    )
    # A sampler of the user's may be told which epoch it is between iter() and the first batch.
    eager = settings.draws_ahead and (sampler_pass.known or not position.restored)
    pool = None if workers is None else workers.pools[0]
    return SamplerFeed(planner, pipeline, pool, position, eager=eager)
