"""Each worker has a collate function of its own: what it keeps on itself, no other worker sees."""

from __future__ import annotations

import functools
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
    meet,
)
from support.patience import PATIENCE

from threadloader import ThreadLoader, get_worker_info
from threadloader._torch import IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn


class Slotted:
    __slots__ = ("samples",)

    def __call__(self, samples: Any) -> Any:
        self.samples = samples
        meet()
        return self.samples


class Listing:
    """Has its scratch state in a list."""

    def __init__(self) -> None:
        self.buffer: list[Any] = []

    def collate(self, samples: Any) -> Any:
        self.buffer.clear()
        self.buffer.append(samples)
        meet()
        return self.buffer[-1]


def call_last(samples: Any, *, collator: Any) -> Any:
    return collator(samples)


def closure(collator: Any) -> Any:
    def collate(samples: Any) -> Any:
        return collator(samples)

    return collate


def two_closures(collator: Any) -> Any:
    def inner(samples: Any) -> Any:
        return collator(samples)

    def outer(samples: Any) -> Any:
        assert inner is not None
        return inner(samples)

    return outer


def recursive(collator: Any) -> Any:
    def collate(samples: Any, *, deep: int = 0) -> Any:
        return collator(samples) if deep else collate(samples, deep=1)

    return collate


def containers(collator: Any) -> Any:
    listed, named = [collator], {"it": collator}

    def collate(samples: Any) -> Any:
        assert listed[0] is named["it"]
        return listed[0](samples)

    return collate


def keyword_default(collator: Any) -> Any:
    def collate(samples: Any, *, collator: Any = collator) -> Any:
        return collator(samples)

    return collate


KINDS: dict[str, Callable[[], Any]] = {
    "object": Collator,
    "object with slots": Slotted,
    "its __call__": lambda: Collator().__call__,
    "dataclass": lambda: Holder(Collator()),
    "object on an object": lambda: Holder(Holder(Scratch())),
    "method": lambda: Scratch().collate,
    "method with a helper": lambda: NotCallable(Scratch()).collate,
    "method with a callable": lambda: NotCallable(Collator()).collate,
    "method with a list": lambda: Listing().collate,
    "partial": lambda: functools.partial(call, Collator()),
    "partial by keyword": lambda: functools.partial(call_last, collator=Collator()),
    "partial of an object": lambda: functools.partial(Collator()),
    "partial of a method": lambda: functools.partial(NotCallable(Scratch()).collate),
    "partial of a partial": lambda: functools.partial(functools.partial(call, Collator())),
    "lambda of self": lambda: NotCallable().as_lambda(),
    "lambda of self with a helper": lambda: NotCallable(Scratch()).as_lambda(),
    "closure": lambda: closure(Collator()),
    "closure of a method": lambda: closure(NotCallable(Scratch()).collate),
    "closure of a closure": lambda: closure(two_closures(Collator())),
    "two closures": lambda: two_closures(Collator()),
    "closure that calls itself": lambda: recursive(Collator()),
    "closure of containers": lambda: containers(Collator()),
    "default": lambda: default(Collator()),
    "keyword default": lambda: keyword_default(Collator()),
    "wrapped": lambda: functools.wraps(call)(closure(Collator())),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_a_worker_s_scratch_state_is_its_own(kind: Any, spawn: Spawn) -> None:
    assert load(range(THREADS), kind(), spawn) == NUMBERS


@each_kind
def test_scratch_state_that_is_shared_mixes_up_batches(kind: Any, spawn: Spawn) -> None:
    """The race that the copies prevent; else the others could not fail."""
    assert load(range(THREADS), kind(), spawn, dataset_copy="shared") != NUMBERS


class Rows:
    """Iterable, read by one worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Replica(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        yield get_worker_info().id


ELSEWHERE: dict[str, tuple[Callable[[Any], dict[str, Any]], int]] = {  # and how many call it
    "deep": (lambda it: {"dataset": range(THREADS), "dataset_copy": "deep", "collate_fn": it}, 4),
    "copied by a function": (
        lambda it: {"dataset": range(THREADS), "dataset_copy": lambda x: x, "collate_fn": it},
        4,
    ),
    "replicas": (lambda it: {"dataset": Replica(), "collate_fn": it}, 4),
    "behind a transform": (lambda it: {"dataset": Rows(), "transform": int, "collate_fn": it}, 3),
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


@pytest.mark.parametrize("kind", ["object", "method with a helper", "closure", "partial"])
@pytest.mark.parametrize("where", ELSEWHERE)
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


# How long a copy lives


class Counts:
    """Numbers its batches, on purpose."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, _: Any) -> int:
        self.count += 1
        return self.count


def counted(loader: ThreadLoader[Any], spawn: Spawn) -> tuple[int, int]:
    """Return the least and the most that a copy has counted; there may be one or two."""
    told = spawn(list, loader).result(PATIENCE)
    return min(told), max(told)


def test_each_iterator_begins_with_copies_of_what_the_function_is_then(spawn: Spawn) -> None:
    counts = Counts()
    with ThreadLoader(range(3), collate_fn=counts, num_workers=1) as loader:
        for start in (0, 10, 20):
            counts.count = start
            least, most = counted(loader, spawn)
            assert least == start + 1
            assert most <= start + 3


def test_a_function_that_is_exchanged_between_epochs_of_persistent_workers_is_copied(
    spawn: Spawn,
) -> None:
    first, second = Counts(), Counts(10)
    with ThreadLoader(range(3), collate_fn=first, num_workers=1, persistent_workers=True) as loader:
        assert counted(loader, spawn)[0] == 1
        loader.collate_fn = second
        assert counted(loader, spawn)[0] == 11
