"""TokenBatches: a batch sampler whose batches have samples of about one length, and a bounded cost.

    lengths ──▶ keyed order ──▶ pools ──▶ sorted ──▶ batches ──▶ groups, in a random order

A pool is a span of the keyed order.  What is made of it follows from its number alone, and from
where its first batch stands in a group: no pool before it is needed.  So a pass begins anywhere.

Greedy cutting from the longest sample on takes the fewest batches; each is as large as the limit
allows, but for the last one and for what whole samples leave over.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from threadloader._order.permutation import KeyedPermutation
from threadloader.errors import StateError, checked_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


_SAMPLED = 4096  # lengths whose mean tells how many samples a pool needs
_POOL_BATCHES = 256  # in a pool, about; see benches/token_batches
_SMALLEST_POOL, _LARGEST_POOL = 1024, 1 << 20  # samples; the larger takes 0.25 s to make
_COUNTED = 1 << 24  # samples up to which all batches are counted for ``len()``: 1 s
_CHECKED = 1 << 24  # lengths that are checked at once, in 40 ms
_LARGEST = 1 << 53  # beyond it, floats skip whole numbers
_VERSION = 2  # of what follows from the arguments
_STATE = frozenset({"epoch", "pool", "batch", "before", "order"})

_ADVICE = "shorten it, or choose too_long='drop' or 'alone'"

TooLong = Literal["error", "drop", "alone"]


class TokenBatches:
    """A batch sampler for samples of different lengths: little padding, a bounded cost, balance.

    Each pass has every sample once.  The cost of a batch is its rows times its longest sample, its
    size after padding.  Its samples come from the longest to the shortest.

    Batches come in groups of ``group_size``, of similar length and cost.  If ranks take batches in
    turn, and their number divides ``group_size``, none waits long for another.  The sequence of
    batches is the same for any number of ranks.

    Args:
        lengths: A positive number for each sample, whole or not: tokens, seconds of audio, pixels.
            An array or a memory-map, which is not copied, a tensor, a list, a column of a table.
        max_tokens: The largest cost of a batch, in the unit of the lengths.
        max_samples: The most samples in a batch; None for no limit.
        pad_to_multiple_of: The multiple to which the collate function rounds lengths up.
        group_size: Batches in a group: a multiple of all numbers of ranks that may be used; 1 for
            batches in an entirely random order.
        pool_size: Samples that are sorted together; by default enough for some 256 batches.
        too_long: Samples longer than ``max_tokens`` are an ``"error"``, are left out (``"drop"``),
            or have a batch of their own (``"alone"``), which costs more.
        shuffle: Whether each epoch has an order of its own; if not, pools are spans of the dataset,
            and each pool's batches come from the longest to the shortest.
        seed: Decides the order, together with the epoch; at least 0.  The same for all ranks.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of its range; there are no lengths; or a length is not
            positive, not finite, or too long.

    Threads:
        all: planner only.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        max_tokens: float,
        *,
        max_samples: int | None = None,
        pad_to_multiple_of: int | None = None,
        group_size: int = 8,
        pool_size: int | None = None,
        too_long: TooLong = "error",
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if too_long not in ("error", "drop", "alone"):
            msg = f"too_long must be 'error', 'drop' or 'alone', but got {too_long!r}"
            raise ValueError(msg)
        max_tokens = _positive("max_tokens", max_tokens)
        multiple = checked_count("pad_to_multiple_of", pad_to_multiple_of or 1, at_least=1)
        array = _as_array(lengths)
        _check_lengths(array, multiple, max_tokens if too_long == "error" else math.inf)
        sampled = _rounded(array[_sampled(len(array))], multiple)
        if max_samples is not None:
            max_samples = checked_count("max_samples", max_samples, at_least=1)
        if pool_size is None:
            pool_size = _default_pool_size(sampled, max_tokens, max_samples or len(array))
        pool_size = checked_count("pool_size", pool_size, at_least=1)
        group_size = checked_count("group_size", group_size, at_least=1)
        seed, shuffle = checked_count("seed", seed), bool(shuffle)
        decisive = (
            *(_VERSION, max_tokens, max_samples, multiple, group_size, pool_size, too_long),
            *(shuffle, seed, len(array), sampled.tolist()),
        )
        self._settings = _Settings(
            lengths=array,
            multiple=multiple,
            max_tokens=max_tokens,
            max_samples=max_samples,
            group_size=group_size,
            pools=-(-len(array) // pool_size),
            drops=too_long == "drop",
            shuffle=shuffle,
            seed=seed,
            digest=zlib.crc32(repr(decisive).encode()),
        )
        self._epoch = 0  # of the pass that begins next
        self._counted: dict[int, int] = {}  # an epoch's batches, as far as somebody has asked

    def __repr__(self) -> str:
        most = f"at most {self._settings.max_tokens:g} tokens in a batch"
        return f"TokenBatches({self.num_samples:,} samples, {most})"

    @property
    def num_samples(self) -> int:
        """The number of samples: that of the lengths."""
        return len(self._settings.lengths)

    @property
    def epoch(self) -> int:
        """The epoch of the pass that begins next; each pass that begins adds 1."""
        return self._epoch

    def check_samples(self, samples: int) -> None:
        """Refuse a dataset whose number of samples is not the number of lengths.

        A loader does this before its first batch.

        Args:
            samples: In the dataset.

        Raises:
            ValueError: There are more samples than lengths, or fewer.
        """
        if self.num_samples != samples:
            msg = (
                f"TokenBatches has the lengths of {self.num_samples} samples, and the dataset has "
                f"{samples}: give it those of this dataset (a part of it is a Subset)"
            )
            raise ValueError(msg)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the pass that begins next, before its first batch."""
        self._epoch = checked_count("epoch", epoch)

    def __iter__(self) -> _TokenPass:
        return _TokenPass(self, self._settings)

    def __len__(self) -> int:
        """Return the number of batches in the pass that begins next; epochs differ a little.

        All batches are made once for this, which takes 0.1 s for a million samples.

        Raises:
            TypeError: There are more than 16 million samples: count them as they come.
        """
        if self.num_samples > _COUNTED:
            msg = (
                f"the number of batches follows from all of {self.num_samples:,} lengths, which "
                "would take long to read: sum(1 for _ in sampler) does it"
            )
            raise TypeError(msg)
        epoch = self._epoch if self._settings.shuffle else 0
        if epoch not in self._counted:
            order = _EpochOrder(self._settings, epoch)
            self._counted[epoch] = sum(map(order.count, range(self._settings.pools)))
        return self._counted[epoch]


class _Settings(NamedTuple):
    """What decides the batches; see `TokenBatches`."""

    lengths: NDArray[Any]  # as they were given
    multiple: int  # that they are rounded up to
    max_tokens: float
    max_samples: int | None
    group_size: int
    pools: int
    drops: bool  # whether samples that are too long are left out
    shuffle: bool
    seed: int
    digest: int  # of all this


class _EpochOrder:
    """The batches of one epoch, pool by pool.

    Args:
        settings: The sampler's.
        epoch: From 0.
    """

    def __init__(self, settings: _Settings, epoch: int) -> None:
        self._settings = settings
        self._seeds = settings.seed, epoch
        self._permutation: KeyedPermutation | None = None
        if settings.shuffle:
            (seed,) = np.random.SeedSequence(self._seeds).generate_state(1, np.uint64)
            self._permutation = KeyedPermutation(len(settings.lengths), int(seed))

    def count(self, pool: int) -> int:
        """Return the number of batches in a pool."""
        return len(self._starts(np.sort(self._samples(pool)[1])[::-1]))

    def batches(self, pool: int, before: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of a pool, in their order: the indices of their samples.

        Args:
            pool: Its number.
            before: Batches of the group that begins in an earlier pool.
        """
        settings = self._settings
        indices, lengths = self._samples(pool)
        falling = np.argsort(-lengths, kind="stable")
        starts = self._starts(lengths[falling])
        if not starts:
            return []
        batches = np.split(indices[falling], starts[1:])
        if not settings.shuffle:
            return batches
        first = min(-before % settings.group_size, len(starts))
        return [batches[number] for number in self._order(pool, len(batches), first)]

    def _starts(self, lengths: NDArray[Any]) -> list[int]:
        """Return where batches start that are filled up to their limits, one after the other.

        Args:
            lengths: From the longest to the shortest; one beyond the limit has a batch of its own.
        """
        longest, starts, start = lengths.tolist(), [], 0
        most = self._settings.max_samples or len(longest)
        while start < len(longest):
            starts.append(start)
            start += min(int(self._settings.max_tokens // longest[start]) or 1, most)
        return starts

    def _samples(self, pool: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the indices of a pool's samples, and their lengths."""
        settings, samples = self._settings, len(self._settings.lengths)
        # All pools have one size, or one less: a short one would have more padding.
        start, stop = pool * samples // settings.pools, (pool + 1) * samples // settings.pools
        if self._permutation is None:
            indices = np.arange(start, stop)
        else:
            indices = self._permutation.span(start, stop)
        lengths = _rounded(settings.lengths[indices], settings.multiple)
        if settings.drops:
            fitting = lengths <= settings.max_tokens
            indices, lengths = indices[fitting], lengths[fitting]
        return indices, lengths

    def _order(self, number: int, batches: int, first: int) -> NDArray[np.intp]:
        """Return a pool's batches in groups, in a random order; see `_group_bounds`."""
        bounds = _group_bounds(batches, first, self._settings.group_size)
        group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        sequence = np.random.SeedSequence((*self._seeds, number))
        keys = sequence.generate_state(batches + len(bounds) - 1, np.uint64)
        of_group = keys[batches:].astype(np.float64)
        middle = _middle_group(batches, first, self._settings.group_size)
        of_group[middle], of_group[middle + 1] = -np.inf, np.inf
        return np.lexsort((keys[:batches], group, of_group[group]))


def _middle_group(batches: int, first: int, size: int) -> int:
    """Return how many groups come before the one that completes that of the pool before."""
    return (batches - first) // size // 2


def _group_bounds(batches: int, first: int, size: int) -> list[int]:
    """Return where the groups of a pool's batches begin, which are sorted by length, and the end.

    Two groups are not whole: one completes the last group of the pool before, and one is completed
    by the next pool.  They are taken from the middle, where the batches of two pools differ least.
    They may be empty.

    Args:
        batches: Number of batches.
        first: Batches that complete the group of the pool before.
        size: Batches in a group.
    """
    middle, last = _middle_group(batches, first, size) * size, (batches - first) % size
    whole = [*range(0, middle, size), middle, middle + first]
    return [*whole, *range(middle + first + last, batches, size), batches]


class _TokenPass:
    """One pass over a `TokenBatches`; an iterator with a state.

    Args:
        sampler: The sampler, which counts the epochs.
        settings: Its settings.

    Threads:
        all: planner only.
    """

    def __init__(self, sampler: TokenBatches, settings: _Settings) -> None:
        self._sampler = sampler
        self._settings = settings
        self._order: _EpochOrder | None = None  # none before the first batch
        self._epoch = 0
        self._number = 0  # of the pool
        self._next = 0  # batch in it
        self._before = 0  # batches before this pool, of a group
        self._batches: Sequence[NDArray[np.int64]] | None = None  # of this pool, once made

    def __iter__(self) -> _TokenPass:
        return self

    def __next__(self) -> list[int]:
        """Return the indices of the next batch."""
        order = self._order or self._begin(self._sampler.epoch)
        while self._number < self._settings.pools:
            batches = self._batches
            if batches is None:
                batches = self._batches = order.batches(self._number, self._before)
            if self._next < len(batches):
                self._next += 1
                indices: list[int] = batches[self._next - 1].tolist()
                return indices
            self._before = (self._before + len(batches)) % self._settings.group_size
            self._number, self._next, self._batches = self._number + 1, 0, None
        raise StopIteration

    def _begin(self, epoch: int) -> _EpochOrder:
        self._epoch = epoch
        order = self._order = _EpochOrder(self._settings, epoch)
        self._sampler.set_epoch(epoch + 1)
        return order

    def state_dict(self) -> dict[str, int]:
        """Return the place of the pass, JSON-able, in less than 100 bytes."""
        return {
            "epoch": self._sampler.epoch if self._order is None else self._epoch,
            "pool": self._number,
            "batch": self._next,
            "before": self._before,
            "order": self._settings.digest,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the place of a state; the next pass has the epoch after its.

        Raises:
            StateError: It is no state of a `TokenBatches`, or of one with other arguments.
        """
        if set(state) != _STATE or not all(type(n) is int and n >= 0 for n in state.values()):
            msg = f"this is no state of a TokenBatches: {state!r}"
            raise StateError(msg)
        if state["order"] != self._settings.digest:
            msg = "the state is of a TokenBatches with other lengths, another seed or argument"
            raise StateError(msg)
        self._number, self._next = state["pool"], state["batch"]
        self._before, self._batches = state["before"], None
        self._begin(state["epoch"])


def _positive(name: str, value: Any) -> float:
    """Return a positive number, a whole one as an int."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        msg = f"{name} must be a number, but got {value!r}"
        raise TypeError(msg)
    number: float = value.item() if isinstance(value, np.generic) else value
    if not 0 < number <= _LARGEST:
        msg = f"{name} must be positive, and at most 2**53, but got {value!r}"
        raise ValueError(msg)
    return number


def _as_array(lengths: Any) -> NDArray[Any]:
    """Return the lengths as an array; they are not looked at."""
    try:
        if not isinstance(lengths, (np.ndarray, list, tuple)) and not hasattr(lengths, "__array__"):
            lengths = lengths[:]  # a column of a table: faster than item by item
        array = np.asarray(lengths)
    except Exception as error:
        kind = type(lengths).__name__
        msg = (
            f"lengths must be an array or a list, with one number for each sample: not this {kind}"
        )
        raise TypeError(msg) from error
    if array.ndim != 1 or not array.size:
        msg = f"lengths must be one number for each sample, but have shape {array.shape}"
        raise ValueError(msg)
    if array.dtype.kind not in "iuf":
        msg = f"lengths must be numbers, but have type {array.dtype}"
        raise TypeError(msg)
    return array


def _check_lengths(lengths: NDArray[Any], multiple: int, most: float) -> None:
    """Refuse a length that is not positive, not finite, or more than ``most`` with its padding."""
    for start in range(0, len(lengths), _CHECKED):
        part = lengths[start : start + _CHECKED]
        plain = _rounded(part, 1)
        positive = (plain > 0) & (plain <= _LARGEST)  # NaN is not
        _refuse(part, start, ~positive, "it must be positive, and at most 2**53")
        why = f"with padding that is more than max_tokens={most:g}: {_ADVICE}"
        _refuse(part, start, _rounded(part, multiple) > most, why)


def _refuse(lengths: NDArray[Any], first: int, wrong: NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        msg = f"sample {first + at} has length {lengths[at]}: {why}"
        raise ValueError(msg)


def _rounded(lengths: NDArray[Any], multiple: int) -> NDArray[Any]:
    """Return lengths, rounded up to a multiple."""
    # Unsigned and narrow numbers would overflow where they are negated or rounded up.
    wide = lengths.astype(np.float64 if lengths.dtype.kind == "f" else np.int64)
    if multiple == 1:
        return wide
    rounded: NDArray[Any] = np.ceil(wide / multiple).astype(np.int64) * multiple
    return rounded


def _sampled(samples: int) -> NDArray[np.int64]:
    """Return the indices of some samples, spread over the data set."""
    if samples <= _SAMPLED:
        return np.arange(samples)
    return KeyedPermutation(samples, 0).span(0, _SAMPLED)


def _default_pool_size(sampled: NDArray[Any], max_tokens: float, most: int) -> int:
    """Return how many samples make enough batches to choose from, as a power of 2.

    Args:
        sampled: Some lengths.
        max_tokens: Most that a batch costs.
        most: Most samples in a batch.
    """
    # Exact: a rounding error that differs from machine to machine must not decide.
    mean = math.fsum(sampled.tolist()) / len(sampled)
    rows = min(max_tokens / min(mean, max_tokens), most)
    samples = 2.0 ** math.ceil(math.log2(rows * _POOL_BATCHES))
    return int(min(max(samples, _SMALLEST_POOL), _LARGEST_POOL))
