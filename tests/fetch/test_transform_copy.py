"""Each worker has its own transforms: the parameters that one keeps are those of its sample."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Self

import pytest
from support.worker_copies import (
    SHIFTED,
    THREADS,
    Compose,
    Mapped,
    Meeting,
    auto_copy,
    racing_transform,
    together,
)
from support.workers import join_workers

if TYPE_CHECKING:
    from collections.abc import Callable


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


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_transforms_in_a_container_on_a_transform_are_copied(
    container: Callable[[Any, Any], Any],
) -> None:
    compose = Compose(container(abs, racing_transform()))
    assert together(Mapped(compose)) == SHIFTED


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_transforms_in_a_container_on_the_dataset_are_copied(
    container: Callable[[Any, Any], Any],
) -> None:
    class Listed(Mapped):
        def __getitem__(self, index: int) -> Any:
            return Compose(self.transform)(index)

    assert together(Listed(container(Compose([]), racing_transform()))) == SHIFTED


class Sealed(dict[str, Any]):
    """A mapping that nothing can be written into."""

    def __setitem__(self, key: str, value: Any) -> None:
        msg = "sealed"
        raise TypeError(msg)


class Couple(tuple[Any, ...]):
    """A tuple that is made of two arguments."""

    __slots__ = ()

    def __new__(cls, first: Any, second: Any) -> Self:
        return super().__new__(cls, (first, second))


@pytest.mark.parametrize(
    "container", [Sealed(a=Compose([])), Couple(abs, Compose([]))], ids=["sealed", "couple"]
)
@pytest.mark.parametrize("on", [Mapped, Compose], ids=["dataset", "transform"])
def test_a_container_that_cannot_be_made_anew_is_no_error(container: Any, on: Any) -> None:
    holder = on(float if on is Mapped else [])
    holder.extra = container
    dataset = holder if on is Mapped else Mapped(Compose([holder]))
    assert together(dataset) == [0, 1, 2, 3]


class Offsets(list[int]):
    """A transform that is a list."""

    def __init__(self, inner: Any) -> None:
        super().__init__([1, -1])
        self.inner = inner

    def __call__(self, value: int) -> int:
        return self.inner(value) + sum(self)


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


class ReadOnly:
    def __init__(self, inner: Any) -> None:
        self.__dict__["inner"] = inner

    @property
    def inner(self) -> Any:
        return self.__dict__["inner"]

    def __call__(self, value: int) -> int:
        return self.inner(value)


def apply(transform: Any, value: int, *, after: Any) -> int:
    return after(transform(value))


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "a list": Offsets,
    "on a plain object": Outer,
    "frozen dataclass": Frozen,
    "frozen dataclass with slots": FrozenSlots,
    "private slot": PrivateSlot,
    "read-only property": ReadOnly,
    "bound method": lambda inner: inner.__call__,
    "partial": lambda inner: functools.partial(apply, inner, after=Compose([int])),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_what_a_transform_holds_is_copied(holder: Callable[[Any], Any]) -> None:
    assert together(Mapped(holder(racing_transform()))) == SHIFTED


def test_transforms_as_torchvision_nests_them_are_copied() -> None:
    class StandardTransform:
        def __init__(self, transform: Any, target_transform: Any) -> None:
            self.transform = transform
            self.target_transform = target_transform

        def __call__(self, value: int, target: int) -> tuple[Any, Any]:
            return self.transform(value), self.target_transform(target)

    class Folder:
        def __init__(self, transform: Any, target_transform: Any) -> None:
            self.transform = transform
            self.target_transform = target_transform
            self.transforms = StandardTransform(transform, target_transform)
            self.loader = int
            self.samples = [(index, index) for index in range(THREADS)]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            path, target = self.samples[index]
            return sum(self.transforms(self.loader(path), target))

    dataset = Folder(racing_transform(), float)
    assert together(dataset) == [0, 12, 24, 36]
    twin = auto_copy(dataset)
    assert twin.transforms.transform is twin.transform
    assert twin.samples is dataset.samples


def _parametrised(amount: int) -> type:
    """Return a base whose instances race in `apply` on the attribute ``amount``."""
    drawn = Meeting()

    class Applies:
        __slots__ = ()

        def __call__(self, value: int) -> int:
            object.__setattr__(self, "amount", amount * value)
            drawn.wait()
            return value + self.amount  # type: ignore[attr-defined]

    return Applies


def test_a_transform_with_slots_only_is_copied() -> None:
    class Slotted(_parametrised(10)):  # type: ignore[misc]
        __slots__ = ("amount",)

    assert together(Mapped(Slotted())) == SHIFTED


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


@pytest.mark.filterwarnings("ignore:all workers share")
def test_a_transform_that_frees_a_number_when_it_dies_frees_it_once() -> None:
    freed: list[int] = []

    class Decoder:
        def __init__(self) -> None:
            self.pointer = 1234

        def __call__(self, value: int) -> int:
            return value

        def __del__(self) -> None:
            freed.append(self.pointer)

    dataset = Mapped(Decoder())
    together(dataset)
    join_workers()
    del dataset
    assert freed == [1234]


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


def test_a_module_as_a_transform_is_copied_and_shares_its_parameters() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    twin = auto_copy(Mapped(module)).transform
    assert twin is not module
    assert twin[0] is not module[0]
    assert twin[0].weight is module[0].weight
    assert twin[1].running_mean is module[1].running_mean


def test_a_scripted_module_is_a_transform() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "jit"):
        pytest.skip("this torch has no scripts")
    module = torch.jit.trace(torch.nn.Identity(), torch.zeros(1))
    dataset = Mapped(Compose([float, torch.tensor, module]))
    assert together(dataset) == [0, 1, 2, 3]
