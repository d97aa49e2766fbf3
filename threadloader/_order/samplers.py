"""The samplers whose order can be continued at any batch: torch's and our own, one adapter a kind.

    index sampler -> `known` -> the adapter of its kind, or None for a sampler of the user's
    adapter, random draws of the epoch -> `KnownOrder` -> `KnownPass` -> batches

An adapter knows what decides the order, and how to begin in the middle of it.  Only these very
classes are known: a subclass of the user's may do anything.  Another kind is one more class in this
module, and its line in `_KINDS` (`_torch.data` names torch's classes).  Our own are the keyed one,
and those of torch's where torch is not installed.

The order is all that is saved of a pass: one seed decides it, or the state of a generator.  Where
the user gave no generator, these come from the process's random state.
"""

from __future__ import annotations

import copy
from itertools import count, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from threadloader import _torch
from threadloader._lifetime import importing
from threadloader._order.seeds import (
    draw_seed,
    encoded_state,
    restore_generator,
    state_of,
)
from threadloader._order.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized

    from numpy.typing import NDArray

    from threadloader._order.permutation import KeyedPermutation
    from threadloader._order.seeds import EpochDraws


SPAN = 1024  # indices that are computed at once, in 0.3 ms


def make_sampler(dataset: Any, generator: Any, *, shuffle: bool) -> Iterable[int]:
    """Return a sampler for ``shuffle``, where torch is missing or its samplers can't be used."""
    return RandomSampler(dataset, generator) if shuffle else SequentialSampler(dataset)


def batches_of(indices: Iterable[Any], batch_size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    """Yield lists of ``batch_size`` indices, as torch's ``BatchSampler`` does."""
    indices = iter(indices)
    while batch := list(islice(indices, batch_size)):
        if len(batch) == batch_size or not drop_last:
            yield batch


def is_batching(sampler: object) -> bool:
    """Whether ``sampler`` is a batch sampler of torch's or our own, and not of a subclass."""
    return type(sampler) in _BATCHING


def inner_sampler(sampler: Any) -> Any:
    """Return the sampler of single indices in a batch sampler; any other sampler is returned."""
    return sampler.sampler if is_batching(sampler) else sampler


def units_of(index_sampler: Any) -> tuple[Any, int, bool]:
    """Return what yields the units of a pass, how many a rank's batch has, and ``drop_last``.

    Args:
        index_sampler: Yields a batch's indices, or single ones.
    """
    if is_batching(index_sampler):
        return index_sampler.sampler, index_sampler.batch_size, index_sampler.drop_last
    return index_sampler, 1, False


def length_of(value: Any) -> int | None:
    """Return the length of a sampler or dataset; None if it has none."""
    try:
        return len(value)
    except Exception:  # noqa: BLE001  # the user's: TypeError, NotImplementedError
        return None


class _Sampler:
    """A sampler of our own.

    Args:
        dataset: Its length is the number of samples.
        generator: Draws the order, if there is something to draw.
    """

    def __init__(self, dataset: Any, generator: Any = None) -> None:
        self.data_source: Sized = dataset
        self.generator = generator

    def __len__(self) -> int:
        return len(self.data_source)


class SequentialSampler(_Sampler):
    """Indices 0, 1, 2 ...; stands for torch's class of this name where torch is not installed."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomSampler(_Sampler):
    """A new permutation each epoch; stands for torch's class where torch is not installed.

    Its generator is NumPy's; by default NumPy's global state, so that ``numpy.random.seed`` decides
    the order as ``torch.manual_seed`` does with torch.
    """

    def __iter__(self) -> Iterator[int]:
        for order in self.permutations():
            yield from order.tolist()

    def permutations(self) -> Iterator[NDArray[Any]]:
        """Yield the indices of a pass, as one array."""
        # Drawn when the first index is asked for, as torch does: after the seed of the workers.
        draw = self.generator
        if draw is None:
            # From NumPy's global state, also where torch is installed.
            draw = np.random.default_rng(np.random.randint(1 << 63, dtype=np.uint64))  # noqa: NPY002
        yield draw.permutation(len(self.data_source))


class KeyedSampler(_Sampler):
    """A new permutation each epoch, in constant memory: see `threadloader._order.permutation`.

    Its generator draws one seed an epoch; by default the process's random state does.
    """

    def __iter__(self) -> Iterator[int]:
        order = self.order()
        for start in range(0, len(order), SPAN):
            yield from order.span(start, min(len(order), start + SPAN)).tolist()

    def order(self) -> KeyedPermutation:
        """Draw the permutation of a pass."""
        with importing():
            from threadloader._order.permutation import KeyedPermutation  # noqa: PLC0415  # rarely used

        return KeyedPermutation(len(self.data_source), draw_seed(self.generator))


class BatchSampler:
    """Lists of indices; stands for torch's class of this name where torch is not installed."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: object) -> None:
        if type(drop_last) is not bool:  # in torch's words
            msg = f"drop_last should be a boolean value, but got drop_last={drop_last}"
            raise ValueError(msg)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        return batches_of(self.sampler, self.batch_size, drop_last=self.drop_last)

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]  # TypeError, as in torch
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


