"""The samplers of our own: those of torch's where torch is not installed, and the keyed one."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._rng.seeds import draw_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

    from numpy.typing import NDArray

    from threadloader._rng.permutation import KeyedPermutation

__all__ = [
    "BatchSampler",
    "KeyedSampler",
    "RandomSampler",
    "SequentialSampler",
    "batches_of",
    "inner_sampler",
    "is_batching",
    "length_of",
    "make_sampler",
    "units_of",
]

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


class SequentialSampler:
    """Indices 0, 1, 2 ...; stands for torch's class of this name where torch is not installed."""

    def __init__(self, dataset: Sized) -> None:
        self.data_source = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler:
    """A new permutation each epoch; stands for torch's class where torch is not installed.

    Args:
        dataset: Its length is the number of samples.
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
        """Yield the indices of a pass, as one array."""
        # Drawn when the first index is asked for, as torch does: after the seed of the workers.
        draw = self.generator
        if draw is None:
            # From NumPy's global state, also where torch is installed.
            draw = np.random.default_rng(np.random.randint(1 << 63, dtype=np.uint64))  # noqa: NPY002
        yield draw.permutation(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class KeyedSampler:
    """A new permutation each epoch, in constant memory: see `threadloader._rng.permutation`.

    Args:
        dataset: Its length is the number of samples.
        generator: Draws one seed an epoch; None for the process's random state.
    """

    def __init__(self, dataset: Any, generator: Any = None) -> None:
        self.data_source: Sized = dataset
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for span in self.spans(0, SPAN):
            yield from span.tolist()

    def spans(self, position: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield the indices from a position on, as arrays of ``size``; the last may be shorter."""
        order = self.order()
        for start in range(position, len(order), size):
            yield order.span(start, min(len(order), start + size))

    def order(self) -> KeyedPermutation:
        """Draw the permutation of a pass."""
        from threadloader._rng.permutation import KeyedPermutation  # noqa: PLC0415  # rarely used

        return KeyedPermutation(len(self.data_source), draw_seed(self.generator))

    def __len__(self) -> int:
        return len(self.data_source)


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
