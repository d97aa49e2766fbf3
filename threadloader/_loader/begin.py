"""How an epoch begins: from a loader's settings and the state of its run, to its iterator.

    where it begins -> its seed -> its draws -> the sampler -> workers -> the feed -> the iterator

Then the threads start.  What an epoch has begun that does not come about is undone in the opposite
order, and the next call begins the same one.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader._engine.epoch import Epoch
from threadloader._engine.feed import open_feed
from threadloader._engine.maker import Maker
from threadloader._engine.skipped import Tally
from threadloader._engine.window import Window
from threadloader._engine.workers import CallingThread, may_draw
from threadloader._lifetime import DROPPED, importing
from threadloader._loader.session import LastEpoch
from threadloader._order.ranks import (
    epoch_of,
    rank_with_own_streams,
    share_of,
    tell_again,
    tell_of_epoch,
    told_epoch,
    warn_of_same_order,
)
from threadloader._order.resume import has_ended
from threadloader._order.sampler_pass import open_pass

if TYPE_CHECKING:
    from threadloader._engine.settings import Settings
    from threadloader._loader.session import Session
    from threadloader._loader.state import State
    from threadloader._order.resume import Position
    from threadloader._order.seeds import Seeds


def begin(session: Session, settings: Settings) -> Epoch | None:
    """Begin the next epoch; return None if all of it was delivered when its state was saved.

    Raises:
        StateError: The state is not of this sampler, dataset, generator or number of replicas.
    """
    epoch = None
    try:
        with ExitStack() as undo:
            with session.planning:
                saved = session.run.saved
                over = saved is not None and has_ended(saved)
                told = told_epoch(settings.index_sampler, session.seen_number) if over else None
                seeds = _go_on(session, settings, undo)
                settings = settings._replace(move=None) if over else settings
                epoch = _plan(session, settings, seeds, saved, undo)
            epoch.start()
            if over:
                # No batch is left: `next` ends the epoch, and generators move on to the next one.
                # (A sampler's generator that another rank draws from is not moved here.)
                next(epoch, None)
                if told is not None:
                    tell_again(settings.index_sampler, told)
            undo.pop_all()
        return None if over else epoch
    finally:
        epoch = DROPPED  # this frame stays with an error


def _go_on(session: Session, settings: Settings, undo: ExitStack) -> Seeds:
    """Let the run go on to the next epoch, and return its seeds."""
    before, workers, seen = session.run, session.kept_workers.workers, session.seen_number
    seeds = session.advance(settings)

    def put_back() -> None:
        with session.planning:
            if session.latest_run.seeds is seeds:  # else somebody has begun another one since
                session.put_back(before, workers)
                session.seen_number = seen

    undo.callback(put_back)
    return seeds


def _plan(
    session: Session, settings: Settings, seeds: Seeds, saved: State | None, undo: ExitStack
) -> Epoch:
    """Return the next epoch, whose threads `Epoch.start` lets begin.

    Args:
        session: Of the loader; with ``planning`` held.
        settings: Of the loader.
        seeds: Of the epoch.
        saved: The state to continue from; None for the beginning.
        undo: What it calls ends an epoch that does not come about.
    """
    session.renew(settings)
    # Before there are workers, whose first use of the device would be in its place.
    device = None if settings.device is None else settings.device.here()
    # 1. Where it begins.
    dataset = session.restore_dataset(settings, saved)
    position = session.next_position(settings, seeds.epoch, saved)
    # 2. Its seed, which ranks may have to agree on.
    share, seed = share_of(settings), settings.seed
    if seed is None and settings.generator is None:
        seed = seeds.agreed if saved is None else saved["draws"].get("agreed")
    agreement = session.agreement_of(share)
    if agreement is not None:
        seed = agreement.seed(settings, seeds, saved, seed)
    rank = rank_with_own_streams(settings, share)
    if not settings.iterable:
        _tell_of_epoch(settings.index_sampler, position, session)
    # 3. What is drawn before the first batch.
    draws = seeds.begin_epoch(seed, settings.generator, saved)
    # 4. The sampler.
    sampler_pass = open_pass(settings, draws, position, share, checked=rank is None)
    # 5. Workers: those of the epoch before, or new ones.
    workers = session.kept_workers.reuse(settings)
    is_new = workers is None
    isolates, iterable = settings.isolate_rng and may_draw(settings), settings.iterable
    epoch_seeds = draws.seeds(kept=not is_new, rank=rank or 0, replicas=iterable, streams=isolates)
    votes = None if agreement is None else agreement.votes(settings)
    if votes is not None:
        undo.callback(votes.leave)
    if is_new and settings.num_workers:
        # torch starts the sampler once more where it makes workers, which we do not: a sampler that
        # draws as it is started would give another order with workers than without.
        workers = session.kept_workers.make(settings, epoch_seeds.workers)
    if workers is not None and (is_new or settings.replicated):
        undo.push(partial(session.kept_workers.give_up, workers))
    # 6. The feed, which plans the batches.
    kept = session.kept
    feed = open_feed(settings, kept, sampler_pass, workers, epoch_seeds, position, share)
    undo.callback(feed.end)
    counted = kept.stats.begin_epoch()
    undo.callback(counted.end)
    calling = CallingThread(settings, workers, epoch_seeds.workers, counted, isolates=isolates)
    feed.start(calling)
    # 7. The iterator.
    ends = None
    if votes is not None:
        with importing():
            from threadloader._engine.agreed_ends import AgreedEnds  # noqa: PLC0415  # for ranks only

        ends = AgreedEnds(votes, counted)
    window = Window(settings, kept, feed, device)
    maker = Maker(settings, kept, window, workers, calling, counted)
    in_step = ends is not None or (sampler_pass is not None and sampler_pass.sharded)
    tally = Tally(kept.skipped, position, settings.max_skipped, in_step=in_step)
    epoch = Epoch(settings, window, maker, tally, epoch_seeds, position.batches, ends)
    undo.callback(epoch.cancel)
    order = None if sampler_pass is None else sampler_pass.order
    session.add(epoch, LastEpoch(position, draws, order, dataset))
    return epoch


def _tell_of_epoch(sampler: Any, position: Position, session: Session) -> None:
    """Tell the sampler which epoch goes on, and the user if the order is that of the one before.

    Args:
        sampler: Yields a batch's indices, or single ones.
        position: Where the epoch begins; has one lane.
        session: Of the loader.
    """
    (lane,) = position.lanes
    state = position.saved
    if state is not None:
        number, ended = lane.sampler_epoch, has_ended(state)
        tell_of_epoch(sampler, session.seen_number, number, begun=state["begun"], ended=ended)
    else:
        last = session.run.last
        if last is not None and last.position.finished:
            warn_of_same_order(sampler, session.seen_number)
    lane.sampler_epoch = session.seen_number = epoch_of(sampler)