_BATCHING = frozenset({BatchSampler, *_torch.BATCHING})


# Some indices that follow one another.  No index is an object of its own in a range or an array: to
# make these takes longer than to gather a batch's rows.
Indices: TypeAlias = "range | NDArray[Any] | list[Any]"
Compute: TypeAlias = "Callable[[NDArray[Any]], NDArray[Any]]"  # of positions: their indices


class KnownSampler:
    """A sampler of one kind, alone or in a batch sampler.

    What is known of any kind: its indices come from a generator, one by one.

    Args:
        index_sampler: Yields a batch's indices, or single ones.
    """

    draws: ClassVar[bool] = True  # whether it has a ``generator``, perhaps None
    draws_one_seed: ClassVar[bool] = False  # whether one number decides the order if that is None
    is_last = False  # whether nobody draws from the generator after the pass

    def __init__(self, index_sampler: Any) -> None:
        self.index_sampler = index_sampler
        self.sampler = inner_sampler(index_sampler)  # of single indices

    @property
    def generator(self) -> Any:
        """The generator that the user gave the sampler; None for none."""
        return self.sampler.generator if self.draws else None

    def with_generator(self, generator: Any, seed: int | None = None) -> KnownSampler:
        """Return the sampler, or a copy that draws from a generator; see `with_generator`."""
        index_sampler = with_generator(self.index_sampler, generator, seed)
        if index_sampler is self.index_sampler:
            return self
        twin = type(self)(index_sampler)
        twin.is_last = True
        return twin

    def batches(self, share: Share, start: int) -> Iterator[tuple[int, Indices]]:
        """Yield a rank's batches of a pass, with the position of the first sample of each.

        A batch has one index if the sampler is in no batch sampler.

        Args:
            share: Of the rank.
            start: The first unit that is left.
        """
        sampled, size, drop_last = units_of(self.index_sampler)
        order = self.order()
        if order is None and share.world_size == 1:
            # Not whole batches are left out: another number of ranks may have begun the epoch.
            drawn = batches_of(islice(sampled, start, None), size, drop_last=drop_last)
            yield from zip(count(start, size), drawn)
            return
        if order is None:
            order = list(sampled)
        units, step = len(sampled), size * share.world_size
        whole, rest = divmod(max(0, units - start), step)
        first = start + share.of(step, size).start
        firsts = range(first, first + whole * step, step)
        if callable(order):
            yield from _computed(order, firsts, size)
        else:
            for first in firsts:
                yield first, order[first : first + size]
        mine = share.of(rest, size)
        if mine and not drop_last:
            positions = start + whole * step + np.arange(mine.start, mine.stop)
            # A padded batch goes on at the beginning.
            yield int(positions[0]), _at(order, positions % units)

    def order(self) -> Indices | Compute | None:
        """Return the order of a new pass, or a function from positions to their indices.

        Returns:
            None where indices can only be drawn one by one.
        """
        return None


