"""The parts of an epoch that tell when the consumer's stages begin and end, while it is traced.

They stand in the place of the plain parts, and do what these do.  An epoch that nobody traces has
the plain ones, and so pays nothing.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from threadloader._lifetime.dropping import DROPPED
from threadloader._work.epoch_tracer import EpochTracer
from threadloader._work.made_at_once import make_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from threading import RLock
    from types import TracebackType

    from threadloader._epoch.feed import Feed, Receipt
    from threadloader._trace.tracers import Tracer
    from threadloader._work.copier import Copier
    from threadloader._work.open_batch import OpenBatch, Worker
    from threadloader._work.progress import Progress

__all__ = ["set_tracer", "traced_delivery", "traced_feed"]

D = TypeVar("D", "Copier", "Progress", "Copier | Progress")


# Each returns the plain part if the epoch is not traced.  Of two threads that trace it at once,
# both begin with the plain part, so nothing is told twice.


def set_tracer(progress: Progress, tracer: Tracer | None, turn: RLock) -> RLock:
    """Let a tracer be told of an epoch's stages; None for nobody.

    Args:
        progress: Of the epoch.
        tracer: The tracer.
        turn: What the consumer holds while it gets a batch.

    Returns:
        The turn that tells.
    """
    progress.tracer = None if tracer is None else EpochTracer(tracer, progress.number)
    plain: RLock = getattr(turn, "plain", turn)
    return plain if tracer is None else cast("RLock", _TracedTurn(plain, progress))


def traced_feed(feed: Feed, progress: Progress, moment: Callable[[], tuple[int, int, int]]) -> Feed:
    """Return what plans the batches.

    Args:
        feed: Plans them.
        progress: Of the epoch.
        moment: Returns how the window is; see `InFlight.moment`.
    """
    plain = feed.plain if isinstance(feed, _TracedFeed) else feed
    return plain if progress.tracer is None else _TracedFeed(plain, progress, moment)


def traced_delivery(delivery: D, progress: Progress) -> D:
    """Return what is waited for."""
    plain: D = delivery.plain if isinstance(delivery, _TracedDelivery) else delivery
    return plain if progress.tracer is None else cast("D", _TracedDelivery(plain, progress))


class _TracedTurn(AbstractContextManager[None]):
    """What the consumer holds while it gets a batch: from then to then it is in ``next()``.

    An interrupt may come up before the first line of `__exit__`, where nothing can catch it, and as
    the end is told.  So the consumer that was interrupted calls `broken_off`.

    Args:
        plain: The lock.
        progress: Of the epoch.
    """

    def __init__(self, plain: RLock, progress: Progress) -> None:
        self.plain = plain
        self._progress = progress
        # Who holds the lock, and who is to be told the end; changed with the lock held.
        self._told: list[tuple[int, EpochTracer | None]] = []

    def __enter__(self) -> None:
        tracer = self._progress.tracer
        held: list[bool] = []
        try:
            if tracer is not None:
                tracer.begin("next", -1)
            # Taken and noted by one call: Ctrl-C comes up before or after it.
            held.extend(map(self.plain.acquire, (True,)))
            self._told.append((get_ident(), tracer))
        except BaseException:
            if held:
                self.plain.release()
            if tracer is not None:
                tracer.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tracer = None
        try:
            _, tracer = self._told.pop()
        finally:
            self.plain.release()
            if tracer is not None:
                tracer.end()
            self = error = traceback = DROPPED  # noqa: F841

    def broken_off(self) -> None:
        """Release the lock if the calling thread still holds it, and end the thread's stages."""
        last = self._told[-1:]
        if last and last[0][0] == get_ident():
            self._told.pop()
            with suppress(RuntimeError):  # it was interrupted after the lock was released
                self.plain.release()
        tracer = self._progress.tracer
        if tracer is not None:
            tracer.broken_off()


class _TracedDelivery:
    """A `Progress` or a `Copier` that tells when the consumer waits for it."""

    def __init__(self, plain: Any, progress: Progress) -> None:
        self.plain = plain
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def wait(self, batch: Any, timeout: float | None = None) -> bool:
        """Wait until a batch is there; see `Progress.wait`."""
        tracer = None if self.plain.has(batch) else self._progress.tracer
        if tracer is not None:
            tracer.begin("wait")
        try:
            return bool(self.plain.wait(batch, timeout))
        finally:
            if tracer is not None:
                tracer.end()
            self = batch = DROPPED  # an interrupt keeps this frame

    def wait_for_any(self, batches: Iterable[Any], timeout: float | None = None) -> bool:
        """Wait until any of several batches is there; see `Progress.wait_for_any`."""
        tracer = None if any(map(self.plain.has, batches)) else self._progress.tracer
        if tracer is not None:
            tracer.begin("wait")
        try:
            return bool(self.plain.wait_for_any(batches, timeout))
        finally:
            if tracer is not None:
                tracer.end()
            self = batches = DROPPED  # the same


class _TracedFeed:
    """A feed that tells when batches are planned, and taken; see `Feed`."""

    def __init__(
        self, plain: Feed, progress: Progress, moment: Callable[[], tuple[int, int, int]]
    ) -> None:
        self.plain = plain
        self.eager, self.groups = plain.eager, plain.groups
        self._progress = progress
        self._moment = moment
        # As they are, so that they find the user's frame where they warn.
        self.end = plain.end
        self.plan_singly = plain.plan_singly
        self.give = plain.give

    @property
    def least(self) -> int:
        """The batches that are planned ahead at the least; see `Feed`."""
        return self.plain.least

    def plan_next(
        self, progress: Progress, most: int = 1, *, inline: bool = False
    ) -> OpenBatch | None:
        """Plan the next batch; see `Feed`."""
        tracer = progress.tracer
        if tracer is not None:
            tracer.begin("plan", -1)
        try:
            return self.plain.plan_next(progress, most, inline=inline)
        finally:
            if tracer is not None:
                tracer.end()
            self = progress = DROPPED  # an error of the sampler keeps this frame

    def make_next(
        self, progress: Progress, worker: Worker, make: Callable[..., None] = make_at_once
    ) -> tuple[Any, Receipt] | OpenBatch | None:
        """Make the next batch; see `Feed`."""
        tracer = progress.tracer
        try:
            if tracer is not None:
                make = partial(tracer.make_at_once, make)
            return self.plain.make_next(progress, worker, make)
        finally:
            self = progress = DROPPED  # the same

    def work(
        self, batch: OpenBatch, progress: Progress, worker: Worker, until: float = math.inf
    ) -> None:
        """Make a batch in the calling thread; see `Feed`."""
        try:
            self.plain.work(batch, progress, worker, until)
        finally:
            self = batch = progress = DROPPED  # an error of a sample keeps this frame

    def done(self, batch: OpenBatch) -> Sequence[Receipt]:
        """Note that a batch was taken; see `Feed`."""
        tracer = self._progress.tracer
        if tracer is not None and not batch.exhausted:
            tracer.taken(batch.plan.sequence, *self._moment())
        return self.plain.done(batch)
