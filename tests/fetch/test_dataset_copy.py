"""One copy of the dataset a worker: state on ``self`` is each worker's own, data is shared."""

from __future__ import annotations

import collections
import dataclasses
import functools
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn
from support.worker_copies import (
    SHIFTED,
    THREADS,
    Compose,
    Mapped,
    auto_copy,
    racing_transform,
    together,
)
from support.workers import join_workers

from threadloader import ThreadLoader

# What datasets do with handles


def test_what_closes_its_file_when_it_dies_stays_open_in_every_epoch() -> None:
    class Reader:
        def __init__(self) -> None:
            self.file = Path(__file__).open("rb")  # noqa: SIM115

        def __del__(self) -> None:
            self.file.close()

    class Closes(Reader, Mapped):
        def __init__(self) -> None:
            super().__init__()
            self.transform, self.size, self.reader = float, THREADS, Reader()

    dataset = Closes()
    for _ in range(2):
        together(dataset)
    assert not dataset.file.closed
    assert not dataset.reader.file.closed


@pytest.mark.filterwarnings("ignore:all workers share")
def test_a_dataset_that_frees_a_number_when_it_dies_frees_it_once() -> None:
    """A file descriptor, or a pointer of a C library."""
    freed: list[int] = []

    class Native(Mapped):
        def __init__(self) -> None:
            super().__init__(float)
            self.pointer = 1234

        def __del__(self) -> None:
            freed.append(self.pointer)

    dataset = Native()
    together(dataset)
    join_workers()
    del dataset
    assert freed == [1234]


# What refuses to be copied


@pytest.mark.parametrize("name", ["__copy__", "__deepcopy__", "__reduce_ex__", "__getstate__"])
def test_what_a_class_says_of_copies_does_not_count(name: str) -> None:
    def refuse(*_: object) -> None:
        msg = "not to be copied"
        raise TypeError(msg)

    racing = racing_transform()
    kind = type("Refuses", (type(racing),), {name: refuse})
    assert together(Mapped(kind())) == SHIFTED


# What is shared


def _shared_parts() -> dict[str, Any]:
    return {
        "array": np.zeros(1 << 18),
        "array that nobody can write": np.frombuffer(b"12345678", np.uint8),
        "big list": list(range(20_000)),
        "big dict": dict.fromkeys(range(20_000)),
        "big set": set(range(20_000)),
        "lists in a list": [list(range(9000)) for _ in range(3)],
        "function": auto_copy,
        "class": Mapped,
        "module": np,
        "text": "text" * 100,
        "lock": threading.Lock(),
        "reentrant lock": threading.RLock(),
        "condition": threading.Condition(),
        "semaphore": threading.BoundedSemaphore(2),
        "event": threading.Event(),
        "barrier": threading.Barrier(2),
        "thread-local": threading.local(),
        "queue": queue.Queue(),
        "cache": functools.lru_cache(maxsize=3)(abs),
    }


class Tells(Mapped):
    """Samples are what the worker's dataset and transform have."""

    part: Any = None

    def __getitem__(self, index: int) -> Any:
        return id(self.part), id(self.transform.part)


@pytest.mark.filterwarnings("ignore:all workers share")
@pytest.mark.parametrize("name", list(_shared_parts()))
def test_a_dataset_and_a_transform_share(name: str) -> None:
    part = _shared_parts()[name]
    dataset, transform = Tells(Compose([])), Compose([])
    dataset.transform, dataset.part, transform.part = transform, part, part  # type: ignore[attr-defined]
    assert ids_of(dataset) == {(id(part), id(part))}


def ids_of(dataset: Any) -> set[Any]:
    """Return what all workers have, each of which loads a sample."""
    with ThreadLoader(dataset, None, threads=THREADS, collate_fn=tuple) as loader:
        return set(loader)


def test_tensors_are_shared() -> None:
    torch = pytest.importorskip("torch")
    dataset = Tells(Compose([]))
    dataset.part = dataset.transform.part = torch.arange(1 << 18)
    assert ids_of(dataset) == {(id(dataset.part), id(dataset.part))}


def test_a_transform_that_is_shared_mixes_up_its_samples() -> None:
    """The race that the copies prevent; else the tests below could not fail."""
    dataset = Mapped(racing_transform(first=0))  # shared, none is the first
    assert together(dataset, first=0, dataset_copy="shared") != SHIFTED


Pair = collections.namedtuple("Pair", ["first", "second"])  # noqa: PYI024  # as users write it

CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda *parts: list(parts),
    "tuple": lambda *parts: parts,
    "dict": lambda *parts: dict(zip("ab", parts, strict=True)),
    "set": lambda *parts: set(parts),
    "nested": lambda *parts: [Compose([Compose(parts)])],
    "named tuple": Pair,
    "ordered dict": lambda *parts: collections.OrderedDict(zip("ab", parts, strict=True)),
    "default dict": lambda *parts: collections.defaultdict(list, zip("ab", parts, strict=True)),
    "deque": lambda *parts: collections.deque(parts),
}


