"""The pattern of a mixture: position → whose turn it is, and how many turns that source had before.

    positions:  | block 0             | block 1        | ...     each in a random order of its own
    turns:      | shares(256)         | shares(512) - shares(256)

How many turns each source has had by the end of a block follows from the weights alone, and is
never off by more than a few (see `weights.shares`).  So a block needs no other one: its turns are
put in an order that follows from the key and the block's place.  Within it a source's turns are
numbered as they come.  So the first n positions always take the first turns of each source, and the
pattern can change, or end, at any position.

A block ends early where an epoch ends, and where a change was planned from the beginning: the
shares are exact there, too.  Any other change cuts a block off, and leaves what comes before it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from threadloader._rng.keys import key_of
from threadloader._rng.permutation import short_permutations
from threadloader.datasets._mixture.weights import by_weight, shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["BLOCK", "Block", "Pattern"]

BLOCK = 256  # positions; 30 us, of which most is for calls of NumPy
_KEPT = 16  # blocks that are kept: more than all threads of a loader are in at once


class Block(NamedTuple):
    """Some consecutive positions."""

    first: int
    stop: int
    sources: NDArray[np.int64]  # whose turn it is at each position from ``first`` on
    turns: NDArray[np.int64]  # the number of that turn, from 0


class _Segment:
    """The positions from one change of the weights to the next.

    Args:
        start: The first position.
        before: Turns of each source before it.
        weights: Of all sources, whole numbers.
        planned: Whether the block before it ends there; else it is cut off.
    """

    def __init__(
        self, start: int, before: list[int], weights: Sequence[int], *, planned: bool
    ) -> None:
        self.start = start
        self.planned = planned
        self._before = before
        self._weights = weights
        self._order = by_weight(weights)

    def counts(self, position: int) -> list[int]:
        """Return the turns of each source before a position where a block ends."""
        taken = shares(position - self.start, self._weights, self._order)
        return [before + count for before, count in zip(self._before, taken, strict=True)]


class Pattern:
    """Whose turn it is at each position.

    Args:
        key: Decides the order within blocks.
        weights: Of all sources, whole numbers; at the beginning.
        planned: Positions, each greater than the one before, and the weights from there on.
        epoch: Positions in an epoch, whose shares are exact; None for no epochs.

    Invariants:
        1. An entry of ``_recent`` is None, or a block that has this place by its first position.

    Threads:
        add: compatible, before others know the pattern; all else: any.  A block that two threads
        make is the same.  An entry of a list is read and replaced atomically.
        Source: Doc/library/threadsafety.rst of CPython.
    """

    def __init__(
        self,
        key: int,
        weights: Sequence[int],
        planned: Iterable[tuple[int, Sequence[int]]] = (),
        epoch: int | None = None,
    ) -> None:
        self._key = key
        self._epoch = epoch
        self._sources = np.arange(len(weights))
        self._segments = [_Segment(0, [0] * len(weights), weights, planned=True)]
        self._starts = [0]
        self._recent: list[Block | None] = [None] * _KEPT
        for position, changed in planned:
            self._add(position, self._segments[-1].counts(position), changed, planned=True)

    def add(self, position: int, weights: Sequence[int]) -> None:
        """Change the weights from a position on; what comes before it stays as it was.

        Args:
            position: Not before the last change.
            weights: As for the pattern.
        """
        self._add(position, self.counts(position), weights, planned=False)

    def _add(
        self, position: int, before: list[int], weights: Sequence[int], *, planned: bool
    ) -> None:
        if position == self._starts[-1]:
            planned = self._segments.pop().planned
            self._starts.pop()
        self._segments.append(_Segment(position, before, weights, planned=planned))
        self._starts.append(position)
        self._recent = [None] * _KEPT

    def block(self, position: int) -> Block:
        """Return the block that has a position."""
        segment, first, end, stop = self._place(position)
        slot = first // BLOCK % _KEPT
        block = self._recent[slot]
        if block is None or block.first != first:
            self._recent[slot] = block = self._make(segment, first, end - first, 1)
            if stop < end:
                size = stop - first
                block = Block(first, stop, block.sources[:size], block.turns[:size])
                self._recent[slot] = block
        return block

    def blocks(self, position: int, rows: int) -> Block:
        """Return positions from one on: one block, or several whole ones of a segment as one.

        Args:
            position: In the first block.
            rows: About how many positions.
        """
        segment, first, end, stop = self._place(position)
        last = position + rows
        if self._epoch is not None:
            last = min(last, (position // self._epoch + 1) * self._epoch)
        place = bisect_right(self._starts, position)
        if place < len(self._starts):
            last = min(last, self._starts[place])
        blocks = (last - first) // BLOCK
        if blocks < 2 or stop - first != BLOCK or stop != end:
            return self.block(position)
        return self._make(segment, first, BLOCK, blocks)

    def counts(self, position: int) -> list[int]:
        """Return how many turns each source has before a position."""
        segment, first, _, _ = self._place(position)
        counts = segment.counts(first)
        if position == first:
            return counts
        sources = self.block(position).sources[: position - first]
        more = np.bincount(sources, minlength=len(counts)).tolist()
        return [count + added for count, added in zip(counts, more, strict=True)]

    def _place(self, position: int) -> tuple[_Segment, int, int, int]:
        """Return where a position is.

        Returns:
            Its segment; where its block begins; where the block's turns end; and where it is cut
            off, by a change that was not planned.
        """
        place = bisect_right(self._starts, position) - 1
        segment = self._segments[place]
        anchor, epoch_end = segment.start, None
        if self._epoch is not None:
            epoch_start = position // self._epoch * self._epoch
            anchor, epoch_end = max(anchor, epoch_start), epoch_start + self._epoch
        first = position - (position - anchor) % BLOCK
        end = first + BLOCK
        if epoch_end is not None:
            end = min(end, epoch_end)
        if place + 1 == len(self._starts):
            return segment, first, end, end
        after = self._segments[place + 1]
        if after.planned:
            end = min(end, after.start)
        return segment, first, end, min(end, after.start)

    def _make(self, segment: _Segment, first: int, size: int, blocks: int) -> Block:
        """Return some blocks of a segment as one, in fewer calls of NumPy than one by one.

        Args:
            segment: Has the positions.
            first: Position.
            size: Positions in each.
            blocks: How many.
        """
        stop = first + blocks * size
        # Of each block and source.
        before = np.array([segment.counts(at) for at in range(first, stop + 1, size)])
        counts = np.diff(before, axis=0)
        skipped = before[:-1] - counts.cumsum(axis=1) + counts
        turns_of = np.repeat(np.tile(self._sources, blocks), counts.ravel())
        turn = np.tile(np.arange(size), blocks) + np.repeat(skipped.ravel(), counts.ravel())
        # Places in a block, in random order; and those of each source's turns, sorted.
        keys = [key_of(self._key, at, b"mixture.block")[:8] for at in range(first, stop, size)]
        order = short_permutations(size, np.frombuffer(b"".join(keys), "<u8"))
        order += turns_of.reshape(blocks, size) * BLOCK
        order.sort(axis=1)
        order &= BLOCK - 1
        order += np.arange(0, blocks * size, size)[:, None]
        places = order.ravel()
        sources, turns = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        sources[places] = turns_of
        turns[places] = turn
        return Block(first, stop, sources, turns)
