"""What a worker's copy of a collate function shares, or how it was not copied at all."""

from __future__ import annotations

import functools
import threading
from threading import Barrier
from typing import TYPE_CHECKING, Any

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
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._fetch.dataset_copy import Copied, copy_function

if TYPE_CHECKING:
    from support.patience import Spawn


def copied(function: Any, how: Any = "auto") -> Any:
    return copy_function(function, how, Copied())


def test_what_a_closure_collects_in_a_list_is_seen_outside(spawn: Spawn) -> None:
    seen: list[int] = []
    collator = Collator()

    def collate(samples: Any) -> Any:
        seen.extend(samples)
        return collator(samples)

    assert load(range(THREADS), collate, spawn) == NUMBERS
    assert sorted(seen) == list(range(THREADS))


class Trainer:
    """What a data module is attached to, and leads back to it."""

    def __init__(self, module: Any) -> None:
        self.inside = {"modules": [module]}


class Guarded:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen = 0


class Refuses:
    def __copy__(self) -> Any:
        msg = "not to be copied"
        raise TypeError(msg)


@pytest.mark.parametrize(
    "make",
    [
        Trainer,
        lambda _: Guarded(),
        lambda _: Refuses(),
        lambda _: ThreadLoader(range(3)),
        lambda _: iter(range(3)).__iter__(),
        lambda _: (number for number in range(3)),
        lambda _: threading.Thread(name="test-none"),
    ],
    ids=["leads back", "lock", "refuses", "loader", "iterator", "generator", "thread"],
)
def test_a_method_s_object_shares_what_is_no_part_of_it(make: Any) -> None:
    module = NotCallable(Scratch())
    module.other = other = make(module)  # type: ignore[attr-defined]
    twin = copied(module.collate).__self__
    assert twin is not module
    assert twin.helper is not module.helper
    if make is not Refuses and type(other).__name__ != "range_iterator":
        assert twin.other is other


def test_a_method_of_the_loader_itself_is_that_of_the_loader(spawn: Spawn) -> None:
    class Own(ThreadLoader[Any]):
        def __init__(self, dataset: Any, **arguments: Any) -> None:
            super().__init__(dataset, **arguments)
            self.collate_fn = self.collate

        def collate(self, samples: Any) -> Any:
            return self, samples

    with Own(range(2), num_workers=2) as loader:
        assert spawn(list, loader).result(PATIENCE) == [(loader, [0]), (loader, [1])]


def test_variables_that_closures_have_in_common_stay_in_common(spawn: Spawn) -> None:
    def make(collator: Any) -> Any:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return count

        def collate(samples: Any) -> Any:
            assert step() == count
            return collator(samples)

        return collate

    got = load(range(3), make(list), spawn, num_workers=1)
    assert got == NUMBERS[:3]
    Meeting.barrier, before = Barrier(1), Meeting.barrier
    try:
        assert load(range(3), make(Collator()), spawn, num_workers=1) == NUMBERS[:3]
    finally:
        Meeting.barrier = before


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
    assert twin.trainer is module.trainer
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
