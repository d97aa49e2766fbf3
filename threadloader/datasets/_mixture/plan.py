"""One epoch of a mixture of map-style sources: position → source and index in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._rng.keys import key_of
from threadloader.datasets._mixture.pattern import Pattern
from threadloader.datasets._mixture.source_order import SourceOrder
from threadloader.datasets._mixture.stopping import ENDLESS, STOPS, end_of
from threadloader.datasets._mixture.weights import whole_weights

if TYPE_CHECKING:
    from threadloader.datasets._mixture.stopping import Stop

__all__ = ["Changes", "Mixing", "Plan", "check_changing", "checked_count", "pattern_key"]

# Positions, each greater than the one before, and the weights of all sources from there on.
Changes = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Mixing:
    """What decides all epochs of a mixture, besides changes of the weights.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of its range.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]  # of the sources; () where they have none
    weights: tuple[float, ...]
    seed: int
    stop: Stop
    length: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        checked_count("seed", self.seed)
        if self.stop not in STOPS:
            msg = f"stop must be one of {', '.join(map(repr, STOPS))}, but got {self.stop!r}"
            raise ValueError(msg)
        if self.length is not None:
            if self.stop != "repeat":
                msg = f"length={self.length} is for stop='repeat', and stop is {self.stop!r}"
                raise ValueError(msg)
            if not 0 < checked_count("length", self.length) < ENDLESS:
                msg = f"length must be from 1 to 2**62, but got {self.length}"
                raise ValueError(msg)


def checked_count(name: str, value: Any) -> int:
    """Return a whole number of at least 0.

    Raises:
        TypeError: It is none.
        ValueError: It is negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        msg = f"{name} must be a whole number, but got {value!r}"
        raise TypeError(msg)
    if value < 0:
        msg = f"{name} must be at least 0, but got {value}"
        raise ValueError(msg)
    return int(value)


def check_changing(stop: Stop) -> None:
    """Refuse to change the weights of a mixture that ends with its sources."""
    if stop != "repeat":
        msg = (
            f"the end of a mixture with stop={stop!r} follows from its weights, so they can't "
            "change: use stop='repeat'"
        )
        raise ValueError(msg)


def pattern_key(seed: int, epoch: int) -> int:
    """Return the key of an epoch's pattern."""
    return int.from_bytes(key_of(seed, epoch, b"mixture.pattern")[:8], "little")


class Plan:
    """One epoch of a mixture.

    With a ``length`` the epochs are spans of one sequence, so that no source begins a new pass with
    an epoch.  Else each epoch is a mixture of its own, as the sources are to be used up in it.

    Args:
        mixing: What all epochs have in common.
        epoch: Its number, from 0.
        changes: Of the weights, at positions of that sequence, or of the epoch.

    Attributes:
        start: The position of the epoch's beginning in that sequence.
        length: Positions.

    Threads:
        all: any; nothing changes after `__init__`, but what `Pattern` and `SourceOrder` keep.
    """

    __slots__ = ("_order", "_pattern", "changes", "epoch", "length", "mixing", "start")

    def __init__(self, mixing: Mixing, epoch: int, changes: Changes = ()) -> None:
        self.mixing, self.epoch, self.changes = mixing, epoch, changes
        self.start, keyed_epoch = 0, epoch
        if mixing.length is not None:
            self.start, keyed_epoch = epoch * mixing.length, 0
        weights = whole_weights(mixing.weights)
        end, planned = end_of(mixing.stop, weights, mixing.lengths)
        self.length = mixing.length or end
        self._pattern = Pattern(
            pattern_key(mixing.seed, keyed_epoch), weights, planned, self.length
        )
        if self.start + self.length > ENDLESS:
            msg = f"epoch {epoch} of {self.length} samples ends after position 2**62"
            raise ValueError(msg)
        for position, changed in changes:
            self._pattern.add(position, whole_weights(changed))
        self._order = SourceOrder(
            mixing.names, mixing.lengths, mixing.seed, keyed_epoch, shuffle=mixing.shuffle
        )

    def __reduce__(self) -> tuple[type[Plan], tuple[Mixing, int, Changes]]:
        return Plan, (self.mixing, self.epoch, self.changes)

    def span(self, position: int, rows: int) -> tuple[list[int], list[int]]:
        """Return the sources of some positions, and the indices in them.

        Args:
            position: Of the epoch, below its length.
            rows: How many positions; fewer at the end of the epoch.
        """
        position += self.start
        stop = min(position + rows, self.start + self.length)
        sources, turns = [], []
        while position < stop:
            block = self._pattern.blocks(position, stop - position)
            part = slice(position - block.first, min(stop, block.stop) - block.first)
            sources.append(block.sources[part])
            turns.append(block.turns[part])
            position = block.stop
        all_sources = sources[0] if len(sources) == 1 else np.concatenate(sources)
        all_turns = turns[0] if len(turns) == 1 else np.concatenate(turns)
        return all_sources.tolist(), self._order.indices(all_sources, all_turns).tolist()

    def counts(self, position: int) -> list[int]:
        """Return how many samples of each source are before a position of the epoch."""
        counts = self._pattern.counts(self.start + position)
        if not self.start:
            return counts
        before = self._pattern.counts(self.start)
        return [count - earlier for count, earlier in zip(counts, before, strict=True)]
