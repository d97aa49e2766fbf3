"""The end of an epoch that several ranks reach in the same step, whatever each of them has.

this rank has a batch, and all have   -> it is delivered
it has none, and others have          -> its last batch once more ("pad")
any ("drop") or all ("pad") have none -> the epoch ends
"""

from __future__ import annotations

import copy
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._engine.iterable_reader import IterableBatch
from threadloader._lifetime import DROPPED
from threadloader._worker.failure import strip_all
from threadloader.errors import EmptyReplicaWarning, RankError, warn_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._engine.open_batch import FailedBatch, OpenBatch
    from threadloader._engine.window import Window
    from threadloader._order.votes import Votes
    from threadloader._report.stats import Deliveries


_NO_STEP = "another rank has no batch in this epoch, so the epoch has no step on any rank"
_ALL_FAILED = "all batches of this rank failed, so there is none to repeat, and other ranks go on"


class _Uncopied(NamedTuple):
    """Stands for a batch that can't be copied."""

    error: Exception


class AgreedEnds:
    """Ends the epochs of all ranks after the same step.

    Args:
        votes: Of the ranks.
        counted: Of this rank's epoch.

    Threads:
        leave: shared, also from a finalizer.
        all else: consumer, in its turn.
    """

    def __init__(self, votes: Votes, counted: Deliveries) -> None:
        self.leave = votes.leave
        self._votes, self._counted = votes, counted
        # A copy of the batch that may be the last; before, of the first one: later ones may fail.
        self._last: tuple[Any] | None = None
        self._share_failed = False  # whether a replica came to its end by an error

    def goes_on(self, batch: OpenBatch | FailedBatch | None) -> bool:
        """Wait until it is known whether the epoch goes on; false, too, if it was closed meanwhile.

        Args:
            batch: The next one; None if this rank has none left.

        Raises:
            RankError: It can't go on: a rank left it, say, or did not vote in time; or others go on
                and this one has nothing to repeat.
        """
        votes, has_batch = self._votes, batch is not None
        if isinstance(batch, IterableBatch) and batch.exhausted:
            self._share_failed |= batch.follows_failure
            return True  # the end of a replica is no step
        if not has_batch and self._share_failed and not votes.pads:
            votes.leave()  # or others would leave out what they have left, without a word
            return False
        began = perf_counter()
        outcome = votes.go(has_batch=has_batch)
        self._counted.rank_wait_seconds += perf_counter() - began
        if outcome is None:
            return False
        if outcome.goes_on:
            if not has_batch and self._last is None:
                votes.leave()  # which the other ranks are told
                raise RankError(_ALL_FAILED)
            return True
        # With "drop" the epoch ends with this rank's share, whatever the others have.
        if outcome.error is not None and (has_batch or votes.pads):
            raise RankError(outcome.error)
        if has_batch and not votes.step:
            warn_user(_NO_STEP, EmptyReplicaWarning)
        return False

    def repeat(self) -> Any:
        """Return a copy of the last batch.

        Raises:
            TypeError: There is none.
        """
        (batch,) = self._last or (None,)
        if isinstance(batch, _Uncopied):
            msg = (
                "other ranks go on, and the last batch of this one can't be copied and repeated: "
                "choose uneven='drop'"
            )
            raise TypeError(msg) from batch.error
        return copy.deepcopy(batch)

    def kept(self, take: Callable[[], Any], window: Window) -> Callable[[], Any]:
        """Return what takes a batch, and keeps a copy of it if it may be the last of this rank.

        Args:
            take: Returns the batch, once.
            window: Has those that follow.
        """
        batches = list(window.batches)
        follows = any(each.done and not each.exhausted for each in batches)
        if not self._votes.pads or (self._last is not None and follows):
            return take
        return partial(self._keep, take)

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
