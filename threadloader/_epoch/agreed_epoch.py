"""An epoch of one of several ranks that all go the same number of steps, whatever each of them has.

this rank has a batch, and all have   -> it is delivered
it has none, and others have          -> its last batch once more ("pad")
any ("drop") or all ("pad") have none -> the epoch ends
"""

from __future__ import annotations

import copy
import os
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._epoch.empty_streams import empty_ranks
from threadloader._epoch.epoch import FORKED, Epoch
from threadloader._fetch.failure import strip_all
from threadloader._lifetime.dropping import DROPPED, when_dropped
from threadloader._report.ending import warn_if_slow
from threadloader._warnings import warn_user
from threadloader.errors import ClosedError, EmptyReplicaWarning, RankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._epoch.epoch import Delivery
    from threadloader._epoch.steps import Outcome, Steps
    from threadloader._work.open_batch import FailedBatch, OpenBatch

__all__ = ["AgreedEpoch"]


_ALL_FAILED = "other ranks go on, and all batches of this one failed, so there is none to repeat"


class _OutOfBatches(Exception):  # noqa: N818  # never seen by the user
    """This rank has delivered all of its own batches."""


class _Uncopied(NamedTuple):
    """Stands for a batch that can't be copied."""

    error: Exception


class AgreedEpoch(Epoch):
    """An iterator over the batches of one epoch, as many as the other ranks have.

    Args:
        args: See `Epoch`.
        steps: Of the epoch.
        replicas: Whose batches there are.
        world_size: Ranks.
        options: See `Epoch`.

    Threads:
        as `Epoch`.
    """

    def __init__(
        self, *args: Any, steps: Steps, replicas: int, world_size: int, **options: Any
    ) -> None:
        self._steps = steps
        self._replicas = replicas
        self._world_size = world_size
        self._step = 0  # the number of the next one
        # A copy of the batch that may be the last; before, of the first one: later ones may fail.
        self._last: tuple[Any] | None = None
        self._repeats = False  # whether all of the rank's own batches were delivered
        super().__init__(*args, **options)
        self._stop_voter = when_dropped(self, steps.stop())

    def start(self) -> None:
        """Let the threads begin; see `Epoch`."""
        try:
            try:
                self._steps.start(self._replicas)
            except ClosedError:
                if not self._progress.cancelled:  # by another thread; `next` raises it
                    raise
            super().start()
        except BaseException:  # Ctrl-C, say
            self.cancel()
            raise
        finally:
            self = DROPPED  # this frame stays with the error

    def cancel(self) -> None:
        """End the epoch; see `Epoch`."""
        super().cancel()
        stop_voter = getattr(self, "_stop_voter", None)  # none if an interrupt came before it
        if stop_voter is not None and self._pid == os.getpid():  # a forked child has no voter
            stop_voter()
            self._steps.give_up()  # if an interrupt came before it began

    def _next_delivery(self) -> Delivery:
        take = count_as = failure = None
        try:
            if self._repeats:
                return self._repeated()
            try:
                take, count_as, failure = super()._next_delivery()
            except _OutOfBatches:
                self._repeats = True
                return self._repeated()
            may_be_last = self._steps.ready <= self._step or self._last is None
            if failure is None and self._steps.pads and may_be_last:
                take = partial(self._keep, take)
            return take, count_as, failure
        finally:
            self = take = count_as = failure = DROPPED

    def _wait_for_batch(self) -> OpenBatch | FailedBatch:
        batch = None
        pads = self._steps.pads
        try:
            if pads and self._head() is None and not self._progress.cancelled:
                raise _OutOfBatches
            batch = super()._wait_for_batch()
            if not batch.exhausted:
                # At first also to pad: no rank is to go a step where one has nothing to repeat.
                if not (pads and self._step):
                    self._go_on()
                self._steps.go(self._step)
                self._step += 1
            return batch
        finally:
            self = batch = DROPPED

    def _delivery_of(self, batch: OpenBatch | FailedBatch) -> Delivery | None:
        delivery = None
        try:
            delivery = super()._delivery_of(batch)
            if delivery is None and not batch.exhausted:
                (batch.failure, *_) = batch.skipped  # type: ignore[union-attr]  # all of its rows
                batch.failure = batch.failure.also(
                    "all samples of the batch failed: it can't be left out, since other ranks have "
                    "a batch for the same step"
                )
                delivery = batch.take, batch.count_as, batch.failure
            return delivery
        finally:
            self = batch = delivery = DROPPED  # noqa: F841

    def _repeated(self) -> Delivery:
        """Return the last batch once more, if the epoch goes on; else see `_go_on`."""
        try:
            if self._ended:
                raise StopIteration
            if self._pid != os.getpid():
                raise ClosedError(FORKED)
            if self._progress.cancelled:
                raise self._closed()
            self._go_on()
            if self._last is None:
                self._ended = True
                self.cancel()  # which the other ranks are told
                raise RankError(_ALL_FAILED)
            self._step += 1
            self._counted.batches += 1
            return partial(_copied, *self._last), None, None
        finally:
            self = DROPPED

    def _keep(self, take: Callable[[], Any]) -> Any:
        """Return a batch, and keep a copy: what the user makes of it must not come again."""
        batch = None
        try:
            batch = take()
            try:
                self._last = (copy.deepcopy(batch),)
            except Exception as error:  # noqa: BLE001  # raised if it is to come again
                strip_all(error)
                self._last = (_Uncopied(error),)
            return batch
        finally:
            self = take = batch = DROPPED

    def _go_on(self) -> None:
        """Wait until it is known that the epoch goes on.

        Raises:
            StopIteration: It ends.
            ClosedError: It was closed.
            RankError: See `Steps.outcome`.
        """
        try:
            outcome = self._outcome()
            if outcome is None:
                raise self._closed()
            if outcome.goes_on:
                return
            self._ended = True
            self.cancel()
            self._feed.end(finished=True)
            setup = self._tuner, self._threads is not None, self._iterable
            warn_if_slow(self._stats, self._counted, setup)
            if outcome.empty:
                warn_user(empty_ranks(outcome.empty, self._world_size), EmptyReplicaWarning)
            raise StopIteration
        finally:
            self = outcome = DROPPED

    def _outcome(self) -> Outcome | None:
        began = perf_counter()
        try:
            return self._steps.outcome(self._step, self._progress)
        finally:
            self._counted.rank_wait_seconds += perf_counter() - began
            self = DROPPED  # an error keeps this frame


def _copied(batch: Any) -> Any:
    """Return a copy of a batch.

    Raises:
        TypeError: There is none.
    """
    if isinstance(batch, _Uncopied):
        msg = (
            "other ranks go on, and the last batch of this one can't be copied to come again: "
            "choose uneven='drop'"
        )
        raise TypeError(msg) from batch.error
    return copy.deepcopy(batch)