class Listed(Mapped):
    """Has its transforms in a container."""

    def __getitem__(self, index: int) -> Any:
        return Compose(self.transform)(index)


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("of", [Listed, lambda parts: Mapped(Compose(parts))], ids=["own", "inner"])
def test_transforms_in_a_container_are_copied(
    of: Callable[[Any], Any], container: Callable[[Any, Any], Any]
) -> None:
    assert together(of(container(Compose([]), racing_transform()))) == SHIFTED


class Outer:
    """Has its transform on a plain object."""

    def __init__(self, inner: Any) -> None:
        self.holder = type("Holder", (), {})()
        self.holder.inner = inner

    def __call__(self, value: int) -> int:
        return self.holder.inner(value)


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Any

    def __call__(self, value: int) -> int:
        return self.inner(value)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    inner: Any

    def __call__(self, value: int) -> int:
        return self.inner(value)


class PrivateSlot:
    __slots__ = ("__inner",)

    def __init__(self, inner: Any) -> None:
        self.__inner = inner

    def __call__(self, value: int) -> int:
        return self.__inner(value)


def apply(transform: Any, value: int, *, after: Any) -> int:
    return after(transform(value))


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "on a plain object": Outer,
    "frozen dataclass": Frozen,
    "frozen dataclass with slots": FrozenSlots,
    "private slot": PrivateSlot,
    "bound method": lambda inner: inner.__call__,
    "partial": lambda inner: functools.partial(apply, inner, after=Compose([int])),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_what_a_transform_holds_is_copied(holder: Callable[[Any], Any]) -> None:
    assert together(Mapped(holder(racing_transform()))) == SHIFTED


def test_bound_methods_on_self_are_bound_to_the_copy() -> None:
    class Bound:
        def __init__(self) -> None:
            self.transform = racing_transform()
            self.load = self._load
            self.by_kind = {"plain": self._load}

        def __len__(self) -> int:
            return THREADS

        def __getitem__(self, index: int) -> int:
            return self.load(index)

        def _load(self, index: int) -> int:
            return self.transform(index)

    dataset = Bound()
    assert together(dataset) == SHIFTED
    twin = auto_copy(dataset)
    assert twin.load.__self__ is twin
    assert twin.by_kind["plain"].__self__ is twin
    assert dataset.load.__self__ is dataset


# Cycles


def test_a_dataset_that_its_transform_refers_to_is_copied_once() -> None:
    class Knows:
        dataset: Any = None

        def __call__(self, value: int) -> int:
            return value * len(self.dataset)

    dataset = Mapped(Knows())
    dataset.transform.dataset = dataset
    twin = auto_copy(dataset)
    assert twin.transform.dataset is twin
    assert together(dataset) == [0, 4, 8, 12]


@pytest.mark.parametrize("kind", [list, dict])
def test_a_container_that_contains_itself_is_copied_once(kind: type) -> None:
    parts: Any = kind()
    if kind is list:
        parts += [racing_transform(), parts]
    else:
        parts.update({0: racing_transform(), 1: parts})
    twin = auto_copy(Mapped(Compose(parts))).transform.transforms
    assert twin[1] is twin
    assert twin is not parts


def test_a_long_chain_of_objects_is_no_error() -> None:
    class Link:
        def __init__(self, following: Any) -> None:
            self.following = following

        def __call__(self, value: int) -> int:
            return value

    chain = None
    for _ in range(5000):
        chain = Link(chain)
    assert together(Mapped(chain)) == [0, 1, 2, 3]


# Modules of torch's


def test_a_scripted_module_is_a_transform() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "jit"):
        pytest.skip("this torch has no scripts")
    module = torch.jit.trace(torch.nn.Identity(), torch.zeros(1))
    dataset = Mapped(Compose([float, torch.tensor, module]))
    assert together(dataset) == [0, 1, 2, 3]


class Marked(Mapped):
    mark = "before"

    def __getitem__(self, index: int) -> Any:
        return self.mark


@pytest.mark.parametrize("how", ["auto", "deep"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_is_what_the_dataset_was_at_iter(threads: int, how: Any, spawn: Spawn) -> None:
    def load() -> None:
        dataset = Marked(None, 8)
        with ThreadLoader(
            dataset, 2, threads=threads, prefetch=1, collate_fn=list, dataset_copy=how
        ) as loader:
            batches = iter(loader)
            dataset.mark = "after"
            assert {mark for batch in batches for mark in batch} == {"before"}

    spawn(load).result(PATIENCE)
