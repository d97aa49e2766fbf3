"""The steps of an epoch that all ranks go together, found out ahead of the consumer.

    batches that are planned and read -> the voter, a thread -> the ranks' ballot -> the consumer

The voter votes on a step as soon as this rank has read its batch, or knows that it has none.  The
consumer is some batches behind, so as a rule it finds the outcome there, and waits for no network.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from threadloader._fetch.failure import strip_all
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.shares import no_answer
from threadloader._threads.pool import Pool
from threadloader._threads.stopping import Stop, is_set, stops_here
from threadloader._threads.thread_group import SingleJob
from threadloader._threads.waiting import Tokens, wait_until
from threadloader.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from threadloader._work.progress import Progress

__all__ = ["Ballot", "Outcome", "Steps"]

EXIT_SECONDS = 8.0  # how long the interpreter's exit waits; longer than two waits in the store


class Outcome(NamedTuple):
    """What the ranks found of a step."""

    goes_on: bool = False  # whether the epoch does
    empty: Sequence[int] = ()  # ranks that had no batch at all, where others had some
    error: str | None = None  # why it can't go on


class Ballot(Protocol):
    """The ranks' votes; see `RankBallot`."""

    def vote(self, step: int, *, has_batch: bool, failed: bool = False) -> None:
        """Say whether this rank has a batch for a step; and if not, if its batches failed."""

    def outcome(
        self, step: int, stops: Sequence[Stop], waits_since: Callable[[], float]
    ) -> Outcome | None:
        """Wait until all ranks have voted on a step; return None if it was stopped."""

    def end(self, step: int) -> None:
        """Say that this rank knows that the epoch does not go on with a step."""

    def leave(self, step: int) -> None:
        """Say that this rank votes on no step from this one on."""


class Steps:
    """The steps of one epoch of this rank, and its voter.

    Args:
        ballot: Of all ranks.
        name: Prefix of the thread's name.
        pads: Whether the epoch goes on while any rank has a batch.

    Threads:
        start, give_up, planned, outcome, go: consumer.
        ready: shared; stale as soon as it is read.
        stop: shared, also from a finalizer; it takes no lock.
    """

    def __init__(self, ballot: Ballot, name: str, *, pads: bool) -> None:
        self.pads = pads
        self._begun = False
        self._shared = shared = _Shared(ballot, pads=pads)
        self._pool: Pool[None] = Pool(
            1, name, _enter, role="voter", failed=shared.failed, exit_seconds=EXIT_SECONDS
        )

    def start(self, replicas: int) -> None:
        """Start the voter, once.

        Args:
            replicas: Whose batches are planned.
        """
        self._begun = True
        # The job keeps the pool: other ranks wait for this rank to vote or to leave, also where the
        # epoch ends, or is dropped, before the thread has come to life.
        self._pool.put(SingleJob(partial(_run, self._shared, replicas, self._pool)))

    def planned(self, replica: int) -> Callable[[bool, bool], None]:
        """Note a batch of a replica; called in the order in which batches are delivered.

        Returns:
            A function that is to be called, by the worker, once the batch was read: with whether
            the replica has come to its end, and there is no such batch; and whether the batch
            before it failed.
        """
        planned = _Planned(replica, self._shared.inbox)
        self._shared.inbox.put(planned)
        return planned.came

    def give_up(self) -> None:
        """Leave an epoch that did not come about: other ranks wait for this one's votes."""
        if not self._begun:
            self._shared.stop.set()
            with suppress(RuntimeError):  # no thread can be started: the others find that out
                self.start(1)

    @property
    def ready(self) -> int:
        """The number of batches in a row that were read."""
        return self._shared.ready

    def outcome(self, step: int, progress: Progress) -> Outcome | None:
        """Wait until all ranks have voted on a step; return None if the epoch was closed.

        Raises:
            RankError: The epoch can't go on: a rank left it, say, or did not vote in time.
        """
        shared = self._shared
        try:
            if not shared.knows(step):
                shared.waits_since = monotonic()
                wait_until(lambda: shared.knows(step) or progress.cancelled, shared.tokens, None)
            if step < shared.agreed:
                return Outcome(goes_on=True)
            last = None if progress.cancelled else shared.last
            if last is not None and last.error is not None:
                raise RankError(last.error)
            return last
        finally:
            shared.waits_since = 0.0
            self = progress = DROPPED  # an error keeps this frame

    def go(self, step: int) -> None:
        """Note that the consumer goes a step.

        Raises:
            RankError: The epoch can't go on with it, as far as is known.
        """
        shared = self._shared
        last = shared.last
        if last is not None and last.error is not None and step >= shared.agreed:
            raise RankError(last.error)
        shared.gone = step + 1

    def stop(self) -> Callable[[], None]:
        """Return a function that ends the voter, and wakes the consumer; it waits for nobody."""
        return partial(_stop, self._shared.stop.set, self._shared.tokens)


