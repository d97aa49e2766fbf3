"""TokenBatches: a batch sampler whose batches have samples of about one length, and a bounded cost.

    lengths ──▶ keyed order ──▶ pools ──▶ sorted ──▶ batches ──▶ groups, in a random order

A pool is a span of the keyed order.  What is made of it follows from its number alone, and from
where its first batch stands in a group: no pool before it is needed.  So a pass begins anywhere.
"""

from __future__ import annotations

import math
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from threadloader._order.lengths import Lengths, whole_number
from threadloader._order.permutation import KeyedPermutation
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

__all__ = ["TokenBatches"]

_SAMPLED = 4096  # lengths whose mean tells how many samples a pool needs
_POOL_BATCHES = 256  # in a pool, about; see benches/token_batches
_SMALLEST_POOL, _LARGEST_POOL = 1024, 1 << 20  # samples; the larger takes 0.4 s to sort and cut
_EVENED = 8  # batches that are made to cost the same, where they are in no groups
_HALVINGS = 6
_COUNTED = 1 << 24  # samples up to which all batches are counted for ``len()``: 5 s
_STATE = frozenset({"epoch", "pool", "batch", "before", "order"})

TooLong = Literal["error", "drop", "alone"]


class TokenBatches:
    """A batch sampler for samples of different lengths: little padding, a bounded cost, balance.

    Each pass has every sample once.  A batch costs its rows times its longest sample, at most
    ``max_tokens``: what it takes after padding.  Its samples come from the longest to the shortest.

    Batches come in groups of ``group_size``, of about one length and one cost.  If ranks take
    batches in turn, and their number divides ``group_size``, none waits long for another.  The
    sequence of batches is the same for any number of ranks.

    Args:
        lengths: A positive number for each sample, whole or not: tokens, seconds of audio, pixels.
            An array, a NumPy memory-map, a tensor, a list, a column; or a function that takes an
            array of indices and returns their lengths, with ``num_samples``.
        max_tokens: Most that a batch costs, in the unit of the lengths.
        max_samples: Most samples in a batch; None for no limit.
        pad_to_multiple_of: What the collate function rounds lengths up to; it counts as cost.
        group_size: Batches in a group: a multiple of all numbers of ranks that may be used; 1 for
            batches in an entirely random order.
        pool_size: Samples that are sorted at a time; by default what makes some 256 batches.
        too_long: What becomes of samples longer than ``max_tokens``: an ``"error"``; or they are
            left out (``"drop"``), or have a batch of their own (``"alone"``), which costs more.
        shuffle: Whether each epoch has an order of its own; if not, pools are spans of the dataset,
            and each pool's batches come from the longest to the shortest.
        seed: Decides the order, together with the epoch; at least 0.  The same for all ranks.
        num_samples: Number of samples, if ``lengths`` is a function.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of its range; there are no lengths; or a length is not
            positive, not finite, or too long.  Beyond 16 million samples, lengths are checked pool
            by pool, so the iterator raises this.

    Threads:
        all: planner only.
    """

    def __init__(
        self,
        lengths: ArrayLike | Callable[[NDArray[np.int64]], ArrayLike],
        max_tokens: float,
        *,
        max_samples: int | None = None,
        pad_to_multiple_of: int | None = None,
        group_size: int = 8,
        pool_size: int | None = None,
        too_long: TooLong = "error",
        shuffle: bool = True,
        seed: int = 0,
        num_samples: int | None = None,
    ) -> None:
        if too_long not in ("error", "drop", "alone"):
            msg = f"too_long must be 'error', 'drop' or 'alone', but got {too_long!r}"
            raise ValueError(msg)
        self.max_tokens = _cost("max_tokens", max_tokens)
        self.max_samples = None if max_samples is None else whole_number("max_samples", max_samples)
        self.group_size = whole_number("group_size", group_size)
        self.too_long: TooLong = too_long
        self.shuffle = shuffle
        self.seed = whole_number("seed", seed, at_least=0)
        multiple = whole_number("pad_to_multiple_of", pad_to_multiple_of or 1)
        self._lengths = Lengths(lengths, num_samples, multiple)
        self._most = self.max_tokens if too_long == "error" else None
        self._lengths.check_all(self._most)
        self._epoch = 0  # of the pass that begins next
        self._counted: tuple[int, int] | None = None  # an epoch, and its batches
        sampled = self._sampled_lengths()
        self.pool_size = (
            self._default_pool_size(sampled)
            if pool_size is None
            else whole_number("pool_size", pool_size)
        )
        self._pools = -(-len(self._lengths) // self.pool_size)
        sizes = len(self._lengths), self.max_samples, multiple, self.group_size, self.pool_size
        decisive = sizes, self.max_tokens, too_long, shuffle, self.seed, sampled.tolist()
        self._digest = zlib.crc32(repr(decisive).encode())  # of what decides the batches

    def __repr__(self) -> str:
        samples = len(self._lengths)
        return f"TokenBatches({samples:,} samples, at most {self.max_tokens:g} tokens in a batch)"

    @property
    def epoch(self) -> int:
        """The epoch of the pass that begins next; each pass that begins adds 1."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the pass that begins next, before its first batch."""
        self._epoch = whole_number("epoch", epoch, at_least=0)

    def __iter__(self) -> _TokenPass:
        return _TokenPass(self)

    def __len__(self) -> int:
        """Return the number of batches in the pass that begins next; epochs differ a little.

        All batches are made once for this, which takes 0.3 s for a million samples.

        Raises:
            TypeError: There are more than 16 million samples: count them as they come.
        """
        if len(self._lengths) > _COUNTED:
            msg = (
                f"the number of batches follows from all of {len(self._lengths):,} lengths, which "
                "would take long to read: sum(1 for _ in sampler) does it"
            )
            raise TypeError(msg)
        epoch = self._epoch if self.shuffle else 0
        if self._counted is None or self._counted[0] != epoch:
            order = _EpochOrder(self, epoch)
            batches = sum(map(order.count, range(order.pools)))
            self._counted = epoch, batches
        return self._counted[1]

    def _sampled_lengths(self) -> NDArray[Any]:
        """Return some lengths, spread over the data set."""
        samples = len(self._lengths)
        if samples <= _SAMPLED:
            return self._lengths.at(np.arange(samples), self._most)
        return self._lengths.at(KeyedPermutation(samples, 0).span(0, _SAMPLED), self._most)

    def _default_pool_size(self, sampled: NDArray[Any]) -> int:
        """Return how many samples make enough batches to choose from, as a power of 2."""
        # Exact: a rounding error that differs from machine to machine must not decide.
        mean = math.fsum(sampled.tolist()) / len(sampled)
        rows = self.max_tokens / min(mean, self.max_tokens)
        if self.max_samples is not None:
            rows = min(rows, self.max_samples)
        samples = 2.0 ** math.ceil(math.log2(rows * _POOL_BATCHES))
        return int(min(max(samples, _SMALLEST_POOL), _LARGEST_POOL))


class _Pool(NamedTuple):
    """The batches of one pool, in their order."""

    indices: NDArray[np.int64]  # of its samples, from the longest to the shortest
    starts: NDArray[np.int64]  # of each batch in ``indices``
    ends: NDArray[np.int64]

    def batch(self, number: int) -> list[int]:
        indices: list[int] = self.indices[self.starts[number] : self.ends[number]].tolist()
        return indices


class _EpochOrder:
    """The batches of one epoch, pool by pool.

    Args:
        sampler: Has the settings.
        epoch: From 0.
    """

    def __init__(self, sampler: TokenBatches, epoch: int) -> None:
        self._sampler = sampler
        self._lengths = sampler._lengths  # noqa: SLF001  # of the same module
        self._seeds = sampler.seed, epoch
        self.pools = sampler._pools  # noqa: SLF001
        self._permutation: KeyedPermutation | None = None
        if sampler.shuffle:
            (seed,) = np.random.SeedSequence(self._seeds).generate_state(1, np.uint64)
            self._permutation = KeyedPermutation(len(self._lengths), int(seed))

    def count(self, pool: int) -> int:
        """Return the number of batches in a pool."""
        longest = np.sort(self._samples(pool)[1])[::-1].tolist()
        return len(_starts(longest, self._sampler.max_tokens, self._sampler.max_samples))

    def pool(self, number: int, before: int) -> _Pool:
        """Return the batches of a pool, in their order.

        Args:
            number: Of the pool.
            before: Batches of the group that begins in an earlier pool.
        """
        sampler = self._sampler
        indices, lengths = self._samples(number)
        falling = np.argsort(-lengths, kind="stable")
        indices, longest = indices[falling], lengths[falling].tolist()
        started = _starts(longest, sampler.max_tokens, sampler.max_samples)
        size = sampler.group_size
        first = min(-before % size, len(started)) if sampler.shuffle else 0
        bounds = _bounds(len(started), first, size if size > 1 else _EVENED)
        for one, next_one in ((0, len(started)), *pairwise(bounds)):
            _even(started, one, next_one, longest, sampler.max_tokens, sampler.max_samples)
        starts = np.array(started, np.int64)
        ends = np.append(starts[1:], len(indices))
        if sampler.shuffle and len(starts):
            order = self._order(number, len(starts), first)
            starts, ends = starts[order], ends[order]
        return _Pool(indices, starts, ends)

    def _samples(self, pool: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the indices of a pool's samples, and their lengths."""
        sampler, samples = self._sampler, len(self._lengths)
        # All pools have one size, or one less: a short one would have more padding.
        start, stop = pool * samples // self.pools, (pool + 1) * samples // self.pools
        if self._permutation is None:
            indices = np.arange(start, stop)
        else:
            indices = self._permutation.span(start, stop)
        lengths = self._lengths.at(indices, sampler._most)  # noqa: SLF001
        if sampler.too_long == "drop":
            fitting = lengths <= sampler.max_tokens
            indices, lengths = indices[fitting], lengths[fitting]
        return indices, lengths

    def _order(self, number: int, batches: int, first: int) -> NDArray[np.intp]:
        """Return a pool's batches in groups, in a random order; see `_bounds`."""
        bounds = _bounds(batches, first, self._sampler.group_size)
        group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        sequence = np.random.SeedSequence((*self._seeds, number))
        keys = sequence.generate_state(batches + len(bounds) - 1, np.uint64)
        of_group = keys[batches:].astype(np.float64)
        middle = bounds.index(_middle(batches, first, self._sampler.group_size))
        of_group[middle], of_group[middle + 1] = -np.inf, np.inf
        return np.lexsort((keys[:batches], group, of_group[group]))


class _TokenPass:
    """One pass over a `TokenBatches`; an iterator with a state.

    Args:
        sampler: The sampler.

    Threads:
        all: planner only.
    """

    def __init__(self, sampler: TokenBatches) -> None:
        self._sampler = sampler
        self._order: _EpochOrder | None = None  # none before the first batch
        self._epoch = 0
        self._number = 0  # of the pool
        self._next = 0  # batch in it
        self._before = 0  # batches before this pool, of a group
        self._pool: _Pool | None = None

    def __iter__(self) -> _TokenPass:
        return self

    def __next__(self) -> list[int]:
        """Return the indices of the next batch.

        Raises:
            ValueError: A length is not positive, not finite, or too long.
        """
        order = self._order or self._begin(self._sampler.epoch)
        while self._number < order.pools:
            pool = self._pool
            if pool is None:
                pool = self._pool = order.pool(self._number, self._before)
            if self._next < len(pool.starts):
                self._next += 1
                return pool.batch(self._next - 1)
            self._before = (self._before + len(pool.starts)) % self._sampler.group_size
            self._number, self._next, self._pool = self._number + 1, 0, None
        raise StopIteration

    def _begin(self, epoch: int) -> _EpochOrder:
        self._epoch = epoch
        order = self._order = _EpochOrder(self._sampler, epoch)
        self._sampler.set_epoch(epoch + 1)
        return order

    def state_dict(self) -> dict[str, int]:
        """Return the place of the pass, JSON-able, in less than 100 bytes."""
        return {
            "epoch": self._sampler.epoch if self._order is None else self._epoch,
            "pool": self._number,
            "batch": self._next,
            "before": self._before,
            "order": self._sampler._digest,  # noqa: SLF001
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the place of a state; the next pass has the epoch after its.

        Raises:
            StateError: It is no state of a `TokenBatches`, or of one with other arguments.
        """
        if set(state) != _STATE or not all(type(n) is int and n >= 0 for n in state.values()):
            msg = f"this is no state of a TokenBatches: {state!r}"
            raise StateError(msg)
        if state["order"] != self._sampler._digest:  # noqa: SLF001
            msg = "the state is of a TokenBatches with other lengths, another seed or argument"
            raise StateError(msg)
        self._number, self._next = state["pool"], state["batch"]
        self._before, self._pool = state["before"], None
        self._begin(state["epoch"])


def _cost(name: str, value: Any) -> float:
    """Return a positive and finite number, a whole one as an int."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        msg = f"{name} must be a number, but got {value!r}"
        raise TypeError(msg)
    number = value.item() if isinstance(value, np.generic) else value
    if not 0 < number < math.inf:
        msg = f"{name} must be positive and finite, but got {value!r}"
        raise ValueError(msg)
    return number


def _middle(batches: int, first: int, size: int) -> int:
    """Return where the group begins that completes the one of the pool before; see `_bounds`."""
    return (batches - first - (batches - first) % size) // (2 * size) * size


def _bounds(batches: int, first: int, size: int) -> list[int]:
    """Return where the groups of a pool's batches begin, which are sorted by length, and the end.

    Two groups are not whole: one completes the last group of the pool before, and one is completed
    by the next pool.  They are taken from the middle, where the batches of two pools differ least.
    They may be empty.

    Args:
        batches: Number of batches.
        first: Batches that complete the group of the pool before.
        size: Batches in a group.
    """
    middle, last = _middle(batches, first, size), (batches - first) % size
    whole = [*range(0, middle, size), middle, middle + first]
    return [*whole, *range(middle + first + last, batches, size), batches]


def _even(
    starts: list[int],
    one: int,
    stop: int,
    longest: list[float],
    max_tokens: float,
    most: int | None,
) -> None:
    """Change where some batches start, so that they have about one cost.

    Args:
        starts: Where each batch starts, as `_starts` found it; is changed.
        one: First of the batches.
        stop: The batch after them.
        longest: See `_starts`, also for ``most``.
        max_tokens: Most that a batch costs.
        most: Most samples in a batch.
    """
    if stop - one < 2:
        return
    start = starts[one]
    part = longest[start : starts[stop] if stop < len(starts) else len(longest)]
    # Together they have less than one batch too little for ``max_tokens``.
    lower, upper = max_tokens * (1 - 1 / (stop - one)), max_tokens
    for _ in range(_HALVINGS):
        limit = (lower + upper) / 2
        found = _starts(part, limit, most)
        if len(found) > stop - one:
            lower = limit
        else:
            upper = limit
            if len(found) == stop - one:
                starts[one:stop] = [start + place for place in found]


def _starts(longest: list[float], limit: float, most: int | None) -> list[int]:
    """Return where batches start that are filled up to a limit, one after the other."""
    starts, start = [], 0
    while start < len(longest):
        starts.append(start)
        rows = int(limit // longest[start]) or 1
        start += rows if most is None or rows < most else most
    return starts
