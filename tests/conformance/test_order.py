"""Which samples, in which batches and order, and how much random state is used to choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from conformance.datasets import Samples
from conformance.loading import THREADS, errors, ours, story, torchs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

TEN = Samples(range(10))


class Restless:
    """A sampler that draws random numbers when it is asked for an iterator, and at each index."""

    def __iter__(self) -> Iterator[int]:
        first = int(torch.randint(10, ()))
        return iter(lambda: (first + int(torch.randint(10, ()))) % 11, 10)


class Unsized:
    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[Any]:
        yield from self.entries


class Indexed:
    """A sampler that is iterable by Python's older protocol only."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries

    def __getitem__(self, position: int) -> Any:
        return self.entries[position]

    def __len__(self) -> int:
        return len(self.entries)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [3, 1, 1, 9],
    "empty list": list,
    "tuple": lambda: (2, 0),
    "range": lambda: range(9, 0, -3),
    "array": lambda: np.array([4, 2]),
    "tensor": lambda: torch.tensor([4, 2]),
    "generator, spent after one epoch": lambda: (index for index in (5, 3, 4)),
    "without a length": lambda: Unsized([7, 8, 9]),
    "by __getitem__": lambda: Indexed([7, 8, 9]),
    "that draws from torch": Restless,
    "RandomSampler with replacement": lambda: RandomSampler(TEN, replacement=True, num_samples=7),
    "RandomSampler with more samples": lambda: RandomSampler(TEN, num_samples=23),
    "RandomSampler with a generator": lambda: RandomSampler(
        TEN, generator=torch.Generator().manual_seed(5)
    ),
    "SubsetRandomSampler": lambda: SubsetRandomSampler([1, 3, 5, 7, 9]),
    "WeightedRandomSampler": lambda: WeightedRandomSampler([0.1, 0.0, 0.9, 3.0], 6),
    "SequentialSampler": lambda: SequentialSampler(TEN),
}
BATCH_SAMPLERS: dict[str, Callable[[], Any]] = {
    "of varying sizes": lambda: [[0], [1, 2, 3], [4, 5]],
    "of tuples": lambda: [(0, 1), (2,)],
    "of ranges": lambda: [range(3), range(3, 9)],
    "of arrays": lambda: [np.array([0, 4]), np.array([2])],
    "of tensors": lambda: torch.arange(6).reshape(3, 2),
    "of iterators": lambda: [iter([0, 1]), iter([2])],
    "of sets": lambda: [{1, 2}],
    "with nothing": list,
    "with an empty batch": lambda: [[0, 1], [], [2]],
    "with something else": lambda: [[0], 1, None, [2]],
    "without a length": lambda: Unsized([[0, 1], [2]]),
    "by __getitem__": lambda: Indexed([[0, 1], [2]]),
    "BatchSampler": lambda: BatchSampler(RandomSampler(TEN), 3, drop_last=True),
    "long": lambda: [[index % 10] for index in range(30)],
}


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("case", SAMPLERS)
def test_a_sampler(case: str, batch_size: int | None, alike: Callable[..., Any]) -> None:
    alike(lambda loader: loader(TEN, sampler=SAMPLERS[case](), batch_size=batch_size))


@pytest.mark.parametrize("case", BATCH_SAMPLERS)
def test_a_batch_sampler(case: str, alike: Callable[..., Any]) -> None:
    alike(lambda loader: loader(TEN, batch_sampler=BATCH_SAMPLERS[case]()))


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_a_generator_decides_the_order(batch_size: int | None, alike: Callable[..., Any]) -> None:
    told = alike(
        lambda loader: loader(
            TEN, batch_size, shuffle=True, generator=torch.Generator().manual_seed(7)
        )
    )
    assert "generator's next" in told


def test_two_epochs_have_two_orders(alike: Callable[..., Any]) -> None:
    first, second = alike(lambda loader: loader(TEN, 10, shuffle=True))["epochs"]
    assert first != second


def test_a_loader_that_does_not_shuffle_uses_random_state_all_the_same(
    alike: Callable[..., Any],
) -> None:
    # One number an epoch, from which torch seeds its workers.
    told = alike(lambda loader: loader(TEN, 4))
    torch.manual_seed(20)
    assert told["next random number"] != torch.rand(()).item()


