"""How far the consumer has got in an epoch: which batches were delivered, and in what state.

A sampler's batches are one *lane*, and so are those of each replica of an iterable dataset.  In a
lane batches are delivered in order, or ``ahead`` of others that were drawn before them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threadloader._resume.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Lane", "Position"]


def _nothing() -> None:
    """There is nothing to find out."""


@dataclass(slots=True)
class Lane:
    """What was delivered of one sampler or replica.

    Threads:
        all: consumer; but ``first`` is set by the worker that reads a replica, whole.
    """

    batches: int = 0  # all before this one were delivered
    mark: Checkpoint | None = None  # the latest of those before ``batches``
    check: tuple[int, int] | None = None  # or batches, and a number that follows from them
    ahead: dict[int, Checkpoint | int | None] = field(default_factory=dict)  # delivered beyond
    length: int | None = None  # batches that a user's sampler gives in all
    first: Checkpoint | None = None  # at the beginning
    # Finds that out where it takes asking: returns what does, if that still lives.
    find_first: Callable[[], Callable[[], Checkpoint | None] | None] = _nothing
    total: int | None = None  # batches of a replica, once it was read to its end
    end_mark: Checkpoint | None = None  # then
    before: tuple[Any, ...] = ()  # the number delivered last, and what the lane was like then

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to deliver, of a replica."""
        return self.total is not None and self.batches >= self.total

    def delivered(self, number: int, mark: Checkpoint | int | None) -> None:
        """Take note of a batch.

        Args:
            number: Of the batch in the lane, from 0.
            mark: What tells of the lane after it: a state or a check; None for nothing.
        """
        self.before = number, self.batches, self.mark, self.check, self.ahead.copy()
        if number == self.batches and not self.ahead:  # as it is in order
            self.batches = number + 1
            if mark is not None:
                self._keep(self.batches, mark)
            return
        self.ahead[number] = mark
        while self.batches in self.ahead:
            mark = self.ahead.pop(self.batches)
            self.batches += 1
            self._keep(self.batches, mark)

    def take_back(self, number: int) -> None:
        """Take no note of a batch, if it was the last: the consumer did not get it."""
        if self.before[:1] == (number,):
            _, self.batches, self.mark, self.check, self.ahead = self.before
            self.before = ()

    def ends(self, number: int, mark: Checkpoint | None) -> None:
        """Take note that a replica has no batch of a number, nor any after it."""
        if self.total is None or number < self.total:
            self.total, self.end_mark = number, mark

    def drawn_again(self, number: int, mark: Checkpoint | int | None) -> None:
        """Take note of the mark of a batch that was delivered before this lane was restored."""
        if number in self.ahead:
            self.ahead[number] = mark
        else:
            self._keep(number + 1, mark)

    def state(self) -> dict[str, Any]:
        """Return the lane, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"batches": self.batches}
        if self.ended:
            state["ended"] = True
        if self.ahead:
            # Bits, not a list: few bytes, also with a large window.
            state["ahead"] = hex(sum(1 << (number - self.batches) for number in self.ahead))
        if self.check is not None:
            state["check"] = list(self.check)
        if self.length is not None:
            state["of"] = self.length
        mark = self.end_mark if self.ended else self.mark
        if mark is None and not self.ended:
            find = None if self.first is not None else self.find_first()
            mark = self.first if find is None else find()
        if mark is not None:
            state["mark"] = _encoded(mark)
        return state

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Lane:
        """Return the lane that `state` described.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: It is none.
        """
        batches, bits = state["batches"], int(state.get("ahead", "0x0"), 16)
        check = state.get("check")
        if type(batches) is not int or batches < 0:
            raise ValueError(batches)
        lane = cls(
            batches,
            check=None if check is None else (int(check[0]), int(check[1])),
            length=state.get("of"),
        )
        lane.ahead.update(
            (batches + bit, None) for bit in range(bits.bit_length()) if bits >> bit & 1
        )
        mark = _decoded(state["mark"]) if "mark" in state else None
        if mark is not None and not mark.batches:
            lane.first = mark
        else:
            lane.mark = mark
        if state.get("ended"):
            lane.ends(lane.batches, mark)
        return lane

    def _keep(self, batches: int, mark: Checkpoint | int | None) -> None:
        """Keep what tells of the lane after so many batches, if anything does."""
        if type(mark) is int:
            if self.check is None or batches > self.check[0]:
                self.check = batches, mark
        elif isinstance(mark, Checkpoint) and (
            self.mark is None or mark.batches > self.mark.batches
        ):
            self.mark = mark


def _encoded(mark: Checkpoint) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "batches": mark.batches,
        "samples": mark.samples,
        "states": copy.deepcopy(mark.states),
    }
    if mark.ended:
        encoded["ended"] = True
    if mark.whole:
        encoded["whole"] = True
    return encoded


def _decoded(encoded: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        int(encoded["batches"]),
        int(encoded["samples"]),
        dict(encoded["states"]),
        ended=bool(encoded.get("ended")),
        whole=bool(encoded.get("whole")),
    )


@dataclass(slots=True)
class Position:
    """Where an epoch is.

    Threads:
        all: consumer.
    """

    epoch: int
    lanes: list[Lane]  # none until the replicas are counted
    turn: int = 0  # the replica that delivered last
    saved: Mapping[str, Any] | None = None  # the loader's state that the lanes are restored from
    finished: bool = False  # whether the consumer was told of the end
    broken_off: bool = False  # whether its replicas were in the middle of another before
    refused: bool = False  # whether the sampler does not fit the state
    skipped: int = 0  # samples left out of what was delivered
    before: int | None = None  # batches of the epoch before; None if there was none
    order: Mapping[str, Any] | None = None  # of an iterable dataset, if it tells

    @classmethod
    def of(cls, epoch: int, state: Mapping[str, Any]) -> Position:
        """Return the position that a loader's state tells of; raises what `Lane.of` does."""
        lanes = [Lane.of(lane) for lane in state["lanes"]]
        turn, skipped = int(state.get("turn", len(lanes) - 1)), int(state.get("skipped", 0))
        return cls(epoch, lanes, turn, saved=state, skipped=skipped)

    @property
    def restored(self) -> bool:
        """Whether the lanes are those of a saved state."""
        return self.saved is not None

    @property
    def batches(self) -> int:
        """How many were delivered."""
        return sum(lane.batches + len(lane.ahead) for lane in self.lanes)

    @property
    def saved_order(self) -> Mapping[str, Any] | None:
        """What decided the order of the sampler, by that state."""
        return None if self.saved is None else self.saved.get("order")

    def state(self) -> dict[str, Any]:
        """Return the lanes, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"lanes": [lane.state() for lane in self.lanes]}
        if len(self.lanes) > 1:
            state["turn"] = self.turn
        if self.skipped:
            state["skipped"] = self.skipped
        if self.order is not None:
            state["dataset's order"] = dict(self.order)
        return state

    def lanes_after(self) -> list[Lane]:
        """Return the lanes of an epoch that goes on with the same replicas, after this one."""
        marks = [_between(lane.end_mark) for lane in self.lanes]
        return [Lane(first=mark) for mark in marks] if any(marks) else []


def _between(mark: Checkpoint | None) -> Checkpoint | None:
    """Return what an iterable is like between two passes, of what it was like after one."""
    states = mark.states if mark is not None else {}
    if "self" in states:
        states = {"dataset": states["self"]}
    return Checkpoint(0, 0, states, whole=True) if "dataset" in states else None
