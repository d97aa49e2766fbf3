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


@each_kind
@pytest.mark.parametrize("how", ["deep", lambda dataset: dataset], ids=["deep", "callable"])
def test_a_worker_s_scratch_state_is_its_own_however_datasets_are_copied(
    how: Any, kind: Any, spawn: Spawn
) -> None:
    assert load(range(THREADS), kind(), spawn, dataset_copy=how) == NUMBERS


@each_kind
def test_without_threads_the_function_itself_is_called(kind: Any, spawn: Spawn) -> None:
    Meeting.barrier, before = Barrier(1), Meeting.barrier
    try:
        function = kind()
        assert load(range(THREADS), function, spawn, num_workers=0, prefetch=None) == NUMBERS
    finally:
        Meeting.barrier = before


class Replica(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        yield get_worker_info().id


@each_kind
def test_scratch_state_is_a_replica_s_own(kind: Any, spawn: Spawn) -> None:
    assert load(Replica(), kind(), spawn) == NUMBERS


@each_kind
def test_scratch_state_is_its_own_where_samples_are_not_collated(kind: Any, spawn: Spawn) -> None:
    assert load(range(THREADS), kind(), spawn, batch_size=None) == list(range(THREADS))


@each_kind
@pytest.mark.parametrize("iterable", [lambda: range(3), lambda: iter(range(3))], ids=["it", "once"])
def test_scratch_state_is_its_own_behind_a_transform(
    iterable: Any, kind: Any, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meeting, "barrier", Barrier(THREADS - 1))  # one reads

    class Rows:
        def __iter__(self) -> Iterator[int]:
            return iter(iterable())

    assert load(Rows(), kind(), spawn, transform=int) == NUMBERS[: THREADS - 1]


@each_kind
def test_a_transform_of_a_plain_iterable_is_each_thread_s_own(
    kind: Any, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meeting, "barrier", Barrier(THREADS - 1))
    got = load(iter(range(3)), list, spawn, transform=kind())
    assert got == NUMBERS[: THREADS - 1]


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


def test_a_method_of_a_dataset_that_a_function_copies_is_that_of_the_copy(spawn: Spawn) -> None:
    made: list[Collating] = []

    def make(_: Any) -> Collating:
        made.append(Collating())
        return made[-1]

    dataset = Collating()
    assert load(dataset, dataset.collate, spawn, dataset_copy=make) == NUMBERS
    assert len(made) == THREADS
    assert all(vars(copy.inner) for copy in made)


def test_a_method_of_an_iterable_dataset_is_that_of_its_replica(spawn: Spawn) -> None:
    class Own(Replica):
        def __init__(self) -> None:
            self.inner = Collator()

        def collate(self, samples: Any) -> Any:
            assert get_worker_info().dataset is self
            return self.inner(samples)

    dataset = Own()
    assert load(dataset, dataset.collate, spawn) == NUMBERS


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


def test_each_iterator_begins_with_copies_of_what_the_function_is_then(spawn: Spawn) -> None:
    counts = Counts()
    with ThreadLoader(range(3), collate_fn=counts, num_workers=1) as loader:
        for start in (0, 0, 10):
            counts.count = start
            assert spawn(list, loader).result(PATIENCE) == [start + 1, start + 2, start + 3]
    assert counts.count == 10


def test_persistent_workers_keep_their_copies(spawn: Spawn) -> None:
    counts = Counts()
    with ThreadLoader(
        range(3), collate_fn=counts, num_workers=1, persistent_workers=True
    ) as loader:
        assert spawn(list, loader).result(PATIENCE) == [1, 2, 3]
        assert spawn(list, loader).result(PATIENCE) == [4, 5, 6]
    assert counts.count == 0


def test_a_function_that_is_exchanged_between_epochs_of_persistent_workers_is_copied(
    spawn: Spawn,
) -> None:
    first, second = Counts(), Counts(10)
    with ThreadLoader(range(3), collate_fn=first, num_workers=1, persistent_workers=True) as loader:
        assert spawn(list, loader).result(PATIENCE) == [1, 2, 3]
        loader.collate_fn = second
        assert spawn(list, loader).result(PATIENCE) == [11, 12, 13]
    assert (first.count, second.count) == (0, 10)


def test_without_threads_a_function_goes_on_counting(spawn: Spawn) -> None:
    counts = Counts()
    loader = ThreadLoader(range(3), collate_fn=counts, num_workers=0)
    assert spawn(list, loader).result(PATIENCE) == [1, 2, 3]
    assert spawn(list, loader).result(PATIENCE) == [4, 5, 6]


def test_what_is_set_during_an_epoch_is_not_seen_in_it(spawn: Spawn) -> None:
    counts = Counts()
    with ThreadLoader(range(3), collate_fn=counts, num_workers=1) as loader:
        batches = iter(loader)
        counts.count = 100
        assert spawn(list, batches).result(PATIENCE) == [1, 2, 3]