class _Planned:
    """A batch that was planned; not the batch itself, which would keep its memory.

    Threads:
        came: worker; all else: voter.
    """

    __slots__ = ("_inbox", "exhausted", "failed", "read", "replica")

    def __init__(self, replica: int, inbox: SimpleQueue[Any]) -> None:
        self.replica = replica
        self._inbox = inbox
        self.exhausted = self.failed = False
        self.read = False  # set last, and only ever set

    def came(self, exhausted: bool, failed: bool) -> None:
        """Note that the batch was read."""
        self.exhausted, self.failed = exhausted, failed
        self.read = True
        self._inbox.put(None)


class _Shared:
    """What the steps and their voter share; it refers to neither.

    Each field has one writer, and is read and written whole, on both builds.
    """

    def __init__(self, ballot: Ballot, *, pads: bool) -> None:
        self.ballot = ballot
        self.pads = pads
        # Messages to the voter: a batch that was planned, or None to look again.
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.tokens: Tokens = SimpleQueue()  # wake the consumer
        self.stop = Stop()  # ends the voter; the interpreter's exit stops its pool
        self.gone = 0  # steps, by the consumer; where the epoch pads, perhaps before the voter
        self.waits_since = 0.0  # on `monotonic`; 0 if the consumer does not wait
        self.ready = 0
        self.agreed = 0  # steps with which the epoch goes on
        self.last: Outcome | None = None  # of the step after these, once the epoch does not go on

    def knows(self, step: int) -> bool:
        """Whether the outcome of a step is there."""
        return step < self.agreed or self.last is not None

    def came(self, outcome: Outcome) -> None:
        """Note the outcome of the next step."""
        if outcome.goes_on:
            self.agreed += 1
        else:
            self.last = outcome
        self.tokens.put(None)

    def failed(self, _: int, error: BaseException) -> None:
        """Note the error that ended the voter."""
        strip_all(error)
        self.came(Outcome(error=no_answer(error)))


class _OwnBatches:
    """What the voter knows of the batches of this rank.

    Args:
        inbox: Of the voter.
        replicas: Whose batches are planned.
    """

    def __init__(self, shared: _Shared, replicas: int) -> None:
        self._shared = shared
        self._planned: deque[_Planned] = deque()
        self._left = set(range(replicas))  # that have not come to their end
        self.failed = False  # whether one has come to its end with an error

    def has(self, step: int, stops: Sequence[Stop]) -> bool | None:
        """Wait until it is known whether there is a batch for a step; return None if stopped."""
        inbox = self._shared.inbox
        while self._shared.ready <= step and self._left:
            # What came before the stop counts: the rank may have come to its end.
            if inbox.empty() and is_set(stops):
                return None
            planned = inbox.get()
            if planned is not None:
                self._planned.append(planned)
            self._look()
        return self._shared.ready > step

    def _look(self) -> None:
        """Count the batches that were read, up to the first that was not."""
        planned = self._planned
        while planned and planned[0].read:
            first = planned.popleft()
            if first.exhausted:
                self._left.discard(first.replica)
                self.failed |= first.failed
            else:
                self._shared.ready += 1


def _run(shared: _Shared, replicas: int, pool: Pool[None], _: None) -> None:
    """Vote on each step; the only job of the voter."""
    try:
        _vote(shared, replicas, (shared.stop, *stops_here()))
    finally:
        pool.stop()


def _vote(shared: _Shared, replicas: int, stops: Sequence[Stop]) -> None:
    ballot, own = shared.ballot, _OwnBatches(shared, replicas)
    for stop in stops:
        stop.add(shared.inbox)
    for step in count():
        has_batch = own.has(step, stops)
        if has_batch is None:
            _leave(shared, step)
            return
        ballot.vote(step, has_batch=has_batch, failed=own.failed)
        outcome = ballot.outcome(step, stops, lambda: shared.waits_since)
        if outcome is None and not (has_batch or own.failed or shared.pads):
            outcome = Outcome()  # whatever the others have: the epoch ends with this rank's share
        if outcome is None:
            _leave(shared, step + 1)
            return
        shared.came(outcome)
        if not outcome.goes_on:
            if outcome.error is None:
                # The consumer has what it needs, whether the store still answers or not.
                with suppress(Exception):
                    ballot.end(step)
            return


def _leave(shared: _Shared, step: int) -> None:
    """Leave after the steps that the consumer has gone, which slower ranks may go, too."""
    gone = max(step, shared.gone)
    for missing in range(step, gone):
        shared.ballot.vote(missing, has_batch=True)
    shared.ballot.leave(gone)


def _enter(_: int) -> AbstractContextManager[None]:
    return nullcontext()


def _stop(stop: Callable[[], None], tokens: Tokens) -> None:
    stop()
    tokens.put(None)
