"""How the feed of an iterable dataset is opened: a reader for each replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader import _torch
from threadloader._epoch.iterable_feed import IterableFeed
from threadloader._fetch.read_samples import ReadSamples
from threadloader._resume.position import Lane
from threadloader._threads.parts import Part
from threadloader._warnings import warn_user
from threadloader._work.iterable_reader import IterableReader
from threadloader._work.open_batch import Pipeline
from threadloader.errors import StateError

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._epoch.steps import Steps
    from threadloader._fetch.fetcher import Fetches
    from threadloader._order.shares import Share
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochSeeds
    from threadloader._rng.streams import WorkerStream
    from threadloader._settings import Settings
    from threadloader._work.workers import Workers

__all__ = ["open_iterable_feed"]


def open_iterable_feed(
    settings: Settings,
    workers: Workers | None,
    seeds: EpochSeeds,
    position: Position,
    collation: Collation,
    rng: WorkerStream | None,
    share: Share | None = None,
    steps: Steps | None = None,
) -> IterableFeed:
    """Return the feed of one pass over an iterable dataset; see `open_feed`."""
    pools, fetchers, collate_fns = [], _calling_thread_reads(settings), None
    if workers is not None:
        pools, fetchers = workers.pools, workers.fetchers
        collate_fns = workers.collate_fns_for(settings)
    transforms = settings.transform is not None
    # With a transform one thread reads, and hands on to the others, which apply it.
    hand_on = pools[1].put if transforms and len(pools) > 1 else None
    reading_pools = pools if hand_on is None else pools[:1]
    _fit_lanes(position, max(1, len(reading_pools)))
    if position.restored:
        _warn_of_reading_again(position)
    readers = [
        IterableReader(
            number,
            fetchers[number].dataset,
            settings,
            position,
            seeds.common,
            _part(share, number, position),
        )
        for number in range(len(position.lanes))
    ]
    pipeline = Pipeline(
        fetchers,
        not transforms,
        settings.ticket_size,
        collation,
        # Without a transform all that a replica draws comes from its worker's stream, as in torch.
        seeds.samples if transforms and settings.isolate_rng else None,
        settings.on_error,
        collate_fns=collate_fns,
    )
    return IterableFeed(
        readers,
        pipeline,
        reading_pools,
        hand_on,
        settings,
        position,
        stream=rng,
        share=share,
        steps=steps,
    )


def _part(share: Share | None, replica: int, position: Position) -> Part | None:
    """Return what a replica's dataset is asked for."""
    if share is None:
        return None
    replicas = len(position.lanes)
    return Part.of(share.rank, share.world_size, replica, replicas, position.epoch)


def _calling_thread_reads(settings: Settings) -> list[Fetches]:
    """Return what gives the calling thread its samples: of the user's own dataset."""
    return [ReadSamples(_torch.unwrapped(settings.dataset), settings.transform)]


def _fit_lanes(position: Position, replicas: int) -> None:
    """Give a new position its lanes; refuse one that was saved with others."""
    if not position.lanes:
        position.lanes.extend(Lane() for _ in range(replicas))
        position.turn = replicas - 1
    if len(position.lanes) != replicas:
        msg = (
            f"the state is that of {len(position.lanes)} replicas of an iterable dataset, and "
            f"there are {replicas} now: it needs the same number of workers"
        )
        raise StateError(msg)


def _warn_of_reading_again(position: Position) -> None:
    """Warn of an iterable that has to be read from its beginning."""
    batches = sum(
        lane.batches for lane in position.lanes if not lane.ended and lane.checkpoint is None
    )
    if batches:
        msg = (
            "the state holds none of the iterable dataset, so what was delivered is read again, "
            f"to be left out (batches: {batches}); state_dict() and load_state_dict() on the "
            "dataset or its iterator save that time"
        )
        warn_user(msg)
