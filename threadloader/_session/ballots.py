"""The ranks vote, step by step, on whether an epoch goes on: in their store, without a collective.

    each rank: whether it has a batch -> a counter -> whoever votes last -> the outcome -> each rank

A rank votes on a step when it knows the outcome of the one before.  So each key is deleted as soon
as it can't be asked for any more, and however long an epoch is, the store has a few keys of it.
"""

from __future__ import annotations

import json
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from threadloader._epoch.steps import Outcome
from threadloader._order.shares import named_ranks
from threadloader._threads.stopping import is_set, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from threadloader._order.shares import Uneven
    from threadloader._threads.stopping import Stop

__all__ = ["STAYING_SECONDS", "RankBallot", "comes_soon"]

# Of waiting in the store, which nothing ends before, and after which torch prints a warning: so it
# is done once for a step.  Then the store is asked again and again, which a `Stop` ends.
STORE_SECONDS = 5.0
ASKING_SECONDS = 0.5
STAYING_SECONDS = 2.0  # of the first rank, for the others to ask once more
# What a vote adds to the counter: 1, and this for a rank with a batch, or for one that has none as
# its batches failed.
_HAVING, _FAILED = 1 << 32, 1 << 48


class RankBallot:
    """The votes of one epoch.

    Args:
        store: Has ``set``, ``compare_set``, ``get``, ``add``, ``check``, ``wait`` and
            ``delete_key`` as a `torch.distributed.Store`.  Nobody else waits for its connection.
        prefix: Of all keys, the same on all ranks, and of no other epoch.
        rank: Of this process.
        ranks: All that vote.
        uneven: ``"drop"`` goes on while all ranks have a batch, ``"pad"`` while any has one.
        seconds: How long a consumer waits for other ranks to vote on a step.
        host: What the store is a connection to; only kept.

    Threads:
        all: one thread, the voter.
    """

    def __init__(
        self,
        store: Any,
        prefix: str,
        rank: int,
        ranks: Sequence[int],
        uneven: Uneven,
        seconds: float,
        host: Any = None,
    ) -> None:
        self._store = store
        self._host = host
        self._prefix = prefix
        self._rank = rank
        self._ranks = ranks
        self._pads = uneven == "pad"
        self._seconds = seconds

    def vote(self, step: int, *, has_batch: bool, failed: bool = False) -> None:
        """Say whether this rank has a batch for a step; the last rank to do so counts the votes.

        Args:
            step: From 0.
            has_batch: Whether there is one.
            failed: If not: whether it would have one, had its dataset not failed.
        """
        store, key = self._store, self._key
        if not step and not has_batch:
            store.set(key("empty", self._rank), "")
        # To pad is to go on without it.
        failed = failed and not (has_batch or self._pads)
        if failed:
            store.set(key("failed", self._rank), "")
        vote = 1 + _HAVING * has_batch + _FAILED * failed
        failures, votes = divmod(store.add(key("votes", step), vote), _FAILED)
        having, voters = divmod(votes, _HAVING)
        if voters == len(self._ranks):
            # Where nobody has anything left, nothing is left out.
            outcome = self._failure() if failures and having else self._counted(step, having)
            self._say(step, outcome)
            store.delete_key(key("votes", step))
            if step:
                store.delete_key(key("outcome", step - 1))

    def outcome(
        self, step: int, stops: Sequence[Stop], waits_since: Callable[[], float]
    ) -> Outcome | None:
        """Wait until all ranks have voted on a step.

        Args:
            step: This rank has voted on it.
            stops: Any of them ends the waiting, after `STORE_SECONDS` at most.
            waits_since: Returns since when, on `monotonic`, the consumer waits, for this step or a
                later one; 0 if it does not.

        Returns:
            None if it was stopped.
        """
        store, key, began = self._store, self._key("outcome", step), monotonic()
        # Far shorter than the limit: by then all ranks that wait have said so.
        if not comes_soon(store, key, min(STORE_SECONDS, self._seconds / 4)):
            store.set(self._key("waits", self._rank), str(step))
            while not store.check([key]):
                if wait(stops, min(ASKING_SECONDS, self._seconds / 4)):
                    return None
                # Not while the ranks go on step by step, however far behind the consumer they are.
                since = waits_since()
                waited = monotonic() - max(since, began)
                if since and waited > self._seconds and not store.check([key]):
                    self._say(step, {"error": self._missing(step)})
        return None if is_set(stops) else Outcome(**json.loads(store.get(key)))

    def end(self, step: int) -> None:
        """Say that this rank knows of the epoch's end; the last rank to do so clears the store.

        The first rank waits for that, or a while: as a rule the store is in its process, which may
        end now.

        Args:
            step: With which the epoch did not go on.
        """
        store, key = self._store, self._key
        store.delete_key(key("waits", self._rank))
        is_last = store.add(key("ended", step), 1) == len(self._ranks)
        if is_last:
            store.delete_key(key("ended", step))
            store.delete_key(key("outcome", step))
        if self._rank == self._ranks[0]:
            if not is_last:
                comes_soon(store, key("all ended", step), STAYING_SECONDS)
                store.delete_key(key("all ended", step))
        elif is_last:
            store.set(key("all ended", step), "")

    def leave(self, step: int) -> None:
        """Say that this rank leaves the epoch, and votes on no step from this one on."""
        msg = (
            f"rank {self._rank} left the epoch by step {step}, and other ranks go on: all "
            "must leave it after the same step"
        )
        self._say(step, {"error": msg})

    def _say(self, step: int, outcome: Mapping[str, Any]) -> None:
        """Say what was found of a step, if nobody has yet: all ranks are to find the same."""
        self._store.compare_set(self._key("outcome", step), "", json.dumps(outcome))

    def _counted(self, step: int, having: int) -> dict[str, Any]:
        """Return the outcome of a step, for which so many ranks have a batch."""
        world_size = len(self._ranks)
        empty: list[int] = []
        if not step and having < world_size:
            empty = [rank for rank in self._ranks if self._store.check([self._key("empty", rank)])]
            for rank in empty:
                self._store.delete_key(self._key("empty", rank))
        if self._pads and empty and having:
            msg = (
                f"{named_ranks(empty)} of {world_size} had no batch left of its own when the epoch "
                "began or went on, so none that it could repeat: give each rank data, or "
                "uneven='drop' ends the epoch on all ranks"
            )
            return {"error": msg}
        goes_on = having > 0 if self._pads else having == world_size
        return {"goes_on": goes_on, "empty": empty if having else []}

    def _failure(self) -> dict[str, Any]:
        """Return the outcome where ranks have no batch as their datasets failed."""
        failed = [rank for rank in self._ranks if self._store.check([self._key("failed", rank)])]
        msg = (
            f"the share of {named_ranks(failed)} ended with an error of the dataset, which is "
            "raised there: uneven='drop' would leave out what other ranks have left"
        )
        return {"error": msg}

    def _missing(self, step: int) -> str:
        """Return an error that names the ranks which have not voted on a step.

        All others wait for it by now, and have said so.
        """
        missing = [rank for rank in self._ranks if self._waits_for(rank) < step]
        return (
            f"{named_ranks(missing)} did not say within {self._seconds:.0f} s whether there is a "
            f"batch for step {step} of the epoch: all ranks must iterate over their loaders alike"
        )

    def _waits_for(self, rank: int) -> int:
        key = self._key("waits", rank)
        return int(self._store.get(key)) if self._store.check([key]) else -1

    def _key(self, name: str, number: int) -> str:
        return f"{self._prefix}/{name}/{number}"


def comes_soon(store: Any, key: str, seconds: float) -> bool:
    """Wait in a store for a key; return whether it came.  Nothing ends this before."""
    try:
        store.wait([key], timedelta(seconds=seconds))
    except Exception:  # noqa: BLE001  # a timeout, by a class that differs between stores
        return False
    return True
