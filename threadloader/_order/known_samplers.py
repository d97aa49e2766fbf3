"""The samplers whose order can be continued at any batch: torch's and our own, one adapter a kind.

    index sampler -> `known` -> the adapter of its kind, or None for a sampler of the user's

An adapter knows what decides the order, and how to begin in the middle of it.  Only these very
classes are known: a subclass of the user's may do anything.  Another kind is one more class in this
module, and its line in `_KINDS` (`_torch.datasets` names torch's classes).
"""

from __future__ import annotations

import copy
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from threadloader import _torch
from threadloader._order.samplers import (
    SPAN,
    KeyedSampler,
    RandomSampler,
    SequentialSampler,
    batches_of,
    inner_sampler,
    is_batching,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["KnownSampler", "is_known", "is_users", "known", "with_generator"]


class KnownSampler:
    """A sampler of one kind, alone or in a batch sampler.

    What is known of any kind: its indices come from a generator, one by one.

    Args:
        index_sampler: Yields a batch's indices, or single ones.
    """

    draws: ClassVar[bool] = True  # whether it has a ``generator``, perhaps None
    draws_one_seed: ClassVar[bool] = False  # whether one number decides the order if that is None

    def __init__(self, index_sampler: Any) -> None:
        self.index_sampler = index_sampler
        self.sampler = inner_sampler(index_sampler)  # of single indices

    @property
    def batched(self) -> bool:
        """Whether it yields batches."""
        return self.sampler is not self.index_sampler

    @property
    def generator(self) -> Any:
        """The generator that the user gave the sampler; None for none."""
        return self.sampler.generator if self.draws else None

    def with_generator(self, generator: Any, keyed_generator: Callable[[], Any]) -> KnownSampler:
        """Return the sampler, or a copy that draws from a generator; see `with_generator`."""
        return type(self)(with_generator(self.index_sampler, generator, keyed_generator))

    def starting_at(self, batches: int) -> Iterator[Any]:
        """Return a pass without its first batches, or without its first indices.

        Where a kind has arrays, its lists are cut from these: to draw the indices one by one, as a
        batch sampler does, takes longer than to collate some samples.

        Args:
            batches: How many to leave out.
        """
        arrays = self.array_batches(batches)
        if arrays is not None:
            return map(_listed, arrays)
        if not batches:
            return iter(self.index_sampler)
        if not self.batched:
            return self._indices(batches)
        size = self.index_sampler.batch_size
        rest = self._indices(batches * size)
        return batches_of(rest, size, drop_last=self.index_sampler.drop_last)

    def array_batches(self, batches: int) -> Iterator[range] | Iterator[NDArray[Any]] | None:
        """Return a pass as a range or an array for each batch; None if there are only lists.

        No index becomes an object of its own, which for a batch of 256 costs more than to gather
        its rows.  The indices and the random draws are the same as with `starting_at`.

        Args:
            batches: How many to leave out.
        """
        if not self.batched:
            return None
        size = self.index_sampler.batch_size
        return self._arrays(batches * size, size, drop_last=self.index_sampler.drop_last)

    def random_access(self) -> Callable[[NDArray[Any]], NDArray[Any] | list[Any]]:
        """Return the order of a new pass: a function from positions to their indices.

        Where a kind's order can't be computed it is drawn whole, and takes 8 bytes an index.
        """
        indices = list(self.sampler)
        return lambda positions: [indices[position] for position in positions.tolist()]

    # All below: a kind's own.

    def inner_with_generator(self, generator: Any, keyed_generator: Callable[[], Any]) -> Any:  # noqa: ARG002  # of one kind
        """Return the sampler of single indices, or a copy; see `with_generator`."""
        if not self.draws or self.generator is not None:
            return self.sampler
        return _copy_with(self.sampler, generator=generator)

    def _indices(self, position: int) -> Iterator[int]:
        """Return the indices of a pass from a position on."""
        indices: Iterator[int] = iter(self.sampler)
        next(islice(indices, position, position), None)
        return indices

    def _arrays(
        self,
        position: int,  # noqa: ARG002  # of the kinds that have arrays
        size: int,  # noqa: ARG002
        *,
        drop_last: bool,  # noqa: ARG002
    ) -> Iterator[range] | Iterator[NDArray[Any]] | None:
        """Return a pass from a position on, cut into batches; see `array_batches`."""
        return None


class Sequential(KnownSampler):
    """Indices 0, 1, 2 ..., of torch's class or ours."""

    draws = False

    def random_access(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """See `KnownSampler.random_access`."""
        return lambda positions: positions

    def _indices(self, position: int) -> Iterator[int]:
        return iter(range(position, len(self.sampler.data_source)))

    def _arrays(self, position: int, size: int, *, drop_last: bool) -> Iterator[range]:
        samples = len(self.sampler.data_source)
        for start in range(position, samples, size):
            batch = range(start, min(samples, start + size))
            if len(batch) == size or not drop_last:
                yield batch


class Shuffled(KnownSampler):
    """A permutation that is drawn for each pass, of our own class."""

    draws_one_seed = True

    def random_access(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """See `KnownSampler.random_access`."""
        (order,) = self.sampler.permutations()
        return order.__getitem__  # type: ignore[no-any-return]

    def _arrays(self, position: int, size: int, *, drop_last: bool) -> Iterator[NDArray[Any]]:
        return _cut(_skip(self.sampler.permutations(), position), size, drop_last=drop_last)


class ShuffledByTorch(KnownSampler):
    """Permutations that are drawn for each pass, or indices with replacement, of torch's class."""

    draws_one_seed = True

    def random_access(self) -> Callable[[NDArray[Any]], NDArray[Any] | list[Any]]:
        """See `KnownSampler.random_access`."""
        if not _torch.permutes(self.sampler):
            return super().random_access()
        order = np.concatenate(list(_torch.permutations(self.sampler)))
        return order.__getitem__

    def _arrays(
        self, position: int, size: int, *, drop_last: bool
    ) -> Iterator[NDArray[Any]] | None:
        if not _torch.permutes(self.sampler):
            return None
        return _cut(_skip(_torch.permutations(self.sampler), position), size, drop_last=drop_last)


class Keyed(KnownSampler):
    """A permutation that is computed index by index, of our own class."""

    draws_one_seed = True

    def inner_with_generator(self, generator: Any, keyed_generator: Callable[[], Any]) -> Any:  # noqa: ARG002
        return super().inner_with_generator(keyed_generator(), keyed_generator)

    def random_access(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """See `KnownSampler.random_access`."""
        order: Callable[[NDArray[Any]], NDArray[Any]] = self.sampler.order().at
        return order

    def _indices(self, position: int) -> Iterator[int]:
        indices: Iterator[int] = self.sampler.starting_at(position)
        return indices

    def _arrays(self, position: int, size: int, *, drop_last: bool) -> Iterator[NDArray[Any]]:
        spans = self.sampler.spans(position, -(-SPAN // size) * size)  # whole batches each
        return _cut(spans, size, drop_last=drop_last)


_LISTS = (list, tuple, range)
_KINDS: Mapping[type, type[KnownSampler]] = MappingProxyType(
    {
        SequentialSampler: Sequential,
        RandomSampler: Shuffled,
        KeyedSampler: Keyed,
        **dict.fromkeys(_torch.SEQUENTIAL, Sequential),
        **dict.fromkeys(_torch.DRAWING, KnownSampler),
        **dict.fromkeys(_torch.SEEDED, ShuffledByTorch),
    }
)


def is_known(index_sampler: Any) -> bool:
    """Whether a sampler is a known one, which takes no adapter to tell; see `known`."""
    return type(inner_sampler(index_sampler)) in _KINDS


def is_users(index_sampler: Any) -> bool:
    """Whether a sampler is of a class of the user's, or one that draws as the user's code goes on.

    Not a list, an array, or a class that torch or this package has made.
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


def with_generator(sampler: Any, generator: Any, keyed_generator: Callable[[], Any]) -> Any:
    """Return ``sampler``, or a copy of it that draws from a generator.

    Args:
        sampler: A known one that would draw from the process's random state is copied, also
            within batch samplers.
        generator: Draws the order.
        keyed_generator: Returns the generator for a `KeyedSampler`.
    """
    if is_batching(sampler):
        inner = with_generator(sampler.sampler, generator, keyed_generator)
        return sampler if inner is sampler.sampler else _copy_with(sampler, sampler=inner)
    adapter = known(sampler)
    return sampler if adapter is None else adapter.inner_with_generator(generator, keyed_generator)


def _copy_with(value: Any, **attributes: Any) -> Any:
    """Return a shallow copy of an object, with some attributes changed."""
    twin = copy.copy(value)
    for name, attribute in attributes.items():
        setattr(twin, name, attribute)
    return twin


def _listed(indices: range | NDArray[Any]) -> list[int]:
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


def _skip(permutations: Iterator[NDArray[Any]], indices: int) -> Iterator[NDArray[Any]]:
    """Yield arrays that follow one another, without the first of their indices."""
    for permutation in permutations:
        yield permutation[indices:]
        indices = max(0, indices - len(permutation))


def _cut(arrays: Iterator[NDArray[Any]], size: int, *, drop_last: bool) -> Iterator[NDArray[Any]]:
    """Yield batches of ``size`` indices, cut from arrays that follow one another."""
    rest = np.empty(0, np.int64)
    for array in arrays:
        indices = np.concatenate((rest, array)) if len(rest) else array
        full = len(indices) - len(indices) % size
        for start in range(0, full, size):
            yield indices[start : start + size]
        rest = indices[full:]
    if len(rest) and not drop_last:
        yield rest
