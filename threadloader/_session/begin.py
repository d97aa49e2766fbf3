"""How an epoch begins: from a loader's settings and the state of its run, to its iterator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader._epoch.epoch import Epoch
from threadloader._epoch.open_feed import open_feed
from threadloader._epoch.skipped import Tally
from threadloader._order.sampler_epoch import (
    SavedEpoch,
    epoch_of,
    tell_again,
    tell_of_epoch,
    told_epoch,
    warn_of_same_order,
)
from threadloader._order.sampler_pass import open_pass
from threadloader._order.samplers import length_of
from threadloader._session.data_pipes import prepare_pipes
from threadloader._session.ranks import rank_with_own_streams, share_of
from threadloader._session.run_state import LastEpoch
from threadloader._session.state import has_ended
from threadloader._work.calling_thread import CallingThread
from threadloader._work.workers import may_draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._epoch.feed import Feed
    from threadloader._order.sampler_pass import SamplerPass
    from threadloader._ranks.share import Share
    from threadloader._ranks.votes import Votes
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochDraws, Seeds
    from threadloader._session.run_state import State
    from threadloader._session.session import Session
    from threadloader._settings import Settings
    from threadloader._work.counters import Deliveries

__all__ = ["begin"]


def begin(session: Session, settings: Settings) -> Epoch | None:
    """Begin the next epoch; return None if all of it was delivered when its state was saved.

    If it does not come about, the next call begins the same one.

    Raises:
        StateError: The state is not of this sampler, dataset, generator or number of replicas.
    """
    before = workers = run = epoch = seen = None  # nothing to put back
    try:
        with session.planning:
            before, workers = session.run, session.kept_workers.workers
            seen = session.seen_number
            saved = before.saved
            over = saved is not None and has_ended(saved)
            told = told_epoch(settings.index_sampler, session.seen_number) if over else None
            if over:
                settings = settings._replace(move=None)
            # At once, for an epoch that the user's code begins meanwhile.
            run = before.advanced()
            session.run = run
            epoch = _plan(session, settings, run.seeds, saved)
        epoch.start()
        if not over:
            return epoch
        # To its end, for all generators; where another process draws, it is not there yet.
        next(epoch, None)
        if told is not None:
            tell_again(settings.index_sampler, told)
        return None
    except BaseException:
        with session.planning:
            # If it was begun, and nobody has begun another one since.
            if before is not None and run is not None and session.run.seeds is run.seeds:
                session.put_back(before, workers)
                session.seen_number = seen
        if epoch is not None:
            epoch.cancel()
        raise
    finally:
        del epoch  # this frame stays with the error


def _plan(session: Session, settings: Settings, seeds: Seeds, saved: State | None) -> Epoch:
    """Return the next epoch, whose threads `Epoch.start` lets begin.

    Args:
        session: Of the loader; with ``planning`` held.
        settings: Of the loader.
        seeds: Of the epoch.
        saved: The state to continue from; None for the beginning.
    """
    session.renew(settings)
    # Before there are workers, whose first use of the device would be in its place.
    device = None if settings.device is None else settings.device.here()
    dataset = session.restore_dataset(settings, saved)
    position = session.next_position(settings, seeds.epoch, saved)
    share, seed = None, settings.seed
    if settings.shard is not None or seed is None:
        share = share_of(settings, iterable=settings.iterable)
        seed = session.agreement.seed(settings, share, seeds, saved)
    draws = seeds.begin_epoch(seed, settings.generator, saved)
    rank = rank_with_own_streams(settings, share)
    if not settings.iterable:
        _tell_of_epoch(settings.index_sampler, position, session, shares_out=rank is not None)
    shared_seed = draws.shared_seed(settings.dataset)
    sampler_pass = _open_sampler_pass(settings, draws, position, share, checked=rank is None)
    reused = session.kept_workers.reuse(settings)
    epoch_seeds = draws.seeds(kept=reused is not None, rank=rank or 0, replicas=settings.iterable)
    workers, feed, epoch, votes, counted = reused, None, None, None, None
    try:
        votes = session.agreement.votes(settings, share)
        if reused is None and settings.num_workers:
            # As torch does a second time with new workers.  Its second start of the sampler
            # would make the order of one that draws at once depend on there being workers.
            draws.draw_again(settings.dataset)
            workers = session.kept_workers.make(settings, epoch_seeds.workers)
        prepare = prepare_pipes(settings, workers, shared_seed, new=reused is None)
        isolates = settings.isolate_rng and may_draw(settings)
        feed = open_feed(
            settings,
            sampler_pass,
            workers,
            epoch_seeds,
            position,
            session.collation,
            isolates=isolates,
            share=share,
        )
        counted = session.stats.begin_epoch()
        calling = CallingThread(settings, workers, epoch_seeds.workers, counted, isolates=isolates)
        feed.start(calling)
        kind: Callable[..., Epoch] = Epoch
        if votes is not None and share is not None:
            kind = _agreed(votes, share.world_size)
        epoch = kind(
            settings,
            feed,
            session.collation,
            Tally(session.skipped, position, settings.max_skipped),
            workers,
            calling=calling,
            stats=session.stats,
            counted=counted,
            device=device,
            prepare=prepare,
            base_seed=epoch_seeds.workers,
            begun=position.batches,
        )
        order = None if sampler_pass is None else sampler_pass.order
        session.add(epoch, LastEpoch(position, draws, order, dataset))
    except BaseException as error:  # Ctrl-C, say
        _end(epoch, votes, feed, counted)
        shared = reused is not None and not settings.replicated
        session.kept_workers.give_up(error, workers, reused=shared)
        raise
    return epoch


def _end(
    epoch: Epoch | None, votes: Votes | None, feed: Feed | None, counted: Deliveries | None
) -> None:
    """End what there is of an epoch that does not come about."""
    if counted is not None:
        counted.end()
    if epoch is not None:
        epoch.cancel()
    if votes is not None:
        votes.leave()
    if feed is not None:
        feed.end()


def _agreed(votes: Votes, world_size: int) -> Callable[..., Epoch]:
    """Return what makes an epoch that has as many batches as those of other ranks."""
    from threadloader._epoch.agreed_epoch import AgreedEpoch  # noqa: PLC0415  # for ranks only

    return partial(AgreedEpoch, votes=votes, world_size=world_size)


def _tell_of_epoch(sampler: Any, position: Position, session: Session, *, shares_out: bool) -> None:
    """Tell the sampler which epoch goes on, and the user if the order is that of the one before.

    Args:
        sampler: Yields a batch's indices, or single ones.
        position: Where the epoch begins; has one lane.
        session: Of the loader.
        shares_out: Whether the sampler shares the data out between ranks.
    """
    (lane,) = position.lanes
    state, seen, last = position.saved, session.seen_number, session.run.last
    if state is not None:
        saved = SavedEpoch(lane.sampler_epoch, bool(state["begun"]), has_ended(state))
        tell_of_epoch(sampler, seen, saved)
    elif shares_out and last is not None and last.position.finished:
        warn_of_same_order(sampler, seen)
    # Until it is started, it may be told of another one.
    lane.sampler_epoch = session.seen_number = epoch_of(sampler)


def _open_sampler_pass(
    settings: Settings,
    draws: EpochDraws,
    position: Position,
    share: Share | None,
    *,
    checked: bool,
) -> SamplerPass | None:
    """Start the sampler; return None where there is no sampler.

    Raises:
        StateError: The position is another sampler's.
        ValueError: A `TokenBatches` has the lengths of another dataset.
    """
    if settings.iterable:
        return None
    check_samples = getattr(settings.index_sampler, "check_samples", None)  # of a `TokenBatches`
    samples = None if check_samples is None else length_of(settings.dataset)
    if check_samples is not None and samples is not None:
        check_samples(samples)
    return open_pass(
        settings.index_sampler,
        draws,
        snapshot_every=settings.snapshot_every_n_steps or 0,
        position=position,
        # The threads make the indices of them, each those that it needs.
        arrays=not settings.whole_batches,
        batched=settings.batched,
        share=share,
        checked=checked,
    )
