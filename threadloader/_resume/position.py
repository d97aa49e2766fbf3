"""Where the consumer is in an epoch: the batches that were delivered, and the latest checkpoints.

The batches of a sampler are one *lane*, and so are those of each replica of an iterable dataset.
In a lane, batches are delivered in order, or ``ahead`` of others that were drawn before them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Checkpoint", "Lane", "Position"]


class Checkpoint(NamedTuple):
    """The states of a sampler or an iterable between two batches, to go back to."""

    batches: int  # drawn or read before
    samples: int  # in these batches
    states: dict[str, Any]  # of the user's objects, by role; those without a state are left out
    ended: bool = False  # whether no batch comes after: an object may be at its beginning again
    between_passes: bool = False  # whether a pass begins here, and none was broken off before


def _nothing() -> None:
    """Return no checkpoint."""


class Lane:
    """The delivered batches of one sampler or replica, and its checkpoints.

    Args:
        batches: All before this one were delivered.
        first: The checkpoint at the beginning.
        sampler_epoch: The number of the epoch in a user's sampler; None if it has none.

    Threads:
        all: consumer; but ``first`` is set, atomically, by the worker that reads a replica.
    """

    # No dataclass here, and few elsewhere: each takes as long to import as a module.

    def __init__(
        self,
        batches: int = 0,
        *,
        first: Checkpoint | None = None,
        sampler_epoch: int | None = None,
    ) -> None:
        self.batches = batches
        self.checkpoint: Checkpoint | None = None  # the latest one at or before ``batches``
        self.check: tuple[int, int] | None = None  # or batches, and what follows from their indices
        self.ahead: dict[int, Checkpoint | int | None] = {}  # delivered beyond ``batches``
        self.length: int | None = None  # batches of a user's sampler in all
        self.first = first
        # Takes ``first`` now; returns None if it is too late for that.
        self.find_first: Callable[[], Checkpoint | None] = _nothing
        self.total: int | None = None  # batches of a replica, once it was read to its end
        self.sampler_epoch = sampler_epoch
        self.end_checkpoint: Checkpoint | None = None  # at that end
        self.before: tuple[Any, ...] = ()  # the number delivered last, and the fields before that

    @property
    def ended(self) -> bool:
        """Whether all batches of a replica were delivered, as far as is known."""
        return self.total is not None and self.batches >= self.total

    def delivered(self, number: int, checkpoint: Checkpoint | int | None) -> None:
        """Count a batch as delivered.

        Args:
            number: The number of the batch in the lane, from 0.
            checkpoint: A checkpoint taken after it, or the check of all indices so far, or None.
        """
        self.before = number, self.batches, self.checkpoint, self.check, self.ahead.copy()
        if number == self.batches and not self.ahead:  # always, if batches come in order
            self.batches = number + 1
            if checkpoint is not None:
                self._keep(self.batches, checkpoint)
            return
        self.ahead[number] = checkpoint
        while self.batches in self.ahead:
            checkpoint = self.ahead.pop(self.batches)
            self.batches += 1
            self._keep(self.batches, checkpoint)

    def take_back(self, number: int) -> None:
        """Undo `delivered`, if this was the last batch: the consumer did not get it."""
        if self.before[:1] == (number,):
            _, self.batches, self.checkpoint, self.check, self.ahead = self.before
            self.before = ()

    def ends(self, number: int, checkpoint: Checkpoint | None) -> None:
        """Note that a replica has no batch of this number, nor any after it."""
        if self.total is None or number < self.total:
            self.total, self.end_checkpoint = number, checkpoint

    def drawn_again(self, number: int, checkpoint: Checkpoint | int | None) -> None:
        """Note the checkpoint of a batch that was delivered before this lane was restored."""
        if number in self.ahead:
            self.ahead[number] = checkpoint
        else:
            self._keep(number + 1, checkpoint)

    def state(self) -> dict[str, Any]:
        """Return the state of the lane, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"batches": self.batches}
        if self.ended:
            state["ended"] = True
        if self.ahead:
            # Bits, not a list: that is short, even with a large window.
            state["ahead"] = hex(sum(1 << (number - self.batches) for number in self.ahead))
        if self.check is not None:
            state["check"] = list(self.check)
        if self.length is not None:
            state["of"] = self.length
        if self.sampler_epoch is not None:
            state["epoch"] = self.sampler_epoch
        checkpoint = self.end_checkpoint if self.ended else self.checkpoint
        if checkpoint is None and not self.ended:
            checkpoint = self.find_first() if self.first is None else self.first
        if checkpoint is not None:
            state["mark"] = _encoded(checkpoint)
        return state

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Lane:
        """Return the lane with a state that `state` returned.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: It is not the state of a lane.
        """
        batches, bits = state["batches"], int(state.get("ahead", "0x0"), 16)
        check = state.get("check")
        if type(batches) is not int or batches < 0:
            raise ValueError(batches)
        lane = cls(batches, sampler_epoch=state.get("epoch"))
        lane.check = None if check is None else (int(check[0]), int(check[1]))
        lane.length = state.get("of")
        lane.ahead.update(
            (batches + bit, None) for bit in range(bits.bit_length()) if bits >> bit & 1
        )
        checkpoint = _decoded(state["mark"]) if "mark" in state else None
        if checkpoint is not None and not checkpoint.batches:
            lane.first = checkpoint
        else:
            lane.checkpoint = checkpoint
        if state.get("ended"):
            lane.ends(lane.batches, checkpoint)
        return lane

    def _keep(self, batches: int, checkpoint: Checkpoint | int | None) -> None:
        """Keep a checkpoint or check taken after so many batches, if it is later."""
        if type(checkpoint) is int:
            if self.check is None or batches > self.check[0]:
                self.check = batches, checkpoint
        elif isinstance(checkpoint, Checkpoint) and (
            self.checkpoint is None or checkpoint.batches > self.checkpoint.batches
        ):
            self.checkpoint = checkpoint


