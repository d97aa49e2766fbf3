"""An epoch of one of several ranks that all go the same number of steps, whatever each of them has.

this rank has a batch, and all have   -> it is delivered
it has none, and others have          -> its last batch once more ("pad")
any ("drop") or all ("pad") have none -> the epoch ends
"""

from __future__ import annotations

import copy
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from threadloader._engine.epoch import Epoch
from threadloader._engine.iterable_reader import IterableBatch
from threadloader._lifetime import DROPPED, when_dropped
from threadloader._worker.failure import strip_all
from threadloader.errors import EmptyReplicaWarning, RankError, warn_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._engine.epoch import Delivery
    from threadloader._engine.open_batch import FailedBatch, OpenBatch
    from threadloader._order.votes import Votes


_NO_STEP = "another rank has no batch in this epoch, so that it ends on all ranks before a step"
_ALL_FAILED = "other ranks go on, and all batches of this one failed, so there is none to repeat"


class _OutOfBatches(Exception):  # noqa: N818  # never seen by the user
    """This rank has delivered all of its own batches, and others go on."""


class _Uncopied(NamedTuple):
    """Stands for a batch that can't be copied."""

    error: Exception


class AgreedEpoch(Epoch):
    """An iterator over the batches of one epoch, as many as the other ranks have.

    Args:
        args: See `Epoch`.
        votes: Of the ranks.
        options: See `Epoch`.

    Threads:
        as `Epoch`.
    """

    def __init__(self, *args: Any, votes: Votes, **options: Any) -> None:
        self._votes = votes
        # A copy of the batch that may be the last; before, of the first one: later ones may fail.
        self._last: tuple[Any] | None = None
        self._repeats = False  # whether all of the rank's own batches were delivered
        self._share_failed = False  # whether a replica came to its end by an error
        when_dropped(self, votes.leave)
        super().__init__(*args, **options)

    def cancel(self) -> None:
        """End the epoch; see `Epoch`."""
        super().cancel()
        self._votes.leave()

    def _next_delivery(self) -> Delivery:
        take = count_as = failure = None
        try:
            if self._repeats:
                self._check()
                if self._progress.cancelled:
                    raise StopIteration if self._ended else self._closed()
                self._end()
            take, count_as, failure = super()._next_delivery()
            if failure is None and self._votes.pads and self._may_be_last():
                take = partial(self._keep, take)
            return take, count_as, failure
        except _OutOfBatches:
            self._repeats = True
            self._counted.batches += 1
            return partial(_copied, *(self._last or ())), None, None
        finally:
            self = take = count_as = failure = DROPPED

    def _may_be_last(self) -> bool:
        """Whether no later batch of this rank is known; or none has failed yet, but may."""
        batches = list(self._window.batches)
        return self._last is None or not any(each.done and not each.exhausted for each in batches)

    def _wait_for_batch(self) -> OpenBatch | FailedBatch:
        batch = super()._wait_for_batch()
        if isinstance(batch, IterableBatch) and batch.exhausted:
            self._share_failed |= batch.follows_failure
        else:
            self._go_on(has_batch=True)
        return batch

    def _end(self) -> NoReturn:
        """End the epoch with the other ranks, as this one has no batch left.

        Raises:
            _OutOfBatches: They go on.
        """
        if self._share_failed and not self._votes.pads:
            self._votes.leave()  # or others would leave out what they have left, without a word
            super()._end()
        self._go_on(has_batch=False)
        if self._last is None:
            self._ended = True
            self.cancel()  # which the other ranks are told
            raise RankError(_ALL_FAILED)
        raise _OutOfBatches

    def _go_on(self, *, has_batch: bool) -> None:
        """Wait until it is known that the epoch goes on.

        Raises:
            StopIteration: It ends.
            ClosedError: It was closed.
            RankError: It can't go on: a rank left it, say, or did not vote in time.
        """
        began = perf_counter()
        outcome = self._votes.go(has_batch=has_batch)
        self._counted.rank_wait_seconds += perf_counter() - began
        if outcome is None:
            raise self._closed()
        if outcome.goes_on:
            return
        # With "drop" the epoch ends with this rank's share, whatever the others have.
        if outcome.error is not None and (has_batch or self._votes.pads):
            raise RankError(outcome.error)
        if has_batch and not self._votes.step:
            warn_user(_NO_STEP, EmptyReplicaWarning)
        super()._end()

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
