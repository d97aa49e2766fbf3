"""One copy of the dataset a worker: state on ``self`` is each worker's own, data is shared."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import queue
import random
import threading
from threading import Barrier, current_thread
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._fetch.dataset_copy import copy_dataset

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator
    from pathlib import Path

THREADS = 4


def _together(dataset: Any, **options: Any) -> list[Any]:
    """Load one batch, each row of which is loaded by a thread of its own, all at once.

    Nothing is known of the time that a sample takes, so every ticket has one row; and no thread
    can take a second one, because the samples wait for each other at a barrier.
    """
    with ThreadLoader(dataset, batch_size=THREADS, threads=THREADS, **options) as loader:
        return [row for batch in loader for row in np.asarray(batch).tolist()]


def join_workers() -> None:
    """Wait for threads that have ended their work: each knows its dataset until it is gone."""
    for thread in threading.enumerate():
        if "-worker-" in thread.name:
            thread.join()


def _auto(dataset: Any) -> Any:
    return copy_dataset(dataset, "auto")


class Mapped:
    """A dataset: numbers that go through a transform."""

    def __init__(self, transform: Any, size: int = THREADS) -> None:
        self.transform = transform
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


# A lazily opened file


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file with the number ``n`` in record ``n``, of 8 bytes."""
    path = tmp_path / "numbers"
    np.arange(1000).tofile(path)
    return path


@pytest.fixture
def opened() -> Iterator[list[io.BufferedReader]]:
    """Every file that a `Records` opened, to be closed after the test."""
    files: list[io.BufferedReader] = []
    yield files
    for file in files:
        file.close()


class Records:
    """Reads record ``index``, from a file that it opens on first use."""

    def __init__(self, path: Path, opened: list[io.BufferedReader], parties: int = 1) -> None:
        self.path = path
        self.opened = opened
        self.file: io.BufferedReader | None = None
        self.sought = Barrier(parties)

    def __len__(self) -> int:
        return THREADS

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb")
            self.opened.append(self.file)
        self.file.seek(8 * index)
        self.sought.wait(PATIENCE)
        return int.from_bytes(self.file.read(8), "little")


