"""What one worker's first sample has loaded is for all workers, if it is data."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from threadloader._fetch.dataset_copy import Copied, copy_dataset
from threadloader._fetch.loaded import changes, give, settled, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Lazy:
    """A dataset that loads something at its first sample."""

    data: Any = None

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self.load = load
        self.kept: dict[str, Any] = {}
        self.listed: list[Any] = [None, None]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if self.data is None:
            self.data = self.load(self)
        return index


class Slotted:
    __slots__ = ("__dict__", "data")

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self.load = load
        self.data = None

    __len__ = Lazy.__len__
    __getitem__ = Lazy.__getitem__


def loaded(dataset: Any, *, originals: bool = False, samples: int = 1) -> tuple[Any, Any]:
    """Return a worker's dataset after its first samples, and another worker's."""
    one = Copied()
    other = Copied()
    first, second = copy_dataset(dataset, "auto", one), copy_dataset(dataset, "auto", other)
    first = dataset if originals else first
    before = snapshot(one, originals=originals)
    first[0]
    found = changes(before)
    for index in range(1, samples):
        first[index]
    give(settled(found), other)
    return first, second


class Table:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


DATA: dict[str, Callable[[Any], Any]] = {
    "array": lambda _: np.ones(5),
    "list": lambda _: ["a", "b"],
    "table": lambda _: Table({"a": np.ones(3)}, [1, 2], np.float32),
    "marker": lambda _: object(),
    "many": lambda _: dict.fromkeys(range(10_000), "text"),
    "with a lock": lambda _: Table(threading.Lock(), np.ones(3)),
    "function": lambda _: lambda: np.ones(3),
}


@pytest.mark.parametrize("load", DATA.values(), ids=DATA)
@pytest.mark.parametrize("originals", [False, True])
@pytest.mark.parametrize("kind", [Lazy, Slotted])
def test_data_is_given(kind: Any, load: Any, originals: bool) -> None:
    first, second = loaded(kind(load), originals=originals)
    assert second.data is first.data is not None


class Descriptor:
    def __init__(self) -> None:
        self.fd = 3


class Closing:
    def __del__(self) -> None:
        """Close something."""


HANDLES: dict[str, Callable[[Any], Any]] = {
    "file": lambda _: open(__file__, "rb", buffering=0),  # noqa: PTH123, SIM115
    "table with a generator": lambda _: Table(n for n in [1]),
    "iterator": lambda _: iter([1]),
    "generator": lambda _: np.random.default_rng(),
    "python generator": lambda _: random.Random(3),
    "file descriptor": lambda _: Descriptor(),
    "closes": lambda _: Closing(),
    "what leads back": lambda dataset: Table(dataset),  # noqa: PLW0108
    "method": lambda dataset: dataset.__getitem__,
    "number": lambda _: 17,
    "list of files": lambda _: [open(__file__, "rb")],  # noqa: PTH123, SIM115
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("load", HANDLES.values(), ids=HANDLES)
@pytest.mark.parametrize("originals", [False, True])
def test_a_handle_is_not_given(load: Any, originals: bool) -> None:
    first, second = loaded(Lazy(load), originals=originals)
    assert first.data is not None
    assert second.data is None


def test_what_the_other_worker_has_changed_is_left_alone() -> None:
    one = Copied()
    other = Copied()
    dataset = Lazy(lambda _: np.ones(3))
    first, second = copy_dataset(dataset, "auto", one), copy_dataset(dataset, "auto", other)
    before = snapshot(one)
    first[0]
    own = second.data = np.zeros(3)
    give(changes(before), other)
    assert second.data is own


def test_scratch_memory_is_each_workers_own() -> None:
    class Scratch(Lazy):
        def __getitem__(self, index: int) -> Any:
            if self.data is None:
                self.data = np.zeros(4)
            self.data[:] = index
            return self.data.copy()

    _, second = loaded(Scratch(None), samples=2)  # type: ignore[arg-type]
    assert second.data is None


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dict_of_handles_is_each_workers_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    class Keeps(Lazy):
        def __getitem__(self, index: int) -> Any:
            self.kept["file"] = path.open("rb")
            self.listed[0] = path.open("rb")

    first, second = loaded(Keeps(None))  # type: ignore[arg-type]
    assert second.kept == {}
    assert second.listed == [None, None]
    assert first.kept is not second.kept


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_is_opened_with_the_data_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    class Opens(Lazy):
        def __getitem__(self, index: int) -> Any:
            if self.data is None:
                self.data = np.ones(3)
                self.file = path.open("rb")
                self.rows = 3

    first, second = loaded(Opens(None))  # type: ignore[arg-type]
    assert second.data is first.data
    assert second.file is not first.file
    assert second.file.name == first.file.name
    assert second.rows == 3


def test_what_cannot_be_opened_again_is_opened_by_each_with_its_data() -> None:
    class Opens(Lazy):
        def __getitem__(self, index: int) -> Any:
            if self.data is None:
                self.data = np.ones(3)
                self.iterator = (number for number in self.data)

    _, second = loaded(Opens(None))  # type: ignore[arg-type]
    assert second.data is None
    assert not hasattr(second, "iterator")


def test_a_cache_stays_one_for_all() -> None:
    class Caches(Lazy):
        def __getitem__(self, index: int) -> Any:
            self.kept[index] = np.ones(3)
            self.listed.append(open(__file__, "rb").close())  # noqa: PTH123

    first, second = loaded(Caches(None))  # type: ignore[arg-type]
    assert first.kept is second.kept
    assert first.listed is second.listed
