"""The settings of a mixture, and the plan of an epoch: position → whose turn → its next sample.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from threadloader._authors import IterableDataset, KeyedPermutation
from threadloader.errors import StateError, checked_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray


Stop = Literal["first", "all", "once", "repeat"]

# Positions, each greater than the one before, and the weights of all sources from there on.
Changes = tuple[tuple[int, tuple[float, ...]], ...]

ENDLESS = 1 << 62  # the length of a mixture without an end: loaders count that far

_VERSION = 3  # of a state
_SETTINGS = ("seed", "stop", "length", "shuffle")


def taken_apart(sources: Any) -> tuple[tuple[str, ...], list[Any], dict[str, Any]]:
    """Take apart the sources that the user gave.

    Returns:
        Their names and datasets, in the order in which they were given; and their weights, which
        are not checked.

    Raises:
        TypeError: It is no dict of pairs, or empty.
    """
    if not (isinstance(sources, Mapping) and sources):
        msg = f"a mixture takes a dict {{name: (dataset, weight)}} of sources, but got {sources!r}"
        raise TypeError(msg)
    for name, pair in sources.items():
        if not (isinstance(name, str) and isinstance(pair, tuple | list) and len(pair) == 2):
            msg = f"a source is a string and a pair (dataset, weight), but got {name!r}: {pair!r}"
            raise TypeError(msg)
    weights = {name: weight for name, (_, weight) in sources.items()}
    return tuple(sources), [dataset for dataset, _ in sources.values()], weights


def is_map_style(name: str, dataset: Any) -> bool:
    """Whether a source is asked for samples by their index; else it is an iterable.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(dataset, IterableDataset):
        return False
    if not isinstance(dataset, type):
        if hasattr(dataset, "__getitem__"):
            return True
        if hasattr(dataset, "__iter__"):
            return False
    msg = f"source {name!r} is no dataset: {dataset!r} has neither samples by index nor __iter__"
    raise TypeError(msg)


def checked_weights(
    weights: Mapping[str, Any], names: Sequence[str], lengths: Sequence[int | None] = ()
) -> tuple[float, ...]:
    """Return the weights of all sources, in the order of their names.

    Args:
        weights: By name.
        names: Of the sources.
        lengths: Their numbers of samples; None where that is not known.

    Raises:
        TypeError: A weight is no number.
        ValueError: A name is unknown or left out, a weight is negative, infinite or NaN, all are 0,
            or a source has a weight and no samples.
    """
    if set(weights) != set(names):
        msg = f"weights must name all sources, which are {list(names)}, but got {list(weights)}"
        raise ValueError(msg)
    checked = tuple(_checked_weight(name, weights[name]) for name in names)
    if not any(checked):
        msg = f"all weights are 0, of the sources {list(names)}: give one of them a weight"
        raise ValueError(msg)
    for name, length in zip(names, lengths, strict=False):
        if weights[name] and length == 0:
            msg = f"source {name!r} has a weight of {weights[name]}, and no samples"
            raise ValueError(msg)
    return checked


def _checked_weight(name: str, weight: Any) -> float:
    if isinstance(weight, bool | str | bytes) or not hasattr(weight, "__float__"):
        msg = f"the weight of {name!r} must be a number, but got {weight!r}"
        raise TypeError(msg)
    number: float = weight if type(weight) is int else float(weight)
    if not (math.isfinite(number) and number >= 0):
        msg = f"the weight of {name!r} must be 0 or more, and finite, but got {weight!r}"
        raise ValueError(msg)
    return number


def tagged(sample: Any, number: int, with_source: bool | str) -> Any:
    """Return a sample, with the number of its source where the user asked for it.

    Raises:
        TypeError: The number is to be an entry of the sample, which is no dict.
    """
    if with_source is False:
        return sample
    if with_source is True:
        return sample, number
    return {**sample, with_source: number}


