"""torch's own datasets and samplers: what lies inside wrappers, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator
from torch.nn import Module
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from threadloader._torch.random_state import draw_base_seed, new_generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "BATCHING",
    "CONTENTS",
    "DRAWING",
    "SEEDED",
    "SEQUENTIAL",
    "DataLoader",
    "Dataset",
    "Generator",
    "IterableDataset",
    "as_iterable_dataset",
    "gives_whole_batches",
    "has_getitem",
    "is_dataset",
    "is_module",
    "is_subset",
    "permutations",
    "permutes",
    "tensors_in",
]

BATCHING: tuple[Any, ...] = (BatchSampler,)  # have a ``sampler``
DRAWING: tuple[Any, ...] = (  # have a ``generator``
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
SEEDED: tuple[Any, ...] = (RandomSampler,)  # without a generator, draw one number for it
SEQUENTIAL: tuple[Any, ...] = (SequentialSampler,)

# The attribute in which two objects of a class and a length may differ.
CONTENTS: Mapping[type, str] = {
    Subset: "indices",
    SubsetRandomSampler: "indices",
    WeightedRandomSampler: "weights",
}


def as_iterable_dataset(iterable: Any) -> IterableDataset[Any]:
    """Return a dataset for DataLoader's checks, in the place of a plain iterable."""
    return _Iterable(iterable)


class _Iterable(IterableDataset[Any]):
    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


def is_module(value: object) -> bool:
    """Whether ``value`` is a `torch.nn.Module`."""
    return isinstance(value, Module)


def is_dataset(value: object) -> bool:
    """Whether ``value`` is an instance of torch's Dataset."""
    return isinstance(value, Dataset)


def has_getitem(dataset: object) -> bool:
    """Whether a dataset gives single samples: torch's base class has a method that only raises."""
    method = getattr(type(dataset), "__getitem__", None)
    return method is not None and method is not Dataset.__getitem__


def is_subset(dataset: object) -> bool:
    """Whether ``dataset`` is a `Subset`, exactly: a subclass may return other samples."""
    return type(dataset) is Subset


def tensors_in(dataset: object) -> Sequence[Tensor]:
    """Return the tensors of a `TensorDataset`, exactly; of other datasets, none."""
    return dataset.tensors if type(dataset) is TensorDataset else ()


def gives_whole_batches(dataset: Any) -> bool:
    """Whether calling ``dataset.__getitems__`` is more than a loop over ``__getitem__``.

    `Subset` and `StackDataset` always have the method; it is worth a whole batch in one ticket
    only where a dataset inside them has one of its own.
    """
    kind = type(dataset)
    if kind is Subset:
        return gives_whole_batches(dataset.dataset)
    if kind is StackDataset:
        parts = dataset.datasets
        inner = parts.values() if isinstance(parts, dict) else parts
        return any(map(gives_whole_batches, inner))
    if kind is ConcatDataset and not hasattr(ConcatDataset, "__getitems__"):
        return False
    return bool(getattr(dataset, "__getitems__", None))


def permutes(sampler: Any) -> bool:
    """Whether `permutations` yields the sampler's indices."""
    return type(sampler) is RandomSampler and not sampler.replacement


def permutations(sampler: RandomSampler) -> Iterator[NDArray[Any]]:
    """Yield the indices of a pass over a `RandomSampler`, as arrays.

    They are those that the sampler would yield, drawn at the same time.
    Source: ``RandomSampler.__iter__`` in torch/utils/data/sampler.py; compared with it by
    tests/conformance/test_array_datasets.py.
    """
    samples = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        generator = new_generator(draw_base_seed(None))
    whole, rest = divmod(sampler.num_samples, samples)
    for _ in range(whole):
        yield torch.randperm(samples, generator=generator).numpy()
    yield torch.randperm(samples, generator=generator)[:rest].numpy()
