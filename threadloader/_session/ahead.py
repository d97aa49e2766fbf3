"""An epoch that is begun before its ``iter()``: gone on with there, if it is the one that is due.

    what an epoch follows from is noted -> it begins in a twin of the session -> draws are put back
    ``iter()``, and that is the same -> the session is as its twin, and the epoch goes on
    ``iter()``, and that is another -> the epoch is thrown away

Until `iter` all is as if no epoch had begun.  So to throw it away is to end its threads.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from hashlib import blake2b
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import Kind, kind_of
from threadloader._fetch.object_copy import walked
from threadloader._fetch.parts import NUMBERS, parts
from threadloader._order.ranks import rank_with_own_streams, share_of, within
from threadloader._order.samplers import inner_sampler, is_users, length_of
from threadloader._session.begin import begin, warn_of_order
from threadloader._session.order_states import OrderStates
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from threadloader._epoch.epoch import Epoch
    from threadloader._session.session import Session
    from threadloader._settings import Settings

_log = logging.getLogger("threadloader")


def start(session: Session, settings: Settings) -> None:
    """Begin the next epoch, for `take`; see `ThreadLoader.start`."""
    ahead: Ahead | None = session.ahead
    if ahead is not None and ahead.changed(session, settings, OrderStates(settings)) is None:
        return
    session.throw_away()
    reason = _obstacle(session, settings)
    if reason is None:
        ahead = Ahead(session, settings)
        if ahead.epoch.works_ahead:
            session.ahead = ahead
            return
        ahead.end()
        reason = "the loop makes the first batches itself"
    _log.info("start() has no effect: %s", reason)


def take(session: Session, settings: Settings) -> Epoch | None:
    """Return the epoch that was begun; None where another one is due, or nothing was begun."""
    ahead: Ahead | None = None
    with session.planning:
        fields, states = vars(session).copy(), OrderStates(settings)
        try:
            ahead, session.ahead = session.ahead, None
            if ahead is None:  # another thread was faster
                return None
            changed = ahead.changed(session, settings, states)
            if changed is None:
                if not settings.iterable:
                    warn_of_order(settings.index_sampler, session)
                return ahead.hand_over(session)
        except BaseException:  # Ctrl-C, say
            if ahead is not None:
                vars(session).update(fields | {"ahead": None})
                states.restore()
                ahead.end()
            raise
    ahead.end()
    owner, is_process = changed
    _log.info("what start() began is thrown away, and begun anew: %s has changed", owner)
    if is_process:
        warn_user(
            f"what start() began is thrown away, as {owner} has changed since: give the loader "
            "seed=, or a generator= of its own, from which nobody else draws"
        )
    return None


def _obstacle(session: Session, settings: Settings) -> str | None:
    """Return why an epoch can't be begun and thrown away without a trace; None if it can."""
    saved, kept = session.run.saved, session.kept_workers
    share, workers = share_of(settings), kept.workers if kept.keeps else None
    obstacles = {
        "samples are loaded from your own dataset, not from copies": settings.shares_dataset,
        "with isolate_rng=False samples draw from your own random state": not settings.isolate_rng,
        "your own sampler can't be put back": not settings.iterable
        and is_users(settings.index_sampler),
        "the ranks of this loader begin an epoch together": share is not None
        and share.world_size > 1,
        "the loaded state has one of your own dataset": saved is not None and "dataset" in saved,
        "the workers' replicas are those of the epoch before": settings.iterable and kept.keeps,
        "workers are kept that are replaced, as something was set on the dataset since": workers
        is not None
        and workers.is_outdated,
        "an epoch goes on": kept.goes_on(settings),
    }
    return next((reason for reason, is_so in obstacles.items() if is_so), None)


