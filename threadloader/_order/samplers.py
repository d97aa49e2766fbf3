"""Samplers: our own, where torch's can't serve, and where in their order a pass starts.

Of torch's own classes and ours, exactly these, it is known what decides their order and how to go
on in the middle of it.
"""

from __future__ import annotations

import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._order.permutation import KeyedPermutation
from threadloader._rng.seeds import draw_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sized

    from numpy.typing import NDArray

__all__ = [
    "BatchSampler",
    "KeyedSampler",
    "RandomSampler",
    "SequentialSampler",
    "array_batches",
    "batches_of",
    "decided_by_seed",
    "gives_arrays",
    "inner_sampler",
    "is_known",
    "length_of",
    "make_sampler",
    "starting_at",
    "with_generator",
]

_SPAN = 1024  # indices that are computed at once, in 0.3 ms


def make_sampler(dataset: Any, generator: Any, *, shuffle: bool) -> Iterable[int]:
    """Return the sampler for ``shuffle`` where torch's are not there, or can't draw."""
    return RandomSampler(dataset, generator) if shuffle else SequentialSampler(dataset)


def with_generator(sampler: Any, generator: Any, keyed_generator: Callable[[], Any]) -> Any:
    """Return ``sampler``, or a copy of it that draws from a generator.

    Args:
        sampler: A copy is made of torch's or our own that would draw from the process's random
            state, alone or in a `BatchSampler`.
        generator: Draws the order.
        keyed_generator: Returns what draws that of a `KeyedSampler`.
    """
    if _is_batching(sampler):
        name, before = "sampler", sampler.sampler
        after = with_generator(before, generator, keyed_generator)
    elif type(sampler) in (RandomSampler, KeyedSampler, *_torch.DRAWING):
        name, before = "generator", sampler.generator
        given = keyed_generator() if type(sampler) is KeyedSampler else generator
        after = given if before is None else before
    else:
        return sampler
    if after is before:
        return sampler
    twin = copy.copy(sampler)
    setattr(twin, name, after)
    return twin


