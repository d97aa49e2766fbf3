"""Wherever a dataset or a collate function keeps what it works on, each worker has its own."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import functools
import io
import operator
import pathlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.in_workers import MANY_ROWS, ROWS, THREADS, in_workers

from threadloader import ThreadLoader

Style = tuple[Callable[[Any, int], object], Callable[[Any], Any]]  # how to write, and to read
BEFORE = 99  # what the user's object says before there are samples

# Classes of what is kept


class Helper:
    now: Any
    inner: Any

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def put(self, value: int) -> None:
        self.now = value

    def get(self) -> Any:
        return self.now

    def read(self, value: int) -> int:
        self.now = value
        return value

    @contextlib.contextmanager
    def working(self, value: int) -> Iterator[None]:
        self.now = value
        yield

    def __call__(self, value: int) -> None:
        self.now = value


class Slots:
    __slots__ = ("__weakref__", "now")


class Child(Slots):
    __slots__ = ("other",)


class Tricks:
    """Answers for names that it has not."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        object.__setattr__(self, "_parts", {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._parts[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._parts[name] = value


class Field:
    """A descriptor that keeps the values of all owners."""

    def __init__(self) -> None:
        self.values: Any = weakref.WeakKeyDictionary()

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        return self.values[owner]

    def __set__(self, owner: Any, value: int) -> None:
        self.values[owner] = value


class Described:
    now = Field()


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    box: Any = dataclasses.field(default_factory=lambda: [None])


def subclass(of: Any) -> Any:
    return type(of.__name__.title(), (of,), {"__module__": __name__})


List, Tuple, Dict, Bytes, Array, Failure = map(
    subclass, (list, tuple, dict, bytearray, np.ndarray, RuntimeError)
)
Deque, Partial = map(subclass, (collections.deque, functools.partial))
Route: Any = type("Route", (type(pathlib.Path()),), {"__module__": __name__})


class Struct(ctypes.Structure):
    _fields_ = (("now", ctypes.c_int),)


# How to write and to read


def attribute(name: str = "now") -> Style:
    return lambda o, i: setattr(o, name, i), operator.attrgetter(name)


def item(key: Any = 0) -> Style:
    return lambda o, i: operator.setitem(o, key, i), operator.itemgetter(key)


def inside(path: Callable[[Any], Any], style: Style) -> Style:
    return lambda o, i: style[0](path(o), i), lambda o: style[1](path(o))


def through(path: Callable[[Any], Any]) -> Style:
    """Write by an object that leads to the helper, and read from the helper."""
    return lambda o, i: setattr(path(o), "now", i), lambda o: o.inner.now


NOW, FIRST = attribute(), item()


def write(what: Any, value: int) -> None:
    what.seek(0)
    what.write(bytes([value]))


# Places that take some lines to make


def beside(make: Callable[[Any], Any]) -> Callable[[], Any]:
    def made() -> Any:
        return Helper(inner=(helper := Helper()), way=make(helper))

    return made


def bound(box: Any, name: str) -> Any:
    return Helper(put=getattr(box, name), box=box)


def cached_method() -> Any:
    helper = Helper()
    helper.inner = functools.lru_cache(64)(helper.read)
    return helper


def of_a_field() -> Any:
    field = Field()
    helper = Helper(field=field)
    field.values[helper] = None
    return helper


def tensors() -> Any:
    return pytest.importorskip("torch").zeros(3, dtype=int)


def array_and_tensor() -> Any:
    tensor = tensors()
    return Helper(row=tensor.numpy(), inner=tensor)


def subclass_of_tensor() -> Any:
    class Sub(pytest.importorskip("torch").Tensor):  # type: ignore[misc]
        pass

    return tensors().as_subclass(Sub)


def module(with_buffer: bool) -> Callable[[], Any]:
    def made() -> Any:
        nn = pytest.importorskip("torch").nn
        drops = nn.Sequential(nn.Dropout(), nn.Identity())
        if with_buffer:
            drops[1].register_buffer("now", tensors())
        return drops

    return made


