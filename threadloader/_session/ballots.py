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
from threadloader._threads.stopping import is_set, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._order.shares import Uneven
    from threadloader._threads.stopping import Stop

__all__ = ["RankBallot"]

# Of waiting in the store, which nothing ends before, and after which torch prints a warning: so it
# is done once for a step.  Then the store is asked again and again, which a `Stop` ends.
STORE_SECONDS = 5.0
ASKING_SECONDS = 0.5
_ONE = 1 << 32  # a vote of a rank with a batch; each vote counts 1 beside that
_MOST_NAMED = 8  # ranks, in a message


class RankBallot:
    """The votes of one epoch.

    Args:
        store: Has ``set``, ``get``, ``add``, ``check``, ``wait`` and ``delete_key`` as a
            `torch.distributed.Store`.  Nobody else waits for its connection.
        prefix: Of all keys, the same on all ranks, and of no other epoch.
        rank: Of this process.
        ranks: All that vote.
        uneven: ``"drop"`` goes on while all ranks have a batch, ``"pad"`` while any has one.
        seconds: How long a consumer waits for other ranks.

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
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._ranks = ranks
        self._pads = uneven == "pad"
        self._seconds = seconds

    def vote(self, step: int, *, has_batch: bool) -> None:
        """Say whether this rank has a batch for a step; the last rank to do so counts the votes."""
        store, key = self._store, self._key
        if not step and not has_batch:
            store.set(key("empty", self._rank), "")
        votes = store.add(key("votes", step), _ONE * has_batch + 1)
        having, voters = divmod(votes, _ONE)
        if voters == len(self._ranks):
            store.set(key("outcome", step), json.dumps(self._counted(step, having)))
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
            waits_since: Returns since when, on `monotonic`, the consumer waits; 0 if it does not.

        Returns:
            None if it was stopped.
        """
        store, key = self._store, self._key("outcome", step)
        if not self._comes_soon(key):
            store.set(self._key("waits", self._rank), str(step))
            while not store.check([key]):
                if wait(stops, min(ASKING_SECONDS, self._seconds / 4)):
                    return None
                since = waits_since()
                if since and monotonic() - since > self._seconds and not store.check([key]):
                    store.set(key, json.dumps({"error": self._missing(step)}))
        return None if is_set(stops) else Outcome(**json.loads(store.get(key)))

    def leave(self, step: int) -> None:
        """Say that this rank leaves the epoch, and votes on no step from this one on."""
        msg = (
            f"rank {self._rank} left the epoch by step {step}, and other ranks go on: all "
            "must leave it after the same step"
        )
        self._store.set(self._key("outcome", step), json.dumps({"error": msg}))

    def _comes_soon(self, key: str) -> bool:
        try:
            # Far shorter than the limit: by then all ranks that wait have said so.
            self._store.wait([key], timedelta(seconds=min(STORE_SECONDS, self._seconds / 4)))
        except Exception:  # noqa: BLE001  # a timeout, by a class that differs between versions
            return False
        return True

    def _counted(self, step: int, having: int) -> dict[str, Any]:
        """Return the outcome of a step, for which so many ranks have a batch."""
        world_size = len(self._ranks)
        empty: list[int] = []
        if not step and having < world_size:
            empty = [rank for rank in self._ranks if self._store.check([self._key("empty", rank)])]
        if self._pads and empty and having:
            msg = (
                f"{_named(empty)} of {world_size} had no batch left of its own when the epoch "
                "began or went on, so none that it could repeat: give each rank data, or "
                "uneven='drop' ends the epoch on all ranks"
            )
            return {"error": msg}
        goes_on = having > 0 if self._pads else having == world_size
        return {"goes_on": goes_on, "empty": empty if having else []}

    def _missing(self, step: int) -> str:
        """Return an error that names the ranks which have not voted on a step.

        All others wait for it by now, and have said so.
        """
        missing = [rank for rank in self._ranks if self._waits_for(rank) < step]
        return (
            f"{_named(missing)} did not say within {self._seconds:.0f} s whether there is a batch "
            f"for step {step} of the epoch: all ranks must iterate over their loaders alike"
        )

    def _waits_for(self, rank: int) -> int:
        key = self._key("waits", rank)
        return int(self._store.get(key)) if self._store.check([key]) else -1

    def _key(self, name: str, number: int) -> str:
        return f"{self._prefix}/{name}/{number}"


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" * (len(ranks) > _MOST_NAMED)
    names = ", ".join(map(str, ranks[:_MOST_NAMED])) + more
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