def batches_of(indices: Iterable[Any], batch_size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    """Yield lists of ``batch_size`` indices, as torch's ``BatchSampler`` does."""
    indices = iter(indices)
    while batch := list(islice(indices, batch_size)):
        if len(batch) == batch_size or not drop_last:
            yield batch


def _is_batching(sampler: object) -> bool:
    """Whether ``sampler`` is a batch sampler of torch's or our own, no subclass of it."""
    return type(sampler) in (BatchSampler, *_torch.BATCHING)


def inner_sampler(sampler: Any) -> Any:
    """Return the sampler of single indices in a batch sampler; any other is its own."""
    return sampler.sampler if _is_batching(sampler) else sampler


def length_of(value: Any) -> int | None:
    """Return the length of a sampler or dataset; None if it has none."""
    try:
        return len(value)
    except Exception:  # noqa: BLE001  # the user's: TypeError, NotImplementedError
        return None


def is_known(sampler: Any) -> bool:
    """Whether a pass over ``sampler`` can be begun anywhere, knowing its class alone."""
    kinds = (SequentialSampler, RandomSampler, KeyedSampler, *_torch.DRAWING, *_torch.SEQUENTIAL)
    return type(inner_sampler(sampler)) in kinds


def decided_by_seed(sampler: Any) -> bool:
    """Whether a known sampler without a generator draws one number, which decides its order."""
    return type(inner_sampler(sampler)) in (RandomSampler, KeyedSampler, *_torch.SEEDED)


def starting_at(sampler: Any, batches: int) -> Iterator[Any]:
    """Return a pass over a known sampler without its first batches.

    Args:
        sampler: Yields a batch's indices, or single ones.
        batches: Left out: computed by none, and drawn by none but torch's.
    """
    if not batches:
        return iter(sampler)
    inner = inner_sampler(sampler)
    if inner is sampler:
        return _from(inner, batches)
    rest = _from(inner, batches * sampler.batch_size)
    return batches_of(rest, sampler.batch_size, drop_last=sampler.drop_last)


def _from(sampler: Any, position: int) -> Iterator[Any]:
    """Return a pass over a known sampler of single indices from a position on."""
    kind = type(sampler)
    if kind in (SequentialSampler, *_torch.SEQUENTIAL):
        return iter(range(position, len(sampler.data_source)))
    if kind is KeyedSampler:
        rest: Iterator[Any] = sampler.starting_at(position)
        return rest
    indices: Iterator[Any] = iter(sampler)
    next(islice(indices, position, position), None)
    return indices


def gives_arrays(sampler: Any) -> bool:
    """Whether `array_batches` knows a known sampler's indices."""
    inner = inner_sampler(sampler)
    kinds = (SequentialSampler, RandomSampler, KeyedSampler, *_torch.SEQUENTIAL)
    return inner is not sampler and (type(inner) in kinds or _torch.permutes(inner))


def array_batches(sampler: Any, batches: int) -> Iterator[range] | Iterator[NDArray[Any]]:
    """Return a pass over a batch sampler that `gives_arrays`: a range or an array for each batch.

    No index becomes an object of its own, which for a batch of 256 costs more than to gather its
    rows.  The indices, and what is drawn for them, are those of `starting_at`.

    Args:
        sampler: Yields a batch's indices.
        batches: Left out.
    """
    inner = inner_sampler(sampler)
    size, start = sampler.batch_size, batches * sampler.batch_size
    kind = type(inner)
    if kind in (SequentialSampler, *_torch.SEQUENTIAL):
        return _ranges(inner, start, size, drop_last=sampler.drop_last)
    orders: Iterator[NDArray[Any]]
    if kind is KeyedSampler:
        orders, start = inner.spans(start, -(-_SPAN // size) * size), 0
    elif kind is RandomSampler:
        orders = inner.permutations()
    else:
        orders = _torch.permutations(inner)
    return _cut(orders, start, size, drop_last=sampler.drop_last)


def _ranges(sampler: Any, start: int, size: int, *, drop_last: bool) -> Iterator[range]:
    samples = len(sampler.data_source)
    for first in range(start, samples, size):
        batch = range(first, min(samples, first + size))
        if len(batch) == size or not drop_last:
            yield batch


def _cut(
    orders: Iterator[NDArray[Any]], start: int, size: int, *, drop_last: bool
) -> Iterator[NDArray[Any]]:
    """Yield parts of ``size`` indices of arrays that follow one another, from a position on."""
    rest = np.empty(0, np.int64)
    for each in orders:
        order = each[start:]
        start = max(0, start - len(each))
        if len(rest):
            order = np.concatenate((rest, order))
        whole = len(order) - len(order) % size
        for first in range(0, whole, size):
            yield order[first : first + size]
        rest = order[whole:]
    if len(rest) and not drop_last:
        yield rest


class SequentialSampler:
    """Indices 0, 1, 2 ... where torch's sampler of this name is not there."""

    def __init__(self, dataset: Sized) -> None:
        self.data_source = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler:
    """A fresh permutation each epoch where torch's sampler of this name is not there.

    Args:
        dataset: Tells the number of samples.
        generator: Draws the permutations; by default NumPy's global state, so that
            ``numpy.random.seed`` decides the order as ``torch.manual_seed`` does with torch.
    """

    def __init__(self, dataset: Sized, generator: np.random.Generator | None = None) -> None:
        self.data_source = dataset
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for order in self.permutations():
            yield from order.tolist()

    def permutations(self) -> Iterator[NDArray[Any]]:
        """Yield the indices as one array."""
        # When it is asked for the first index, like torch's: the seed of workers is drawn before.
        draw = self.generator
        if draw is None:
            # NumPy's, also where torch is installed.
            draw = np.random.default_rng(np.random.randint(1 << 63, dtype=np.uint64))  # noqa: NPY002
        yield draw.permutation(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class KeyedSampler:
    """A fresh permutation each epoch in constant memory: see `threadloader._order.permutation`.

    Args:
        dataset: Tells the number of samples.
        generator: Draws one seed an epoch; None for the process's own random state.
    """

    def __init__(self, dataset: Any, generator: Any = None) -> None:
        self.data_source: Sized = dataset
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return self.starting_at(0)

    def starting_at(self, position: int) -> Iterator[int]:
        """Yield the indices from a position on; none before it is computed."""
        for span in self.spans(position, _SPAN):
            yield from span.tolist()

    def spans(self, position: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield the indices from a position on, ``size`` at once."""
        samples = len(self.data_source)
        order = KeyedPermutation(samples, draw_seed(self.generator))
        for start in range(position, samples, size):
            yield order.span(start, min(samples, start + size))

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler:
    """Lists of ``batch_size`` indices where torch's sampler of this name is not there."""

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
