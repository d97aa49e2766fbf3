"""``__getitems__``, and torch's own wrappers around datasets."""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, random_split

from conformance.datasets import Raises, Samples, WholeBatches
from conformance.loading import batches, errors

CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "list subclass": UserList,
    "iterator": iter,
    "dict": lambda samples: dict(enumerate(samples)),
    "array": lambda samples: torch.tensor([sample[1] for sample in samples]),
    "None": lambda samples: None,  # noqa: ARG005
    "one too few": lambda samples: samples[1:],
    "one too many": lambda samples: [*samples, samples[0]],
    "nothing": lambda samples: [],  # noqa: ARG005
    "one sample as the batch": lambda samples: samples[0],
    "backwards": lambda samples: samples[::-1],
}
PAIRS = [(torch.full((2,), float(n)), n, str(n)) for n in range(7)]


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("case", CHANGES)
def test_what_getitems_returns_is_collated(
    case: str, batch_size: int | None, alike: Callable[..., Any]
) -> None:
    alike(lambda loader: loader(WholeBatches(PAIRS, CHANGES[case]), batch_size))


@pytest.mark.parametrize("case", CHANGES)
def test_what_getitems_returns_reaches_collate_fn_as_it_is(
    case: str, alike: Callable[..., Any]
) -> None:
    alike(lambda loader: loader(WholeBatches(PAIRS, CHANGES[case]), 3, collate_fn=type))


class ReadSamples(WholeBatches):
    """A dataset whose batches tell what ``__getitems__`` was called with."""

    def __getitems__(self, indices: Any) -> Any:
        if isinstance(indices, Iterator):
            indices = list(indices)
        return [f"{type(indices).__name__} {indices}"]


@pytest.mark.parametrize(
    "make_batch",
    [list, tuple, set, iter, torch.tensor, lambda pair: slice(*pair), lambda pair: pair[1]],
    ids=["list", "tuple", "set", "iterator", "tensor", "slice", "int"],
)
def test_getitems_is_called_with_what_the_batch_sampler_gave(
    make_batch: Callable[[list[int]], Any], alike: Callable[..., Any]
) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(ReadSamples(PAIRS), batch_sampler=[make_batch([0, 1]), make_batch([2, 3])])

    assert len(batches(alike(build))) == 4


class OnlyWhole:
    def __len__(self) -> int:
        return 4

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


def test_getitems_alone_makes_a_dataset(alike: Callable[..., Any]) -> None:
    alike(lambda loader: loader(OnlyWhole(), 3))


class Hidden(WholeBatches):
    __getitems__ = None


def test_a_getitems_that_is_none_counts_as_none(alike: Callable[..., Any]) -> None:
    assert not errors(alike(lambda loader: loader(Hidden(PAIRS), 3)))


def _nested(dataset: Any) -> Any:
    return Subset(Subset(dataset, [6, 4, 2, 0]), [1, 3, 0])


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "Subset": lambda dataset: Subset(dataset, [5, 1, 3]),
    "Subset with an index too large": lambda dataset: Subset(dataset, [5, 99, 3]),
    "Subset of Subset": _nested,
    "ConcatDataset": lambda dataset: ConcatDataset([dataset, Subset(dataset, [1]), dataset]),
    "StackDataset": lambda dataset: StackDataset(dataset, Subset(dataset, range(7))),
    "StackDataset by name": lambda dataset: StackDataset(x=dataset, y=_Doubled(dataset)),
    "StackDataset of Subset": lambda dataset: StackDataset(Subset(dataset, [1, 2]), ["a", "b"]),
    "random_split": lambda dataset: random_split(dataset, [3, 4], torch.Generator().manual_seed(1))[
        1
    ],
}


class _Doubled(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index][1] * 2


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("kind", [Samples, WholeBatches])
@pytest.mark.parametrize("case", WRAPPERS)
def test_torch_s_wrappers(
    case: str, kind: type[Samples], batch_size: int | None, alike: Callable[..., Any]
) -> None:
    told = alike(lambda loader: loader(WRAPPERS[case](kind(PAIRS)), batch_size))
    assert batches(told)


@pytest.mark.parametrize("kind", [Samples, WholeBatches])
def test_an_error_inside_a_wrapper(kind: type[Samples], alike: Callable[..., Any]) -> None:
    made = [0, 1, Raises(lambda: ValueError("two")), 3, Raises(lambda: KeyError("four")), 5]
    told = alike(lambda loader: loader(Subset(kind(made), [5, 2, 4, 0, 1]), 2))
    assert errors(told) == [ValueError, KeyError] * 2


def test_a_wrapped_dataset_that_returns_too_few(alike: Callable[..., Any]) -> None:
    short = WholeBatches(PAIRS, lambda samples: samples[1:])
    assert errors(alike(lambda loader: loader(StackDataset(short, short), 2)))