def _at(order: Indices | Compute, positions: NDArray[Any]) -> Indices:
    if callable(order):
        return order(positions)
    if isinstance(order, np.ndarray):
        looked_up: NDArray[Any] = order[positions]
        return looked_up
    return [order[position] for position in positions.tolist()]


def _computed(
    compute: Compute, firsts: Sequence[int], size: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield batches, of which several are computed at once."""
    several = max(1, SPAN // size)
    for number in range(0, len(firsts), several):
        some = firsts[number : number + several]
        indices = compute((np.array(some)[:, None] + np.arange(size)).ravel())
        for row, first in enumerate(some):
            yield first, indices[row * size : (row + 1) * size]


class Sequential(KnownSampler):
    """Indices 0, 1, 2 ..., of torch's class or ours."""

    draws = False

    def order(self) -> range:
        """See `KnownSampler.order`."""
        return range(len(self.sampler.data_source))


class Shuffled(KnownSampler):
    """A permutation that is drawn for each pass, of our own class or of torch's.

    torch's may also draw indices with replacement, or of several permutations: these are like those
    of any kind.
    """

    draws_one_seed = True
    _rest: Iterator[Any] = iter(())

    def order(self) -> NDArray[Any] | None:
        """See `KnownSampler.order`."""
        ours = type(self.sampler) is RandomSampler
        self._rest = self.sampler.permutations() if ours else _torch.permutations(self.sampler)
        permutation: NDArray[Any] | None = next(self._rest)
        return permutation

    def batches(self, share: Share, start: int) -> Iterator[tuple[int, Indices]]:
        """See `KnownSampler.batches`."""
        yield from super().batches(share, start)
        if not self.is_last:  # torch's sampler draws a whole permutation more at its end
            next(self._rest, None)


class Keyed(KnownSampler):
    """A permutation that is computed index by index, of our own class."""

    draws_one_seed = True

    def order(self) -> Compute:
        """See `KnownSampler.order`."""
        compute: Compute = self.sampler.order().at
        return compute


_LISTS = (list, tuple, range)
_KINDS: Mapping[type, type[KnownSampler]] = MappingProxyType(
    {
        SequentialSampler: Sequential,
        RandomSampler: Shuffled,
        KeyedSampler: Keyed,
        **dict.fromkeys(_torch.SEQUENTIAL, Sequential),
        **dict.fromkeys(_torch.DRAWING, KnownSampler),
        **dict.fromkeys(_torch.SEEDED, Shuffled),
    }
)


def is_known(index_sampler: Any) -> bool:
    """Whether a sampler is a known one, which takes no adapter to tell; see `known`."""
    return type(inner_sampler(index_sampler)) in _KINDS


def is_users(index_sampler: Any) -> bool:
    """Whether a sampler is of a class of the user's, or one that draws as the user's code goes on.

    Not a list, an array, or a class that torch or this package has made.  It may draw from a random
    state that the loop draws from, too.  So how far ahead it is drawn may decide the order, and
    must not depend on what batches cost, nor on the speed of threads.
    """
    kind = type(inner_sampler(index_sampler))
    made_by = kind.__module__.partition(".")[0]
    return made_by not in ("numpy", "torch", __name__.partition(".")[0]) and kind not in _LISTS


def known(index_sampler: Any) -> KnownSampler | None:
    """Return the adapter of a known sampler; None for a sampler of the user's.

    Args:
        index_sampler: Yields a batch's indices, or single ones.
    """
    kind = _KINDS.get(type(inner_sampler(index_sampler)))
    return None if kind is None else kind(index_sampler)


def with_generator(sampler: Any, generator: Any, seed: int | None = None) -> Any:
    """Return ``sampler``, or a copy of it that draws from a generator.

    Args:
        sampler: A known one that would draw from the process's random state is copied, also
            within batch samplers.
        generator: Draws the order.
        seed: What a `KeyedSampler` draws from instead, with torch and without.
    """
    if is_batching(sampler):
        inner = with_generator(sampler.sampler, generator, seed)
        if inner is sampler.sampler:
            return sampler
        twin = copy.copy(sampler)
        twin.sampler = inner
        return twin
    adapter = known(sampler)
    if adapter is None or not adapter.draws or adapter.generator is not None:
        return sampler
    twin = copy.copy(sampler)
    keyed = seed is not None and isinstance(adapter, Keyed)
    twin.generator = np.random.default_rng(seed) if keyed else generator
    return twin


class KnownOrder:
    """The order of one pass over a known sampler: a seed, or the state of a generator.

    Args:
        sampler: The sampler.
        draws: The random draws of the epoch.
        saved: What `state` returned in the epoch that is resumed; None to draw it.
    """

    def __init__(
        self, sampler: KnownSampler, draws: EpochDraws, saved: Mapping[str, Any] | None
    ) -> None:
        own = own_generator(sampler, draws.generator)
        # Whether it draws from the process's random state.
        self._draws_alone = sampler.draws and sampler.generator is None and not draws.seeded
        self._undecided = self._draws_alone and saved is None
        self._saved = saved
        self._start: Any = None  # the state of a generator at the beginning of the pass
        if own is not None:
            if saved is None:
                self._start = state_of(own)
            else:
                restore_generator(own, saved)
        self._sampler = sampler
        if draws.seeded:
            self._sampler = sampler.with_generator(draws.generator, draws.order_seed)

    def state(self) -> Mapping[str, Any] | None:
        """Return the order, JSON-able; None if there is nothing to save.  Draws it if need be."""
        self._decide()
        if self._saved is None and self._start is not None:
            self._saved = encoded_state(self._start)
        return self._saved

    def sampler(self) -> KnownSampler:
        """Return the sampler that has this order, perhaps a copy.  Draws the order if need be."""
        self._decide()
        order = self._saved
        if not self._draws_alone or order is None:
            return self._sampler
        generator = _torch.new_generator(order.get("seed", 0))
        if "seed" not in order:
            restore_generator(generator, order)
        return self._sampler.with_generator(generator)

    def _decide(self) -> None:
        """Draw the seed that the sampler would draw from the process's random state.

        If more than a seed decides the order, keep that state instead.
        """
        if not self._undecided:
            return
        if self._sampler.draws_one_seed:
            self._saved = {"seed": draw_seed(None)}
        else:
            self._start = state_of(None)
        self._undecided = False  # last: Ctrl-C may come up before


class KnownPass:
    """One pass over a known sampler, or a rank's part of one.

    Args:
        sampler: The sampler.
        batches: How many are left out at the beginning.
        order: Decides the order.
        arrays: Whether a batch's indices may be a range or an array.
        share: Of the rank; None where all is loaded here.
        origin: Units of all ranks that come before the first batch.

    Attributes:
        batches: Left out at the beginning.
        samples: In these batches.
        sharded: Whether batches are a rank's shares of global batches.
        first: If so, the position in the epoch of the first sample of the batch drawn last.

    Threads:
        all: planner only.
    """

    def __init__(
        self,
        sampler: KnownSampler,
        batches: int,
        order: KnownOrder,
        *,
        arrays: bool = False,
        share: Share | None = None,
        origin: int = 0,
    ) -> None:
        _, size, _ = units_of(sampler.index_sampler)
        self.batches, self.samples = batches, batches * size
        self.order = order
        self.sharded = share is not None
        self.first = 0
        self._arrays = arrays
        self._single = not is_batching(sampler.index_sampler)
        share = share or Share(0, 1, "short")
        self._drawing = _batches(order, share, origin + batches * size * share.world_size)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.first, indices = next(self._drawing)
        if self._single:
            return _listed(indices)[0]
        return indices if self._arrays else _listed(indices)


def _batches(order: KnownOrder, share: Share, start: int) -> Iterator[tuple[int, Indices]]:
    """Yield from `KnownSampler.batches`: the sampler draws when its first index is asked for."""
    yield from order.sampler().batches(share, start)


def _listed(indices: Indices) -> list[Any]:
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


def own_generator(sampler: KnownSampler, given: Any) -> Any:
    """Return the generator of a sampler; None if it has none, or the one given."""
    own = sampler.generator
    return None if own is given else own
