"""The plan of an epoch: position → whose turn it is → which of that source's samples comes.

    positions:  | block 0             | block 1        | ...     each in a random order of its own
    turns:      | shares(256)         | shares(512) - shares(256)
    a source:   | pass 0: each of its samples once     | pass 1 ...

How many turns each source has had by the end of a block follows from the weights alone, and is
never off by more than a few (see `shares`).  So a block needs no other one: its turns are put in an
order that follows from the key and the block's place, and a source's turns are numbered as they
come.  Turn n of a source with m samples is entry ``n % m`` of a permutation for pass ``n // m``.

A block ends early where an epoch ends, and where a change was planned from the beginning: the
shares are exact there, too.  Any other change cuts a block off, and leaves what comes before it.
"""

from __future__ import annotations

import hashlib
import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from threadloader._authors import KeyedPermutation
from threadloader.datasets._mixture.mixing import ENDLESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from threadloader.datasets._mixture.mixing import Changes, Mixing, Stop


BLOCK = 256  # positions
_BLOCKS = 32  # that are made at once: most of their time is for calls of NumPy

# Positions, each greater than the one before, and the weights (whole numbers) from there on.
Planned = Sequence[tuple[int, tuple[int, ...]]]


def whole_weights(weights: Iterable[float]) -> tuple[int, ...]:
    """Return whole numbers in exactly the proportions of ``weights``."""
    fractions = [Fraction(weight) for weight in weights]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * common) for fraction in fractions]
    divisor = math.gcd(*whole) or 1
    return tuple(number // divisor for number in whole)


def shares(length: int, weights: Sequence[int]) -> list[int]:
    """Return how many of ``length`` turns each source has: with a greater length, never fewer.

    Each source in its turn takes its share of what is left, rounded.  Both its share and the rest
    can only grow with the length, by at most 1 a turn, so the same holds for all.  A share is off
    by less than 1/2 and what the rest was off, in proportion to the weight.  With the largest
    weights first that is less than 1 + ln(n) / 2 for n sources, whatever the length.

    Args:
        length: At least 0.
        weights: Whole numbers; see `whole_weights`.
    """
    counts = [0] * len(weights)
    left, rest = length, sum(weights)
    for source in sorted(range(len(weights)), key=lambda source: -weights[source]):
        weight = weights[source]
        if not weight:
            break
        counts[source] = share = (2 * left * weight + rest) // (2 * rest)
        left -= share
        rest -= weight
    return counts


def end_of(stop: Stop, weights: Sequence[int], lengths: Sequence[int]) -> tuple[int, Planned]:
    """Return the length of a mixture, and the changes of its weights on the way there.

    Args:
        stop: ``"first"``: before a source is asked for a sample again.  ``"all"``: when all were
            asked for all their samples.  ``"once"``: as ``"all"``, and a source that is used up has
            no turn any more.  ``"repeat"``: never.
        weights: Whole numbers; a source without a weight does not count.
        lengths: Samples of each source.
    """
    if stop == "repeat":
        return ENDLESS, []
    if stop == "once":
        return _end_of_each(weights, lengths)
    if stop == "first":
        return _first_where(weights, lambda counts: any(map(operator.gt, counts, lengths))) - 1, []
    needed = [length if weight else 0 for length, weight in zip(lengths, weights, strict=True)]
    return _first_where(weights, lambda counts: all(map(operator.ge, counts, needed))), []


def _end_of_each(weights: Sequence[int], lengths: Sequence[int]) -> tuple[int, Planned]:
    """Return the length of a mixture in which a source that is used up has no turn any more."""
    planned: list[tuple[int, tuple[int, ...]]] = []
    position, left = 0, list(lengths)
    while True:
        weights = tuple(weight if more else 0 for weight, more in zip(weights, left, strict=True))
        if not any(weights):
            return position, planned
        if position:
            planned.append((position, weights))
        ends = [most if weight else math.inf for most, weight in zip(left, weights, strict=True)]
        more = _first_where(weights, lambda counts: any(map(operator.ge, counts, ends)))  # noqa: B023  # called at once
        left = [most - count for most, count in zip(left, shares(more, weights), strict=True)]
        position += more


def _first_where(weights: Sequence[int], reached: Callable[[list[int]], bool]) -> int:
    """Return the first length whose shares have reached something, and keep it from there on."""
    most = 1
    while not reached(shares(most, weights)):
        most *= 2
    lengths = range(most)
    return bisect_left(
        lengths, True, lo=most // 2, key=lambda length: reached(shares(length, weights))
    )


class Span(NamedTuple):
    """Some consecutive positions."""

    first: int
    stop: int
    sources: NDArray[np.int64]  # whose turn it is at each position from ``first`` on
    turns: NDArray[np.int64]  # the number of that turn, from 0


class _Segment(NamedTuple):
    """The positions from one change of the weights to the next."""

    start: int
    before: list[int]  # turns of each source
    weights: Sequence[int]
    planned: bool  # the block before it ends there; else it is cut off

    def counts(self, position: int) -> list[int]:
        """Return the turns of each source before a position where a block ends."""
        taken = shares(position - self.start, self.weights)
        return [before + count for before, count in zip(self.before, taken, strict=True)]


class Pattern:
    """Whose turn it is at each position.

    Args:
        mixing: What all epochs have in common.
        epoch: Its number; 0 for a sequence of epochs.
        changes: Of the weights.
        part: The number of a part of a stream, which has a pattern of its own.
        planned: See `Planned`.
        length: Positions in an epoch, whose shares are exact; None for no epochs.

    Threads:
        all: any, nothing changes.
    """

    def __init__(
        self,
        mixing: Mixing,
        epoch: int,
        changes: Changes,
        *,
        part: int = 0,
        planned: Planned = (),
        length: int | None = None,
    ) -> None:
        self._key = mixing.seed, epoch, part
        self._epoch = length
        weights = whole_weights(mixing.weights)
        self._segments = [_Segment(0, [0] * len(weights), weights, planned=True)]
        for at, to in planned:
            self._segments.append(_Segment(at, self._segments[-1].counts(at), to, planned=True))
        for at, changed in changes:
            before = self.counts(at)
            # In the place of one that begins there, whose block before it has ended.
            is_same = at == self._segments[-1].start
            exact = is_same and self._segments.pop().planned
            self._segments.append(_Segment(at, before, whole_weights(changed), planned=exact))

    def span(self, position: int, most: int = 1) -> Span:
        """Return the block that has a position, and the whole blocks after it, up to ``most``."""
        segment, first, end, stop = self._place(position)
        size, blocks = min(BLOCK, end - first), max(1, min(most, (stop - first) // BLOCK))
        firsts = range(first, first + blocks * size, size)
        shape = blocks, size
        # Of each block and source: the turns before it, and in it.
        ends = np.array([segment.counts(at) for at in (*firsts, firsts.stop)])
        before, counts = ends[:-1], np.diff(ends, axis=0)
        # Of each block, source by source: whose turn, and its number.
        owners = np.repeat(np.tile(np.arange(counts.shape[1]), blocks), counts.ravel())
        ahead = before - (counts.cumsum(axis=1) - counts)
        numbers = np.tile(np.arange(size), blocks) + np.repeat(ahead.ravel(), counts.ravel())
        places = np.stack([_permutation(size, *self._key, at).span(0, size) for at in firsts])
        sources, turns = np.empty(shape, np.int64), np.empty(shape, np.int64)
        np.put_along_axis(sources, places, owners.reshape(shape), axis=1)
        places = sources.argsort(axis=1, kind="stable")
        np.put_along_axis(turns, places, numbers.reshape(shape), axis=1)
        rows = slice(0, stop - first)
        return Span(first, min(stop, firsts.stop), sources.ravel()[rows], turns.ravel()[rows])

    def counts(self, position: int) -> list[int]:
        """Return how many turns each source has before a position."""
        segment, first, _, _ = self._place(position)
        counts = segment.counts(first)
        if position > first:
            earlier = self.span(position).sources[: position - first]
            for source, more in enumerate(np.bincount(earlier).tolist()):
                counts[source] += more
        return counts

    def _place(self, position: int) -> tuple[_Segment, int, int, int]:
        """Return where a position is.

        Returns:
            Its segment; where its block begins; the next position where shares are exact; and where
            blocks are cut off, by the next change.
        """
        place = bisect_right(self._segments, position, key=lambda segment: segment.start) - 1
        segment = self._segments[place]
        begin, end = segment.start, 2 * ENDLESS
        if self._epoch is not None:
            end = (position // self._epoch + 1) * self._epoch
            begin = max(begin, end - self._epoch)
        stop = end
        if place + 1 < len(self._segments):
            after = self._segments[place + 1]
            stop = min(end, after.start)
            end = stop if after.planned else end
        return segment, position - (position - begin) % BLOCK, end, stop


class SourceOrder:
    """The order of each source's samples: all of them once in each pass, each pass anew.

    Args:
        mixing: Its seed decides the order, together with ``epoch`` and a source's name: another
            source beside it does not change its order.
        epoch: The number of the epoch.

    Threads:
        all: any.  Two threads may both make a permutation, and they are equal; an item of a dict
        is read and replaced atomically.  Source: Doc/library/threadsafety.rst of CPython.
    """

    def __init__(self, mixing: Mixing, epoch: int) -> None:
        # At least 1, as an empty source has no turn, and an iterable one none here.
        self._lengths = np.array([length or 1 for length in mixing.lengths])
        self._shuffle = mixing.shuffle
        self._keys = [(mixing.seed, epoch, name) for name in mixing.names]
        # Of each source the pass that was looked at last.
        self._passes: dict[int, tuple[int, KeyedPermutation]] = {}

    def indices(self, sources: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of samples in their sources.

        Args:
            sources: Shape ``(n,)``.
            turns: Shape ``(n,)``; those of one source ascend.

        Returns:
            Shape ``(n,)``.
        """
        passes, numbers = np.divmod(turns, self._lengths[sources])
        if not self._shuffle:
            return numbers
        indices = np.empty_like(numbers)
        for source in np.unique(sources).tolist():
            places = np.flatnonzero(sources == source)
            begins = np.flatnonzero(np.diff(passes[places], prepend=-1))
            for part in np.split(places, begins[1:]):
                permutation = self._permutation(source, int(passes[part[0]]))
                indices[part] = permutation.at(numbers[part])
        return indices

    def _permutation(self, source: int, number: int) -> KeyedPermutation:
        """Return the order of a source's pass."""
        before, permutation = self._passes.get(source, (-1, None))
        if permutation is None or before != number:
            permutation = _permutation(int(self._lengths[source]), *self._keys[source], number)
            self._passes[source] = number, permutation
        return permutation


def _permutation(length: int, *key: object) -> KeyedPermutation:
    """Return the permutation that follows from a key, and has no relation to that of another."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return KeyedPermutation(length, int.from_bytes(digest, "little"))


class Plan:
    """One epoch of a mixture of map-style sources.

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
        all: any; nothing changes after `__init__`, but what `SourceOrder` keeps.
    """

    def __init__(self, mixing: Mixing, epoch: int, changes: Changes = ()) -> None:
        self.mixing, self.epoch, self.changes = mixing, epoch, changes
        self.start, keyed_epoch = 0, epoch
        if mixing.length is not None:
            self.start, keyed_epoch = epoch * mixing.length, 0
        lengths = [length or 0 for length in mixing.lengths]
        end, planned = end_of(mixing.stop, whole_weights(mixing.weights), lengths)
        self.length = mixing.length or end
        if self.start + self.length > ENDLESS:
            msg = f"epoch {epoch} of {self.length} samples ends after position 2**62"
            raise ValueError(msg)
        self._pattern = Pattern(mixing, keyed_epoch, changes, planned=planned, length=self.length)
        self._order = SourceOrder(mixing, keyed_epoch)

    def span(self, position: int) -> tuple[int, int, list[int], list[int]]:
        """Return some consecutive positions of the epoch, from the block of one on.

        Returns:
            Where they begin and end; their sources, and the indices in them.
        """
        first, stop, sources, turns = self._pattern.span(self.start + position, _BLOCKS)
        indices = self._order.indices(sources, turns)
        return first - self.start, stop - self.start, sources.tolist(), indices.tolist()

    def counts(self, position: int) -> list[int]:
        """Return how many samples of each source are before a position of the epoch."""
        counts = self._pattern.counts(self.start + position)
        before = self._pattern.counts(self.start)
        return [count - earlier for count, earlier in zip(counts, before, strict=True)]