@dataclass(frozen=True, slots=True)
class Mixing:
    """What decides all epochs of a mixture, besides changes of the weights.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of its range.
    """

    names: tuple[str, ...]
    lengths: tuple[int | None, ...]  # of the sources; None of one that is iterable
    weights: tuple[float, ...]
    seed: int
    stop: Stop
    length: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        checked_count("seed", self.seed)
        if self.stop not in get_args(Stop):
            msg = (
                f"stop must be one of {', '.join(map(repr, get_args(Stop)))}, but got {self.stop!r}"
            )
            raise ValueError(msg)
        if self.length is not None:
            if self.stop != "repeat":
                msg = f"length={self.length} is for stop='repeat', and stop is {self.stop!r}"
                raise ValueError(msg)
            if not 0 < checked_count("length", self.length) < ENDLESS:
                msg = f"length must be from 1 to 2**62, but got {self.length}"
                raise ValueError(msg)

    def __str__(self) -> str:
        total = sum(self.weights)
        shares = zip(self.names, self.weights, strict=True)
        return ", ".join(f"{name} {weight / total:.2%}" for name, weight in shares)

    def changed(self, changes: Changes, weights: Mapping[str, Any], at: int) -> Changes:
        """Return changes of the weights with another one.

        Raises:
            TypeError: The position, or a weight, is no number.
            ValueError: The mixture ends with its sources, the position is negative, or as
                `checked_weights`.
        """
        if self.stop != "repeat":
            msg = (
                f"the end of a mixture with stop={self.stop!r} follows from its weights, so they "
                "can't change: use stop='repeat'"
            )
            raise ValueError(msg)
        at, to = checked_count("at", at), checked_weights(weights, self.names, self.lengths)
        return tuple(sorted([*(change for change in changes if change[0] != at), (at, to)]))

    def state(self, epoch: int, changes: Changes) -> dict[str, Any]:
        """Return a state, JSON-able, in some 30 bytes for each source."""
        return {
            "mixture": _VERSION,
            "epoch": epoch,
            **self._identity(self.names),
            "changes": [[at, dict(zip(self.names, each, strict=True))] for at, each in changes],
        }

    def restored(self, state: Any, own: Changes) -> tuple[int, Changes]:
        """Return the epoch of a state; and its changes of the weights, with later ones of ``own``.

        The mixture may have more sources than the state, if they begin without a weight.

        Raises:
            StateError: It is no state of a mixture, or that of another one.
        """
        if not isinstance(state, Mapping) or state.get("mixture") != _VERSION:
            msg = f"this is no state of a mixture, or one of another version than {_VERSION}"
            raise StateError(msg)
        none = dict.fromkeys(self.names, 0)
        try:
            sources = state["sources"]
            weighted = zip(self.names, self.weights, strict=True)
            known = [name for name, weight in weighted if name in sources or weight]
            different = [
                f"{name} was {state[name]!r} and is {value!r}"
                for name, value in self._identity(known).items()
                if state[name] != value
            ]
            epoch = checked_count("epoch", state["epoch"])
            changes = [] if different else state["changes"]
            saved = tuple((int(at), checked_weights(none | to, self.names)) for at, to in changes)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"the state of the mixture is incomplete or changed: {error!r}"
            raise StateError(msg) from None
        if different:
            msg = (
                f"the state is that of another mixture: {'; '.join(different)} (a new source "
                "begins with a weight of 0; weights change by set_weights(), at a position)"
            )
            raise StateError(msg)
        last = saved[-1][0] if saved else -1
        for change in own:
            if change[0] <= last and change not in saved:
                msg = (
                    f"the weights change at position {change[0]}, and did not when the state was "
                    "saved"
                )
                raise StateError(msg)
        return epoch, saved + tuple(change for change in own if change[0] > last)

    def _identity(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the settings, with weight and length of some sources."""
        pairs = zip(self.names, zip(self.weights, self.lengths, strict=True), strict=True)
        sources = {name: list(pair) for name, pair in pairs if name in names}
        return {**{name: getattr(self, name) for name in _SETTINGS}, "sources": sources}


def tell_epoch(datasets: Iterable[Any], epoch: int) -> int:
    """Return an epoch's checked number, which each source with a ``set_epoch`` is told.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative.
    """
    epoch = checked_count("epoch", epoch)
    for dataset in datasets:
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(epoch)
    return epoch


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
