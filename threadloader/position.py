"""How far the consumer has got in an epoch: which batches were delivered, and in what state.

A sampler's batches are one *lane*, and so are those of each replica of an iterable dataset.  In a
lane batches are delivered in order, or ``ahead`` of others that were drawn before them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threadloader.ticket import Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Lane", "Position"]


@dataclass(slots=True)
class Lane:
    """What was delivered of one sampler or replica.

    Threads:
        all: consumer.
    """

    batches: int = 0  # all before this one were delivered
    mark: Mark | None = None  # the latest of those before ``batches``
    ahead: dict[int, Mark | None] = field(default_factory=dict)  # delivered beyond ``batches``
    total: int | None = None  # batches of a replica, once it was read to its end
    end_mark: Mark | None = None  # then

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to deliver, of a replica."""
        return self.total is not None and self.batches >= self.total

    def delivered(self, number: int, mark: Mark | None) -> None:
        """Take note of a batch.

        Args:
            number: Of the batch in the lane, from 0.
            mark: Of the lane after it; None if none was made.
        """
        self.ahead[number] = mark
        while self.batches in self.ahead:
            mark = self.ahead.pop(self.batches)
            self.batches += 1
            if mark is not None:
                self.mark = mark

    def ends(self, number: int, mark: Mark | None) -> None:
        """Take note that a replica has no batch of a number, nor any after it."""
        if self.total is None or number < self.total:
            self.total, self.end_mark = number, mark

    def drawn_again(self, number: int, mark: Mark | None) -> None:
        """Take note of the mark of a batch that was delivered before this lane was restored."""
        if number in self.ahead:
            self.ahead[number] = mark
        elif mark is not None and (self.mark is None or mark.batches > self.mark.batches):
            self.mark = mark

    def state(self) -> dict[str, Any]:
        """Return the lane, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"batches": self.batches}
        if self.ended:
            state["ended"] = True
        if self.ahead:
            # Bits, not a list: few bytes, also with a large window.
            state["ahead"] = hex(sum(1 << (number - self.batches) for number in self.ahead))
        mark = self.end_mark if self.ended else self.mark
        if mark is not None:
            state["mark"] = _encoded(mark)
        return state

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Lane:
        """Return the lane that `state` described; what is ahead of a mark is not told by it."""
        mark = _decoded(state["mark"]) if "mark" in state else None
        batches, bits = state["batches"], int(state.get("ahead", "0x0"), 16)
        ahead = [batches + bit for bit in range(bits.bit_length()) if bits >> bit & 1]
        lane = cls(batches, mark, dict.fromkeys(ahead))
        if state.get("ended"):
            lane.ends(lane.batches, mark)
        return lane


def _encoded(mark: Mark) -> dict[str, Any]:
    encoded: dict[str, Any] = {"batches": mark.batches, "samples": mark.samples}
    if mark.check is not None:
        encoded["check"] = mark.check
    if mark.states is not None:
        encoded["states"] = copy.deepcopy(mark.states)
    if mark.ended:
        encoded["ended"] = True
    return encoded


def _decoded(encoded: Mapping[str, Any]) -> Mark:
    return Mark(
        encoded["batches"],
        encoded["samples"],
        encoded.get("check"),
        encoded.get("states"),
        bool(encoded.get("ended")),
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
    restored: bool = False  # whether the lanes are those of a saved state
    saved_order: Mapping[str, Any] | None = None  # of that state
    finished: bool = False  # whether the consumer was told of the end

    @classmethod
    def of(cls, epoch: int, state: Mapping[str, Any]) -> Position:
        """Return the position that a loader's state tells of."""
        lanes = [Lane.of(lane) for lane in state["lanes"]]
        turn = state.get("turn", len(lanes) - 1)
        return cls(epoch, lanes, turn, restored=True, saved_order=state.get("order"))

    def state(self) -> dict[str, Any]:
        """Return the lanes, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"lanes": [lane.state() for lane in self.lanes]}
        if len(self.lanes) > 1:
            state["turn"] = self.turn
        return state

    def lanes_after(self) -> list[Lane]:
        """Return the lanes of an epoch that goes on with the same replicas."""
        marks = [_between(lane.end_mark) for lane in self.lanes]
        return [Lane(mark=mark) for mark in marks] if any(marks) else []


def _between(mark: Mark | None) -> Mark | None:
    """Return what an iterable is like between two passes, of what it was like after one."""
    states = mark.states if mark is not None and mark.states is not None else {}
    state = states.get("self", states.get("dataset"))
    return None if state is None else Mark(0, 0, None, {"dataset": state})
