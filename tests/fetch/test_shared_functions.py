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
    Holder,
    Meeting,
    NotCallable,
    Scratch,
    call,
    default,
    load,
)
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._fetch.dataset_copy import Copied, copy_function

if TYPE_CHECKING:
    from support.patience import Spawn


def copied(function: Any, how: Any = "auto") -> Any:
    return copy_function(function, how, Copied())


def _plain(samples: Any) -> Any:
    return samples


def _collecting() -> Any:
    seen: list[Any] = []
    return lambda samples: seen.append(samples)  # noqa: PLW0108  # the same


@pytest.mark.parametrize(
    "function",
    [_plain, list, _collecting(), max, [].append, functools.lru_cache(_plain)],
    ids=["function", "class", "closure", "builtin", "builtin method", "cache"],
)
def test_a_function_that_has_nothing_of_its_own_is_the_same_in_all_workers(function: Any) -> None:
    assert copied(function) is function


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


def test_an_object_that_leads_to_very_much_is_shared() -> None:
    module = NotCallable()
    module.helper = index = Scratch()
    index.samples = [[number] for number in range(500)]
    assert copied(module.collate).__self__.helper is index


def test_a_function_that_cannot_be_copied_is_shared() -> None:
    class Fails(Refuses):
        def __call__(self, samples: Any) -> Any:
            return samples

    function = Fails()
    assert copied(function) is function


def test_a_long_chain_of_objects_is_no_error() -> None:
    chain: Any = Holder(None)
    for _ in range(5000):
        chain = Holder(chain)
    assert type(copied(chain)) is Holder
    assert type(copied(chain.collate).__self__) is Holder


def test_deep_copies_the_data_of_an_object_too() -> None:
    holder = Holder([list(range(5000))])
    assert copied(holder).helper[0] is holder.helper[0]
    assert copied(holder, "deep").helper[0] is not holder.helper[0]


def test_an_error_of_a_deep_copy_that_was_asked_for_reaches_the_caller() -> None:
    class Undeepable(Collator):
        def __deepcopy__(self, memo: object) -> Any:
            msg = "not to be copied"
            raise BufferError(msg)

    loader = ThreadLoader(range(3), collate_fn=Undeepable(), num_workers=1, dataset_copy="deep")
    with pytest.raises(BufferError, match="not to be copied"):
        iter(loader)


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


def test_a_copied_function_looks_like_the_original() -> None:
    function = default(Collator())
    function.attribute = 3
    twin = copied(function)
    assert twin is not function
    for name in ("__name__", "__qualname__", "__module__", "__code__", "attribute"):
        assert getattr(twin, name) == getattr(function, name)


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