# Beside the kinds of objects in any graph, see test_own_property.py.
PLACES: dict[str, tuple[Callable[[], Any], Style]] = {
    "slot of a base": (Child, NOW),
    "slots and __getattr__": (Tricks, NOW),
    "descriptor of the class": (Described, NOW),
    "descriptor of the object": (
        of_a_field,
        (lambda o, i: o.field.__set__(o, i), lambda o: o.field.values[o]),
    ),
    "frozen dataclass with slots": (FrozenSlots, inside(lambda o: o.box, FIRST)),
    "exception": (Failure, NOW),
    "context of a generator": (Helper, (lambda o, i: o.working(i).__enter__(), NOW[1])),
    "factory of a defaultdict": (
        lambda: collections.defaultdict(Helper()),
        inside(lambda o: o.default_factory, NOW),
    ),
    "attribute of a tuple": (Tuple, NOW),
    "attribute of a list": (List, NOW),
    "attribute of a path": (lambda: Route("a"), NOW),
    "attribute of a dict": (Dict, NOW),
    "attribute of a deque": (Deque, NOW),
    "attribute of a partial": (lambda: Partial(int), NOW),
    "one of 1,001 helpers": (lambda: [Helper() for _ in range(1001)], inside(item(1000)[1], NOW)),
    "one of 1,500 that hold arrays": (
        lambda: [Helper(row=np.zeros(3)) for _ in range(1500)],
        inside(item(9)[1], NOW),
    ),
    "one of three large ones": (
        lambda: [Helper(row=np.zeros(1 << 19)) for _ in range(3)],
        inside(item(1)[1], NOW),
    ),
    "one of 1,001 short lists": (lambda: [[None] for _ in range(1001)], inside(item(9)[1], FIRST)),
    "one of 5,000 numbers": (lambda: [0] * 5000, FIRST),
    "attribute of a function": (lambda: lambda: None, NOW),
    "dict.__setitem__": (
        lambda: bound({}, "__setitem__"),
        (lambda o, i: o.put("k", i), lambda o: o.box["k"]),
    ),
    "dict.get": (
        lambda: bound({"k": [None]}, "get"),
        (lambda o, i: FIRST[0](o.put("k"), i), lambda o: o.box["k"][0]),
    ),
    "BytesIO.write": (
        lambda: bound(io.BytesIO(), "write"),
        (lambda o, i: o.put(bytes([i])), lambda o: o.box.getvalue()[-1]),
    ),
    "cached method": (cached_method, (lambda o, i: o.inner(i), NOW[1])),
    "weakref.proxy": (beside(weakref.proxy), through(lambda o: o.way)),
    "attribute of a bytearray": (lambda: Bytes(3), NOW),
    "memoryview": (lambda: memoryview(bytearray(3)), FIRST),
    "BytesIO": (io.BytesIO, (write, lambda o: o.getvalue()[0])),
    "ctypes.Structure": (Struct, NOW),
    "ctypes.Array": (ctypes.c_int * 3, FIRST),
    "array of 64 KiB": (lambda: np.zeros((64, 256), np.int32), item((1, 2))),
    "array of a bytearray": (lambda: np.frombuffer(bytearray(8), np.uint8), FIRST),
    "record of a structured array": (
        lambda: np.zeros(2, [("k", "i4"), ("j", "f8")]),
        inside(lambda o: o["k"], FIRST),
    ),
    "masked array": (lambda: np.ma.zeros(3, np.int32), FIRST),
    "attribute of an array": (lambda: np.zeros(3, np.int32).view(Array), NOW),
    "tensor": (tensors, FIRST),
    "array under a tensor": (
        array_and_tensor,
        (lambda o, i: FIRST[0](o.row, i), lambda o: FIRST[1](o.inner)),
    ),
    "attribute of a tensor": (subclass_of_tensor, NOW),
    "buffer of a module": (module(with_buffer=True), inside(lambda o: o[1].now, FIRST)),
    "attribute of a module": (module(with_buffer=False), inside(lambda o: o[1], NOW)),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[Any, Callable[[Any, int], object], Any]:
    make, (put, get) = PLACES[request.param]
    what = make()
    put(what, BEFORE)
    return what, put, lambda what: int(get(what))


@pytest.mark.parametrize("where", ["dataset", "collate_fn"])
@pytest.mark.parametrize("threads", [THREADS, None])
def test_samples_do_not_mix_and_the_users_object_is_as_before(
    place: Any, where: str, threads: int | None
) -> None:
    what, put, get = place
    found = in_workers(what, get, put, threads, where)
    assert found == list(range(MANY_ROWS if threads is None else ROWS))
    assert get(what) == BEFORE


@pytest.mark.parametrize("where", ["dataset", "collate_fn"])
def test_without_workers_samples_write_to_the_users_object(place: Any, where: str) -> None:
    what, put, get = place
    assert in_workers(what, get, put, 0, where) == list(range(ROWS))
    assert get(what) == ROWS - 1


class Trains:
    """A dataset whose method is the collate function."""

    def __len__(self) -> int:
        return MANY_ROWS

    def __getitem__(self, _: int) -> Any:
        return self

    def collate(self, samples: list[Any]) -> Any:
        return self, samples


BOUND: dict[str, Callable[[Any], Any]] = {
    "method": lambda data: data.collate,
    "partial": lambda data: functools.partial(data.collate),
    "lambda": lambda data: lambda samples: data.collate(samples),  # noqa: PLW0108  # the same
}


@pytest.mark.parametrize("bind", BOUND.values(), ids=BOUND)
@pytest.mark.parametrize("how", ["auto", "deep"])
@pytest.mark.parametrize("threads", [0, 1, THREADS, None])
def test_a_method_as_collate_function_has_the_dataset_of_its_worker(
    threads: int | None, how: Any, bind: Callable[[Any], Any]
) -> None:
    data = Trains()
    options: dict[str, Any] = {"threads": threads, "dataset_copy": how}
    with ThreadLoader(data, 4, collate_fn=bind(data), **options) as loader:
        batches = list(loader)
    assert {own for own, _ in batches} <= {own for _, samples in batches for own in samples}
    assert (batches[0][0] is data) == (threads == 0)