def test_an_abandoned_epoch_has_drawn_its_seed(alike: Callable[..., Any]) -> None:
    class Twice:
        """Breaks off one epoch before the next."""

        generator = None

        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Iterator[Any]:
            next(iter(self.loader))
            return iter(self.loader)

    alike(lambda loader: Twice(loader(TEN, 2, shuffle=True)))


@pytest.mark.parametrize(
    "keys", [["b", "a", "b"], [("a", 1)], ["missing", "a"]], ids=["known", "tuple", "missing"]
)
def test_an_index_may_be_anything_that_the_dataset_takes(
    keys: list[Any], alike: Callable[..., Any]
) -> None:
    dataset = {"a": 1, "b": 2, ("a", 1): 3}
    alike(lambda loader: loader(dataset, sampler=keys, batch_size=2))


def test_a_list_of_indices_may_be_one_index(alike: Callable[..., Any]) -> None:
    told = alike(
        lambda loader: loader(
            np.arange(10.0), sampler=BatchSampler(SequentialSampler(TEN), 4, False), batch_size=None
        )
    )
    assert not errors(told)


@pytest.mark.parametrize(
    "dataset",
    [
        list(range(5)),
        (1.5, 2.5),
        "text",
        range(7),
        np.arange(6.0).reshape(3, 2),
        torch.arange(6).reshape(3, 2),
        torch.utils.data.TensorDataset(torch.arange(5), torch.arange(10.0).reshape(5, 2)),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_a_dataset_may_be_any_sequence(dataset: Any, alike: Callable[..., Any]) -> None:
    assert not errors(alike(lambda loader: loader(dataset, 2)))


class Endless:
    """A dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_needs_no_length_where_a_sampler_is_given(alike: Callable[..., Any]) -> None:
    assert not errors(alike(lambda loader: loader(Endless(), sampler=[5, 8], batch_size=2)))


def test_a_dataset_without_length_or_sampler_fails_alike(alike: Callable[..., Any]) -> None:
    alike(lambda loader: loader(Endless(), 2))


@pytest.mark.parametrize("batch_size", [1, None])
def test_shuffling_an_empty_dataset_fails_alike(
    batch_size: int | None, alike: Callable[..., Any]
) -> None:
    alike(lambda loader: loader([], batch_size, shuffle=True))


@settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # `spawn` has no state
@given(
    length=st.integers(0, 20),
    batch_size=st.sampled_from([None, 1, 2, 3, 7, 20, 21]),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    own_generator=st.booleans(),
    threads=st.sampled_from(THREADS),
)
def test_every_length_and_batch_size(
    length: int,
    batch_size: int | None,
    drop_last: bool,
    shuffle: bool,
    own_generator: bool,
    threads: int,
    spawn: Callable[..., Future[Any]],
) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(
            Samples(range(length)),
            batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            generator=torch.Generator().manual_seed(length) if own_generator else None,
        )

    expected = spawn(story, build, torchs).result(PATIENCE)
    assert spawn(story, build, ours(threads)).result(PATIENCE) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": -1},
        {"batch_size": None, "drop_last": True},
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "batch_size": None},
        {"batch_sampler": [[0]], "shuffle": True},
        {"batch_sampler": [[0]], "drop_last": True},
        {"batch_sampler": [[0]], "sampler": [0]},
        {"batch_sampler": [[0]], "sampler": []},
        {"num_workers": -1},
        {"persistent_workers": True, "num_workers": 0},
    ],
    ids=str,
)
def test_arguments_that_torch_refuses_are_refused(arguments: dict[str, Any]) -> None:
    for make in (torch.utils.data.DataLoader, ours(0).func):  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=r"batch_size|mutually exclusive|num_workers"):
            make(TEN, **arguments)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
def test_a_dataset_is_asked_for_plain_ints(
    threads: int, shuffle: Any, spawn: Callable[..., Future[Any]]
) -> None:
    asked = []

    class Asked:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    with ours(threads)(Asked(), batch_size=4, shuffle=shuffle) as loader:
        spawn(lambda: [None for _ in loader]).result(PATIENCE)
    assert {type(index) for index in asked} == {int}
    assert sorted(asked) == list(range(10))