def test_each_thread_reads_from_a_handle_of_its_own(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    assert _together(Records(numbers, opened, THREADS)) == [0, 1, 2, 3]
    assert len(opened) == THREADS


def test_a_handle_that_is_shared_reads_wrong_records(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    """The race that the copies prevent; else the test above could not fail."""
    records = Records(numbers, opened, THREADS)
    records.file = numbers.open("rb")
    opened.append(records.file)
    assert _together(records, dataset_copy="shared") != [0, 1, 2, 3]


def test_the_dataset_of_the_caller_opens_nothing(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    records = Records(numbers, opened)
    _together(records)
    assert records.file is None


def test_in_the_calling_thread_the_dataset_is_used_itself(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    records = Records(numbers, opened)
    with ThreadLoader(records, threads=0) as loader:
        list(loader)
    assert [records.file] == opened


# Transforms that keep their parameters on self


def _racing_transform() -> Any:
    """Return a transform that is wrong if two threads use it at once."""
    drawn = Barrier(THREADS)  # in a closure, hence one for all copies

    class Shift:
        amount = 0

        def __call__(self, value: int) -> int:
            self.amount = 10 * value
            drawn.wait(PATIENCE)
            return value + self.amount

    return Shift()


SHIFTED = [0, 11, 22, 33]


def test_a_transform_keeps_the_parameters_of_its_own_sample() -> None:
    assert _together(Mapped(_racing_transform())) == SHIFTED


def test_a_transform_that_is_shared_mixes_up_its_samples() -> None:
    """The race that the copies prevent; else the tests below could not fail."""
    assert _together(Mapped(_racing_transform()), dataset_copy="shared") != SHIFTED


class Compose:
    """Applies the transforms of any container, one after the other."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        parts = self.transforms
        for part in parts.values() if isinstance(parts, dict) else parts:
            value = part(value)
        return value


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
    compose = Compose(container(abs, _racing_transform()))
    assert _together(Mapped(compose)) == SHIFTED


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_transforms_in_a_container_on_the_dataset_are_copied(
    container: Callable[[Any, Any], Any],
) -> None:
    class Listed(Mapped):
        def __getitem__(self, index: int) -> Any:
            return Compose(self.transform)(index)

    assert _together(Listed(container(Compose([]), _racing_transform()))) == SHIFTED


@pytest.mark.parametrize(
    "beside",
    [abs, _auto, int, None, "a name"],
    ids=["builtin", "function", "class", "none", "text"],
)
def test_a_transform_on_the_dataset_is_copied_whatever_stands_beside_it(beside: object) -> None:
    class Listed(Mapped):
        def __getitem__(self, index: int) -> Any:
            return self.transform[1](index)

    assert _together(Listed([beside, _racing_transform()])) == SHIFTED


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
    assert _together(dataset) == [0, 1, 2, 3]


def test_a_transform_that_is_a_list_is_copied() -> None:
    class Offsets(list[int]):
        def __init__(self, inner: Any, *offsets: int) -> None:
            super().__init__(offsets)
            self.inner = inner

        def __call__(self, value: int) -> int:
            return self.inner(value) + sum(self)

    assert _together(Mapped(Offsets(_racing_transform(), 1, -1))) == SHIFTED


def test_a_transform_on_a_plain_object_of_a_transform_is_copied() -> None:
    class Outer:
        def __init__(self, inner: Any) -> None:
            self.holder = type("Holder", (), {})()
            self.holder.inner = inner

        def __call__(self, value: int) -> int:
            return self.holder.inner(value)

    assert _together(Mapped(Outer(_racing_transform()))) == SHIFTED


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

    dataset = Folder(_racing_transform(), float)
    assert _together(dataset) == [0, 12, 24, 36]
    twin = _auto(dataset)
    assert twin.transforms.transform is twin.transform
    assert twin.samples is dataset.samples


def _parametrised(amount: int) -> type:
    """Return a base whose instances race in `apply` on the attribute ``amount``."""
    drawn = Barrier(THREADS)

    class Applies:
        __slots__ = ()

        def __call__(self, value: int) -> int:
            object.__setattr__(self, "amount", amount * value)
            drawn.wait(PATIENCE)
            return value + self.amount  # type: ignore[attr-defined]

    return Applies


def test_a_transform_with_slots_only_is_copied() -> None:
    class Slotted(_parametrised(10)):  # type: ignore[misc]
        __slots__ = ("amount",)

    assert _together(Mapped(Slotted())) == SHIFTED


@pytest.mark.parametrize("slots", [False, True])
def test_a_transform_that_is_a_frozen_dataclass_is_copied(slots: bool) -> None:
    @dataclasses.dataclass(frozen=True, slots=slots)
    class Frozen:
        inner: Any

        def __call__(self, value: int) -> int:
            return self.inner(value)

    assert _together(Mapped(Frozen(_racing_transform()))) == SHIFTED


def test_a_transform_in_a_private_slot_is_copied() -> None:
    class Private:
        __slots__ = ("__inner",)

        def __init__(self, inner: Any) -> None:
            self.__inner = inner

        def __call__(self, value: int) -> int:
            return self.__inner(value)

    assert _together(Mapped(Private(_racing_transform()))) == SHIFTED


def test_a_transform_behind_a_read_only_property_is_copied() -> None:
    class Guarded:
        def __init__(self, inner: Any) -> None:
            self.__dict__["inner"] = inner

        @property
        def inner(self) -> Any:
            return self.__dict__["inner"]

        def __call__(self, value: int) -> int:
            return self.inner(value)

    assert _together(Mapped(Guarded(_racing_transform()))) == SHIFTED


def test_bound_methods_on_self_are_bound_to_the_copy() -> None:
    class Bound:
        def __init__(self) -> None:
            self.transform = _racing_transform()
            self.load = self._load
            self.by_kind = {"plain": self._load}

        def __len__(self) -> int:
            return THREADS

        def __getitem__(self, index: int) -> int:
            return self.load(index)

        def _load(self, index: int) -> int:
            return self.transform(index)

    dataset = Bound()
    assert _together(dataset) == SHIFTED
    twin = _auto(dataset)
    assert twin.load.__self__ is twin
    assert twin.by_kind["plain"].__self__ is twin
    assert dataset.load.__self__ is dataset


def test_a_bound_method_of_a_transform_is_bound_to_its_copy() -> None:
    assert _together(Mapped(_racing_transform().__call__)) == SHIFTED


def test_what_a_partial_holds_is_copied() -> None:
    def apply(transform: Any, value: int, *, after: Any) -> int:
        return after(transform(value))

    transform = functools.partial(apply, _racing_transform(), after=Compose([int]))
    assert _together(Mapped(transform)) == SHIFTED
    assert transform.args[0] is not _auto(Mapped(transform)).transform.args[0]


def test_a_transform_used_twice_is_copied_once() -> None:
    transform = _racing_transform()
    compose = Compose([transform, Compose([transform])])
    twin = _auto(Mapped(compose)).transform
    assert twin.transforms[0] is twin.transforms[1].transforms[0]
    assert twin.transforms[0] is not transform


# What refuses to be copied, or should not be


def _refusing(name: str) -> type:
    def refuse(*_: object) -> None:
        msg = "not to be copied"
        raise TypeError(msg)

    return type("Refuses", (Mapped,), {name: refuse})


@pytest.mark.parametrize("method", ["__copy__", "__reduce_ex__", "__getstate__"])
def test_a_dataset_that_refuses_to_be_copied_is_shared(method: str) -> None:
    dataset = _refusing(method)(float)
    assert _auto(dataset) is dataset
    assert _together(dataset) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["__copy__", "__reduce_ex__", "__getstate__"])
def test_a_transform_that_refuses_to_be_copied_is_shared_alone(method: str) -> None:
    class Refuses(_refusing(method)):  # type: ignore[misc]
        __call__ = float

    refusing = Refuses(None)
    compose = Compose([refusing, _racing_transform()])
    twin = _auto(Mapped(compose)).transform
    assert twin.transforms[0] is refusing
    assert twin.transforms[1] is not compose.transforms[1]


def test_a_dataset_that_copies_itself_to_something_else_is_shared() -> None:
    class Changes(Mapped):
        def __copy__(self) -> list[int]:
            return [1, 2]

    dataset = Changes(float)
    assert _auto(dataset) is dataset


def test_a_dataset_that_drops_its_handle_when_pickled_drops_it_in_the_copy(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    class Picklable(Records):
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "file": None}

    records = Picklable(numbers, opened, THREADS)
    records.file = numbers.open("rb")
    opened.append(records.file)
    assert _together(records) == [0, 1, 2, 3]
    assert len(opened) == 1 + THREADS


def test_a_wrapper_that_looks_up_everything_inside_is_no_error() -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

    assert _together(Wrapper(Mapped(float))) == [0, 1, 2, 3]


class Closes(Records):
    """Closes its file when it dies."""

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


def test_a_dataset_that_closes_its_file_when_it_dies_works_in_every_epoch(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    dataset = Closes(numbers, opened)
    dataset.file = numbers.open("rb")
    for _ in range(2):
        _together(dataset)
    assert not dataset.file.closed


def test_a_lazily_opened_file_is_each_threads_own_although_its_dataset_closes_it(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    assert _together(Closes(numbers, opened, THREADS)) == [0, 1, 2, 3]
    assert len(opened) == THREADS


def test_a_dataset_that_closes_a_reader_when_it_dies_works_in_every_epoch(
    numbers: Path,
) -> None:
    class Reader:
        def __init__(self) -> None:
            self.file = numbers.open("rb")

    class Reads(Mapped):
        def __init__(self) -> None:
            super().__init__(float)
            self.reader = Reader()

        def __del__(self) -> None:
            self.reader.file.close()

    dataset = Reads()
    _together(dataset)
    assert not dataset.reader.file.closed


def test_a_reader_that_closes_its_file_when_it_dies_stays_open(numbers: Path) -> None:
    class Reader:
        def __init__(self) -> None:
            self.file = numbers.open("rb")

        def __del__(self) -> None:
            self.file.close()

    class Reads(Mapped):
        def __init__(self) -> None:
            super().__init__(float)
            self.reader = Reader()

        def __del__(self) -> None:
            """Say goodbye; that there is such a method makes the loader look for handles."""

    dataset = Reads()
    _together(dataset)
    assert not dataset.reader.file.closed


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
    _together(dataset)
    join_workers()
    del dataset
    assert freed == [1234]


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
    _together(dataset)
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
    twin = _auto(dataset)
    assert twin.transform.dataset is twin
    assert _together(dataset) == [0, 4, 8, 12]


@pytest.mark.parametrize("kind", [list, dict])
def test_a_container_that_contains_itself_is_copied_once(kind: type) -> None:
    parts: Any = kind()
    if kind is list:
        parts += [_racing_transform(), parts]
    else:
        parts.update({0: _racing_transform(), 1: parts})
    twin = _auto(Mapped(Compose(parts))).transform.transforms
    assert twin[1] is twin
    assert twin is not parts


def test_a_list_that_its_own_transforms_refer_to_is_copied_once() -> None:
    class Sibling:
        siblings: Any = None

        def __call__(self, value: int) -> int:
            return value

    siblings = [Sibling(), Sibling()]
    for sibling in siblings:
        sibling.siblings = siblings
    twin = _auto(Mapped(Compose(siblings))).transform.transforms
    assert all(sibling.siblings is twin for sibling in twin)


def test_a_long_chain_of_objects_is_no_error() -> None:
    class Link:
        def __init__(self, following: Any) -> None:
            self.following = following

        def __call__(self, value: int) -> int:
            return value

    chain = None
    for _ in range(5000):
        chain = Link(chain)
    assert _together(Mapped(chain)) == [0, 1, 2, 3]


# What is shared


def _shared_parts() -> dict[str, Any]:
    return {
        "array": np.zeros(3),
        "big list": list(range(5000)),
        "big dict": dict.fromkeys(range(5000)),
        "big set": set(range(5000)),
        "function": _auto,
        "lambda": lambda value: value,
        "class": Mapped,
        "module": np,
        "text": "text" * 100,
        "python generator": random.Random(0),
        "numpy generator": np.random.default_rng(0),
        "numpy legacy generator": np.random.RandomState(0),
        "bit generator": np.random.PCG64(0),
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


@pytest.mark.parametrize("name", list(_shared_parts()))
def test_a_transform_shares(name: str) -> None:
    part = _shared_parts()[name]
    transform = Compose([])
    transform.part = part  # type: ignore[attr-defined]
    twin = _auto(Mapped(transform)).transform
    assert twin is not transform
    assert twin.part is part


@pytest.mark.parametrize("name", list(_shared_parts()))
def test_a_dataset_shares(name: str) -> None:
    part = _shared_parts()[name]
    dataset = Mapped(float)
    dataset.part = part  # type: ignore[attr-defined]
    twin = _auto(dataset)
    assert twin is not dataset
    assert twin.part is part


@pytest.mark.parametrize("kind", [list, tuple, set])
def test_a_short_container_of_data_on_a_dataset_is_shared(kind: type) -> None:
    dataset = Mapped(float)
    dataset.paths = kind(["a.jpg", "b.jpg"])  # type: ignore[attr-defined]
    assert _auto(dataset).paths is dataset.paths  # type: ignore[attr-defined]


def test_a_generator_that_is_shared_gives_no_two_workers_the_same_numbers() -> None:
    class EpochDraws:
        def __init__(self) -> None:
            self.generator = np.random.default_rng(0)

        def __call__(self, _value: int) -> int:
            return int(self.generator.integers(2**62))

    dataset = Mapped(EpochDraws(), size=64)
    with ThreadLoader(dataset, batch_size=8, threads=THREADS) as loader:
        drawn = [number for batch in loader for number in np.asarray(batch).tolist()]
    assert len(set(drawn)) == 64


@pytest.mark.parametrize(
    "dataset",
    [
        [3, 1, 2],
        (3, 1, 2),
        range(1, 4),
        {0: 3, 1: 1, 2: 2},
        np.array([3, 1, 2]),
        collections.deque([3, 1, 2]),
        collections.UserList([3, 1, 2]),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_plain_containers_are_datasets(dataset: Any) -> None:
    delivered = _together(dataset)
    assert delivered == [int(dataset[index]) for index in range(3)]


@pytest.mark.parametrize(
    "dataset",
    [[1], (1,), range(3), {0: 1}, np.zeros(3)],
    ids=lambda dataset: type(dataset).__name__,
)
def test_plain_containers_are_shared(dataset: Any) -> None:
    assert _auto(dataset) is dataset


# dataset_copy=


def test_shared_gives_every_worker_the_dataset_itself() -> None:
    seen: list[Any] = []

    class Sees(Mapped):
        def __getitem__(self, index: int) -> int:
            seen.append(self)
            return index

    dataset = Sees(None)
    _together(dataset, dataset_copy="shared")
    assert all(one is dataset for one in seen)


def test_deep_copies_the_data_too() -> None:
    dataset = Mapped(float)
    dataset.array = np.zeros(3)  # type: ignore[attr-defined]
    twin = copy_dataset(dataset, "deep")
    assert twin.array is not dataset.array  # type: ignore[attr-defined]


def test_a_callable_makes_the_dataset_of_each_worker() -> None:
    made: list[tuple[Any, threading.Thread]] = []

    def make(original: Any) -> Any:
        made.append((original, current_thread()))
        return Mapped(float)

    dataset = Mapped(None)
    assert _together(dataset, dataset_copy=make) == [0, 1, 2, 3]
    assert made == [(dataset, current_thread())] * THREADS


@pytest.mark.parametrize("how", ["deep", "callable"])
def test_an_error_of_a_copy_that_was_asked_for_reaches_the_caller(how: str) -> None:
    class Refuses(Mapped):
        def __deepcopy__(self, memo: object) -> Any:
            msg = "not to be copied"
            raise BufferError(msg)

    asked_for: Any = copy.deepcopy if how == "callable" else how
    loader = ThreadLoader(Refuses(float), threads=2, dataset_copy=asked_for)
    with pytest.raises(BufferError, match="not to be copied"):
        iter(loader)


class Epochs:
    """Samples that depend on the epoch."""

    epoch = 0

    def __len__(self) -> int:
        return THREADS

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("how", ["auto", "shared", "deep", copy.copy])
def test_what_is_set_between_epochs_is_seen(how: Any) -> None:
    dataset = Epochs()
    with ThreadLoader(dataset, batch_size=4, threads=2, dataset_copy=how) as loader:
        for epoch in range(3):
            dataset.set_epoch(epoch)
            [batch] = loader
            assert np.asarray(batch).tolist() == [100 * epoch + row for row in range(4)]


def test_persistent_workers_keep_their_copies() -> None:
    made: list[Any] = []

    def make(original: Any) -> Any:
        made.append(copy.copy(original))
        return made[-1]

    with ThreadLoader(
        Epochs(), batch_size=4, threads=2, persistent_workers=True, dataset_copy=make
    ) as loader:
        for _ in range(3):
            list(loader)
    assert len(made) == 2


def test_what_is_set_during_an_epoch_is_not_seen_in_it() -> None:
    dataset = Epochs()
    with ThreadLoader(dataset, batch_size=1, threads=1, prefetch=1) as loader:
        batches = iter(loader)
        dataset.set_epoch(7)
        assert [int(batch[0]) for batch in batches] == [0, 1, 2, 3]


# Datasets within datasets


def test_a_dataset_within_a_users_dataset_is_copied(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.source = inner
            self.parts = [inner]
            self.named = {"inner": inner}

        def __len__(self) -> int:
            return len(self.source)

        def __getitem__(self, index: int) -> Any:
            return self.source[index]

    wrapped = Wrapper(Wrapper(Records(numbers, opened, THREADS)))
    assert _together(wrapped) == [0, 1, 2, 3]
    assert len(opened) == THREADS
    twin = _auto(wrapped)
    assert twin.parts[0] is twin.named["inner"] is twin.source


WRAPPERS: dict[str, Callable[[Any, Any], Any]] = {
    "subset": lambda data, dataset: data.Subset(dataset, range(THREADS)),
    "subset of a subset": lambda data, dataset: data.Subset(
        data.Subset(dataset, [3, 2, 1, 0]), [3, 2, 1, 0]
    ),
    "concatenation": lambda data, dataset: data.ConcatDataset([dataset]),
    "stack": lambda data, dataset: data.StackDataset(dataset),
    "named stack": lambda data, dataset: data.StackDataset(number=dataset),
}


def _flat(batch: Any) -> list[int]:
    if isinstance(batch, dict):
        batch = batch["number"]
    if isinstance(batch, (list, tuple)):
        batch = batch[0]
    return np.asarray(batch).tolist()


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_torchs_wrappers_are_seen_through(
    wrap: Callable[[Any, Any], Any], numbers: Path, opened: list[io.BufferedReader]
) -> None:
    data = pytest.importorskip("torch.utils.data")
    wrapped = wrap(data, Records(numbers, opened, THREADS))
    with ThreadLoader(wrapped, batch_size=THREADS, threads=THREADS) as loader:
        [batch] = loader
    assert _flat(batch) == [0, 1, 2, 3]
    assert len(opened) == THREADS


def test_a_random_split_reads_from_a_handle_a_thread(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    data = pytest.importorskip("torch.utils.data")
    [split] = data.random_split(Records(numbers, opened, THREADS), [THREADS])
    assert _together(split) == list(split.indices)
    assert len(opened) == THREADS


def test_a_dataset_that_is_concatenated_twice_is_copied_once() -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = Mapped(float)
    twin = _auto(data.ConcatDataset([dataset, dataset]))
    assert twin.datasets[0] is twin.datasets[1] is not dataset


def test_tensors_are_shared() -> None:
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    twin = _auto(dataset)
    assert twin is not dataset
    assert twin.tensors[0] is dataset.tensors[0]


def test_a_module_as_a_transform_is_copied_and_shares_its_parameters() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    twin = _auto(Mapped(module)).transform
    assert twin is not module
    assert twin[0] is not module[0]
    assert twin[0].weight is module[0].weight
    assert twin[1].running_mean is module[1].running_mean


def test_a_module_that_keeps_its_parameters_on_self_keeps_those_of_its_sample() -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = _racing_transform()

        def forward(self, value: int) -> int:
            return self.inner(value)

    assert _together(Mapped(torch.nn.Sequential(Module()))) == SHIFTED


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module_is_a_transform() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "jit"):
        pytest.skip("this torch has no scripts")
    module = torch.jit.trace(torch.nn.Identity(), torch.zeros(1))
    dataset = Mapped(Compose([float, torch.tensor, module]))
    assert _together(dataset) == [0, 1, 2, 3]


def test_a_torch_generator_on_a_transform_is_shared() -> None:
    torch = pytest.importorskip("torch")
    transform = Compose([])
    transform.generator = torch.Generator()  # type: ignore[attr-defined]
    twin = _auto(Mapped(transform)).transform
    assert twin.generator is transform.generator  # type: ignore[attr-defined]