class Ahead:
    """The next epoch, which has begun.

    Args:
        session: Of the loader.
        settings: Of the loader.

    Attributes:
        epoch: The iterator.

    Threads:
        end: shared; all others: consumer, while no other thread calls ``iter()``.
    """

    def __init__(self, session: Session, settings: Settings) -> None:
        names = ("dataset", "collate_fn", "transform", "worker_init_fn")
        found = walked({name: getattr(settings, name) for name in names})
        roots = [getattr(settings, name) for name in names]
        roots = [each for each in roots if hasattr(each, "__dict__")]
        # What a library keeps is its own.  What the user gave counts, whether it is copied or not.
        copied = [
            each
            for each, twin in found.values()
            if each is not twin and kind_of(each) is not Kind.OPENED
        ]
        self._objects = list({id(each): each for each in [*roots, *copied]}.values())
        self._basis = self._basis_of(session, settings)
        self._before = self._begun = OrderStates(settings)
        self._session, self._kept = session.twin(), session.kept_workers.workers
        self.epoch: Any = None
        try:
            try:
                while self.epoch is None:
                    self.epoch = begin(self._session, settings)
                self._begun = OrderStates(settings)
            finally:
                self._before.restore()
        except BaseException:  # Ctrl-C may have come before that was done
            self._before.restore()
            self.end()
            raise

    def changed(
        self, session: Session, settings: Settings, states: OrderStates
    ) -> tuple[str, bool] | None:
        """Return what makes the epoch that is due now another one; None if it is this one.

        Args:
            session: Of the loader.
            settings: Of the loader.
            states: As they are now.

        Returns:
            What it is, and whether that is a random state of the process.
        """
        if self.epoch.ended:
            return "its iterator", False
        now, before = self._basis_of(session, settings), self._basis
        for key in before | now:
            if not (key in now and key in before and _are_same(now[key], before[key])):
                return key[1], False
        return self._before.changed(states, self._begun)

    def hand_over(self, session: Session) -> Epoch:
        """Let all be as it was when the epoch had begun, and return it."""
        self._begun.restore(self._before)
        epoch: Epoch = self.epoch
        epoch.hand_over()
        vars(session).update(vars(self._session) | {"is_ahead": False})
        return epoch

    def end(self) -> None:
        """End the epoch, which nobody will get, and the threads that are its own."""
        if self.epoch is not None:
            self.epoch.cancel()
        workers = self._session.kept_workers.workers
        if workers is not None and workers is not self._kept:
            workers.stop()

    def _basis_of(self, session: Session, settings: Settings) -> dict[tuple[int, str], Any]:
        """Return what an epoch follows from but for random states, by what the user knows it by."""
        share = share_of(settings)
        with session.planning:
            lanes = session.lanes_between(settings)
        basis: dict[tuple[int, str], Any] = {
            (0, f"{name} of the loader"): value
            for name, value in settings._asdict().items()
            if name not in ("move", "reported_length")  # made anew each time; counts nothing
        }
        for number, each in enumerate([*self._objects, *within(settings.index_sampler)], 1):
            # What datasets of this package were told, which their copies share.
            shared = getattr(each, "_shared", None) if hasattr(type(each), "set_epoch") else None
            told = [(name, getattr(shared, name, None)) for name in ("epoch", "plan", "changes")]
            for name, part in [("__class__", type(each)), *told, *parts(each)]:
                basis[number, f"{type(each).__name__}.{name}"] = part
        return basis | {
            (0, "what the sampler draws from"): _content(settings),
            (0, "the state to go on from"): session.run,
            (0, "what is kept of the workers"): session.kept_workers.workers,
            (0, "how the epoch before has ended"): repr([lane.state() for lane in lanes]),
            (0, "the rank"): repr((share, rank_with_own_streams(settings, share))),
            (0, "a mode of torch"): repr(_torch.current_modes()),
        }


def _content(settings: Settings) -> str:
    """Return what tells of a dataset's length, and of indices or weights that change in place."""
    if settings.iterable:
        return ""
    inner = inner_sampler(settings.index_sampler)
    listed: Any = getattr(inner, _torch.CONTENTS.get(type(inner), ""), inner)
    if isinstance(listed, _torch.Tensor):
        array = _torch.array_of(listed)
        listed = listed.tolist() if array is None else array
    if isinstance(listed, np.ndarray):
        return f"{length_of(settings.dataset)} {blake2b(listed.tobytes()).hexdigest()}"
    content: Any = None
    with suppress(TypeError):  # of batches of indices, say
        # Of a million numbers that takes a fifth of their text's time.
        content = hash(tuple(listed)) if isinstance(listed, (list, tuple)) else None
    return f"{length_of(settings.dataset)} {repr(listed) if content is None else content}"


def _are_same(now: Any, before: Any) -> bool:
    """Whether a value is the same object, or an equal number, text or bound method."""
    plain = (*NUMBERS, MethodType)  # a bound method is another object each time
    return now is before or (type(now) is type(before) and isinstance(now, plain) and now == before)
