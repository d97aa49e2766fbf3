"""Each worker has a collate function of its own: what it keeps on itself, no other worker sees."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from threading import Barrier
from typing import Any

import pytest
from support.collators import (
    NUMBERS,
    THREADS,
    Collator,
    Meeting,
    NotCallable,
    Scratch,
    call,
    load,
)
from support.patience import PATIENCE, Spawn
from support.streams import Rows

from threadloader import ThreadLoader, get_worker_info
from threadloader._torch import IterableDataset
from threadloader._worker.copy_rules import new_copier
from threadloader._worker.own_copy import Copied


def two_closures(collator: Any) -> Any:
    def inner(samples: Any) -> Any:
        return collator(samples)

    def outer(samples: Any) -> Any:
        assert inner is not None
        return inner(samples)

    return outer


# Of more kinds transforms are: see tests/field/test_own_objects.py.
KINDS: dict[str, Callable[[], Any]] = {
    "object": Collator,
    "method with a helper": lambda: NotCallable(Scratch()).collate,
    "partial": lambda: functools.partial(call, Collator()),
    "two closures": lambda: two_closures(Collator()),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.usefixtures("first_sample_waits")
def test_a_worker_s_scratch_state_is_its_own(kind: Any, spawn: Spawn) -> None:
    assert load(range(THREADS), kind(), spawn) == NUMBERS


def test_scratch_state_that_is_shared_mixes_up_batches(spawn: Spawn) -> None:
    """The race that the copies prevent; else the others could not fail."""
    assert load(range(THREADS), Collator(), spawn, dataset_copy="shared") != NUMBERS


class Replica(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        yield get_worker_info().id


ELSEWHERE: dict[str, tuple[Callable[[Any], dict[str, Any]], int]] = {  # and how many call it
    "deep": (lambda it: {"dataset": range(THREADS), "dataset_copy": "deep", "collate_fn": it}, 4),
    "replicas": (lambda it: {"dataset": Replica(), "collate_fn": it}, 4),
    "behind a transform": (lambda it: {"dataset": Rows(3), "transform": int, "collate_fn": it}, 3),
    "a transform": (lambda it: {"dataset": iter(range(3)), "transform": it, "collate_fn": list}, 3),
    "no threads": (
        lambda it: {
            "dataset": range(THREADS),
            "num_workers": 0,
            "prefetch": None,
            "collate_fn": it,
        },
        1,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.usefixtures("first_sample_waits")
def test_scratch_state_is_its_own_wherever_the_function_is(
    where: str, kind: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, callers = ELSEWHERE[where]
    monkeypatch.setattr(Meeting, "barrier", Barrier(callers))  # one of the others reads
    given = arguments(KINDS[kind]())
    got = load(given.pop("dataset"), given.pop("collate_fn"), spawn, **given)
    assert got == NUMBERS[: 3 if callers == 3 else 4]


# What belongs to the dataset


class Collating:
    """A dataset whose method collates, and keeps something on self."""

    def __init__(self) -> None:
        self.inner = Collator()

    def __len__(self) -> int:
        return THREADS

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: Any) -> Any:
        assert get_worker_info().dataset is self
        return self.inner(samples)


@pytest.mark.parametrize(
    "function",
    [
        lambda data: data.collate,
        lambda data: functools.partial(data.collate),
        lambda data: lambda samples: data.collate(samples),  # noqa: PLW0108  # the same
    ],
    ids=["method", "partial", "lambda"],
)
@pytest.mark.parametrize("how", ["auto", "deep"])
@pytest.mark.usefixtures("first_sample_waits")
def test_a_method_of_the_dataset_is_that_of_the_worker_s_copy(
    how: Any, function: Any, spawn: Spawn
) -> None:
    dataset = Collating()
    assert load(dataset, function(dataset), spawn, dataset_copy=how) == NUMBERS
    assert not vars(dataset.inner)


def test_what_dataset_and_collate_fn_have_in_common_is_one_in_a_worker(spawn: Spawn) -> None:
    class Has:
        def __init__(self, common: Any) -> None:
            self.common = common
            self.seen: list[int] = []

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return id(self.common)

        def __call__(self, samples: Any) -> Any:
            return samples == [id(self.common)]

    common = Collator()
    got = load(Has(common), Has(common), spawn, num_workers=2)
    assert got == [True, True]


def copied(function: Any) -> Any:
    return new_copier(Copied()).copy("collate_fn", function)


class Trainer:
    """What a data module is attached to, and leads back to it."""

    def __init__(self, module: Any) -> None:
        self.inside = {"modules": [module]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadLoader(range(3)),
        lambda: (number for number in range(3)),
        lambda: threading.Thread(name="test-none"),
    ],
    ids=["loader", "generator", "thread"],
)
def test_a_method_s_object_shares_what_is_no_part_of_it(make: Any) -> None:
    module = NotCallable(Scratch())
    module.other = other = make()  # type: ignore[attr-defined]
    twin = copied(module.collate).__self__
    assert twin is not module
    assert twin.helper is not module.helper
    assert twin.other is other


# Modules of torch's


def test_a_module_is_copied_and_a_model_in_it_is_shared() -> None:
    torch = pytest.importorskip("torch")

    class Light(torch.nn.Module):  # type: ignore[misc,name-defined]
        """As Lightning's: what is pickled has no trainer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 2)
            self.augment = torch.nn.Sequential(torch.nn.Identity())
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.trainer = Trainer(self)

        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "trainer": None}

        def collate(self, samples: Any) -> Any:
            return samples

    module = Light()
    twin = copied(module.collate).__self__
    assert twin is not module
    assert twin.model is module.model
    assert twin.weight is module.weight
    assert twin.trainer.inside["modules"][0] is twin
    assert twin.augment[0] is not module.augment[0]
    assert copied(functools.partial(call, module)).args[0] is module
    assert copied(module).model is module.model
    twin.longest = 3
    assert not hasattr(module, "longest")


MISSING = type("Missing", (), {})()


def count_missing(batch: list[Any], missing: Any = MISSING) -> int:
    return sum(value is missing for value in batch)


def counting(missing: Any) -> Any:
    return lambda batch: sum(value is missing for value in batch)


@pytest.mark.parametrize(
    "function", [count_missing, counting(MISSING), functools.partial(count_missing)]
)
def test_a_marker_stays_the_same_object(function: Any, spawn: Spawn) -> None:
    loader: Any = ThreadLoader([MISSING, 1, MISSING, 2], 2, threads=2, collate_fn=function)
    assert spawn(list, loader).result(PATIENCE) == [1, 1]