def _encoded(checkpoint: Checkpoint) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "batches": checkpoint.batches,
        "samples": checkpoint.samples,
        "states": copy.deepcopy(checkpoint.states),
    }
    if checkpoint.ended:
        encoded["ended"] = True
    if checkpoint.between_passes:
        encoded["whole"] = True
    return encoded


def _decoded(encoded: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        int(encoded["batches"]),
        int(encoded["samples"]),
        dict(encoded["states"]),
        ended=bool(encoded.get("ended")),
        between_passes=bool(encoded.get("whole")),
    )


class Position:
    """Where the consumer is in an epoch.

    Args:
        epoch: Its number, from 0.
        lanes: Empty until the replicas are counted.
        turn: The replica that delivered last.
        saved: The loader's state that the lanes are restored from.

    Threads:
        all: consumer.
    """

    def __init__(
        self,
        epoch: int,
        lanes: list[Lane],
        turn: int = 0,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.epoch = epoch
        self.lanes = lanes
        self.turn = turn
        self.saved = saved
        self.skipped = 0  # samples that were left out of the delivered batches
        self.step = 0  # units of all ranks in a batch; 0 where one process loads all
        self.origin = 0  # units of all ranks that were delivered before the first batch
        self.skip = 0  # those among them that are drawn again
        self.finished = False  # whether the consumer got the StopIteration
        self.broken_off = False  # whether the replicas were in the middle of another epoch before
        self.refused = False  # whether the sampler does not fit the state
        self.before: int | None = None  # batches of the epoch before; None if there was none
        self.order: Mapping[str, Any] | None = None  # an iterable's ``order_identity()``, if any

    @classmethod
    def of(cls, epoch: int, state: Mapping[str, Any]) -> Position:
        """Return the position in a loader's state; raises the same errors as `Lane.of`."""
        lanes = [Lane.of(lane) for lane in state["lanes"]]
        position = cls(epoch, lanes, int(state.get("turn", len(lanes) - 1)), state)
        position.skipped = int(state.get("skipped", 0))
        shared = state.get("shared", {})
        position.step, position.origin, position.skip = (
            int(shared.get(name, 0)) for name in ("step", "origin", "skip")
        )
        return position

    def count_in(self, step: int) -> None:
        """Count from now on in batches of so many units of all ranks.

        What was delivered in batches of another size comes before the first batch then.

        Args:
            step: Units.
        """
        before, self.step = self.step, step
        (lane,) = self.lanes
        if not self.restored or before == step:
            return
        if not before:  # saved where one process loaded all
            before = (self.saved or {}).get("loader", {}).get("batch_size") or 1
        checkpoint = lane.checkpoint or lane.first
        delivered = lane.batches * before
        if checkpoint is None:
            self.skip += delivered
        else:
            self.skip = (0 if checkpoint.batches else self.skip) + (
                (lane.batches - checkpoint.batches) * before
            )
            checkpoint = checkpoint._replace(batches=0)
        self.origin += delivered
        self.lanes = [Lane(first=checkpoint, sampler_epoch=lane.sampler_epoch)]

    @property
    def restored(self) -> bool:
        """Whether the lanes come from a saved state."""
        return self.saved is not None

    @property
    def batches(self) -> int:
        """The number of delivered batches."""
        return sum(lane.batches + len(lane.ahead) for lane in self.lanes)

    @property
    def saved_order(self) -> Mapping[str, Any] | None:
        """The order of a known sampler in the saved state; None for none."""
        return None if self.saved is None else self.saved.get("order")

    def state(self) -> dict[str, Any]:
        """Return the state, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"lanes": [lane.state() for lane in self.lanes]}
        if len(self.lanes) > 1:
            state["turn"] = self.turn
        if self.skipped and not self.step:  # a sharded state is the same on all ranks
            state["skipped"] = self.skipped
        if self.step:
            shared = {"step": self.step, "origin": self.origin, "skip": self.skip}
            state["shared"] = {name: count for name, count in shared.items() if count}
        if self.order is not None:
            state["dataset's order"] = dict(self.order)
        return state

    def lanes_after(self) -> list[Lane]:
        """Return the lanes of the next epoch, which goes on with the same replicas."""
        checkpoints = [_between(lane.end_checkpoint) for lane in self.lanes]
        return [Lane(first=checkpoint) for checkpoint in checkpoints] if any(checkpoints) else []


def _between(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint of an iterable between two passes, from the one after a pass."""
    states = checkpoint.states if checkpoint is not None else {}
    if "self" in states:
        states = {"dataset": states["self"]}
    return Checkpoint(0, 0, states, between_passes=True) if "dataset" in states else None
