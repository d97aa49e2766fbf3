"""The ranks vote, step by step, on whether an epoch goes on: in their store, without a collective.

    each rank: whether it has a batch -> a counter -> whoever votes last -> the outcome -> each rank

A rank votes on a step when it knows the outcome of the one before.  So each key of a step is
deleted as soon as it can't be asked for any more: however long an epoch is, a few keys are left.
"""

from __future__ import annotations

import json
import os
from _thread import allocate_lock, start_new_thread
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._lifetime import AtomicWeakSet, Phase, at_exit, is_exiting
from threadloader._order.share import named_ranks, no_answer
from threadloader._order.waiting import STORE_SECONDS, comes, stay
from threadloader._threads.waiting import Stop

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Mapping, Sequence

    from threadloader._order.share import Uneven


# How long the interpreter's exit waits for what others are to know: a consumer may have the store's
# one connection for the first of them.
EXIT_SECONDS = 2 * STORE_SECONDS

_HAVING = 1 << 32  # what a vote adds to the counter beside 1, of a rank with a batch

# Held while a rank says that it leaves.  Added, taken out and copied by single calls, atomic on
# both builds.
_leaving: dict[LockType, None] = {}


class Outcome(NamedTuple):
    """What the ranks found of a step."""

    goes_on: bool = False  # whether the epoch does
    error: str | None = None  # why it can't go on


class Votes:
    """The votes of one epoch, of one rank.

    Args:
        store: Has ``set``, ``compare_set``, ``get``, ``add``, ``check``, ``wait`` and
            ``delete_key`` as a `torch.distributed.Store`.  Nobody else waits for its connection.
        prefix: Of all keys, the same on all ranks, and of no other epoch.
        rank: Of this process.
        ranks: All that vote.
        uneven: ``"drop"`` goes on while all ranks have a batch, ``"pad"`` while any has one.
        seconds: How long a consumer waits for other ranks to vote on a step.

    Threads:
        go: consumer.
        leave: shared, also from a finalizer.
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
        self.pads = uneven == "pad"
        self.step = 0  # the next one, from 0; written by the consumer, whole on both builds
        self._left = False  # whether others know that it votes no more; the same
        self._last: Outcome | None = None  # of the step with which the epoch does not go on
        self._stop = Stop()  # ends the waiting for others
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._ranks = ranks
        self._seconds = seconds
        self._process = os.getpid()
        _voting.add(self)

    def go(self, *, has_batch: bool) -> Outcome | None:
        """Vote on the next step, and wait until all ranks have.

        Args:
            has_batch: Whether this rank has one.

        Returns:
            The outcome, again if the epoch does not go on; None if it has left meanwhile.
        """
        if self._last is not None:
            return self._last
        try:
            outcome = self._vote(has_batch=has_batch) or self._outcome()
        except Exception as error:  # noqa: BLE001  # of any store
            outcome = Outcome(error=no_answer(error))
        if outcome is None:
            return None
        if outcome.goes_on:
            self.step += 1
            return outcome
        self._left, self._last = True, outcome
        if outcome.error is None:
            with suppress(Exception):  # this rank has what it needs
                prefix, ranks = f"{self._prefix}/", self._ranks
                stay(self._store, prefix, len(ranks), is_first=self._rank == ranks[0])
        return outcome

    def leave(self) -> None:
        """Let other ranks know that this one votes no more, if they don't; waits for nobody."""
        if self._left or self._process != os.getpid():
            return
        self._left = True
        self._stop.set()
        error = (
            f"rank {self._rank} left the epoch by step {self.step}, and other ranks go on: all "
            "must leave it after the same step"
        )
        told = allocate_lock()
        told.acquire()
        _leaving[told] = None
        say = self._store, self._key("outcome", self.step), json.dumps({"error": error}), told
        if is_exiting():  # where no thread can start any more
            _say_left(*say)
        else:
            start_new_thread(_say_left, say)

    def _vote(self, *, has_batch: bool) -> Outcome | None:
        """Say whether this rank has a batch; the last rank to do so returns the outcome."""
        store, key, step = self._store, self._key, self.step
        votes = store.add(key("votes", step), 1 + _HAVING * has_batch)
        having, voters = divmod(votes, _HAVING)
        if voters < len(self._ranks):
            return None
        found = self._say(self._counted(having))
        store.delete_key(key("votes", step))
        if step:
            store.delete_key(key("outcome", step - 1))
        return found

    def _outcome(self) -> Outcome | None:
        """Return the outcome of a step that this rank has voted on; None if it was stopped."""
        store, key = self._store, self._key("outcome", self.step)

        def told() -> None:
            store.set(self._key("waits", self._rank), str(self.step))

        if not comes(store, key, self._seconds, self._stop, told):
            return self._say({"error": self._missing()})
        return None if self._stop.is_set else Outcome(**json.loads(store.get(key)))

    def _say(self, outcome: Mapping[str, Any]) -> Outcome:
        """Say what was found of a step, if nobody has yet; return what all ranks are to find."""
        key = self._key("outcome", self.step)
        return Outcome(**json.loads(self._store.compare_set(key, "", json.dumps(outcome))))

    def _counted(self, having: int) -> dict[str, Any]:
        """Return the outcome of a step, for which so many ranks have a batch."""
        world_size = len(self._ranks)
        if self.pads and not self.step and 0 < having < world_size:
            msg = (
                f"{world_size - having} of {world_size} ranks had no batch when the epoch began or "
                "was resumed, so there is none to repeat: give each rank data, or choose "
                "uneven='drop', which ends the epoch on all ranks"
            )
            return {"error": msg}
        return {"goes_on": having > 0 if self.pads else having == world_size}

    def _missing(self) -> str:
        """Return an error that names the ranks which have not voted on a step.

        All others wait for it by now, and have said so.
        """
        missing = [rank for rank in self._ranks if self._waits_for(rank) < self.step]
        return (
            f"{named_ranks(missing)} did not say within {self._seconds:.0f} s whether there is a "
            f"batch for step {self.step} of the epoch: all ranks must iterate over their loaders "
            "alike"
        )

    def _waits_for(self, rank: int) -> int:
        key = self._key("waits", rank)
        return int(self._store.get(key)) if self._store.check([key]) else -1

    def _key(self, name: str, number: int) -> str:
        return f"{self._prefix}/{name}/{number}"


_voting: AtomicWeakSet[Votes] = AtomicWeakSet()


def _say_left(store: Any, key: str, error: str, told: LockType) -> None:
    try:
        with suppress(Exception):  # the store may be gone
            store.compare_set(key, "", error)
    finally:
        _leaving.pop(told, None)
        told.release()


@at_exit(Phase.LEAVE_RANKS)
def _wait() -> None:
    """Leave all epochs, and wait until other ranks know what ranks of this process have left."""
    for votes in _voting.all():
        votes.leave()
    for told in _leaving.copy():
        told.acquire(timeout=EXIT_SECONDS)
