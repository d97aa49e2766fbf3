"""Iterable datasets: replicas take turns as torch's worker processes do."""

from __future__ import annotations

import multiprocessing
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE
from support.streams import patiently
from torch.utils.data import IterableDataset, get_worker_info

from conformance.loading import batches, ours, processes, story
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

each_number_of_workers = pytest.mark.parametrize("workers", [0, 1, 2, 3])
BATCHING: list[dict[str, Any]] = [
    {"batch_size": 1},
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": 100},
    {"batch_size": 100, "drop_last": True},
    {"batch_size": None},
]


class Shard(IterableDataset[Any]):
    """Worker ``w`` yields ``sizes[w]`` samples of its own; without workers it is worker 0."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter([torch.tensor([worker, row]) for row in range(self.sizes[worker])])


class Sized(Shard):
    """The same, with a length that may be wrong."""

    def __init__(self, sizes: list[int], length: int) -> None:
        super().__init__(sizes)
        self.length = length

    def __len__(self) -> int:
        return self.length


class Whole(IterableDataset[Any]):
    """Every replica yields all."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Restarts(IterableDataset[Any]):
    """Its own iterator, which ``__iter__`` starts again."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Restarts:
        self.row = 0
        return self

    def __next__(self) -> int:
        if self.row == self.size:
            raise StopIteration
        self.row += 1
        return self.row


class OnlyNext:
    """An iterator without ``__iter__``."""

    def __init__(self, size: int) -> None:
        self.rows = iter(range(size))

    def __next__(self) -> int:
        return next(self.rows)


class GivesOnlyNext(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return OnlyNext(7)


@pytest.mark.parametrize("arguments", BATCHING, ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 7])
def test_batches_without_workers(size: int, arguments: dict[str, Any], spawn: Spawn) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(Shard([size]), **arguments)

    expected = spawn(story, build, processes(0)).result(PATIENCE)
    assert spawn(story, build, ours(0)).result(PATIENCE) == expected
    assert spawn(story, build, ours(1)).result(PATIENCE) == expected


@pytest.mark.parametrize(
    ("sizes", "arguments"),
    [
        ([7], {"batch_size": 3}),
        ([7, 2], {"batch_size": 2}),
        ([2, 9, 0], {"batch_size": 2}),
        ([7, 1, 5], {"batch_size": 2, "drop_last": True}),
        ([1, 4, 2], {"batch_size": None}),
        ([0, 0], {"batch_size": 2}),
    ],
    ids=str,
)
def test_replicas_take_turns_as_worker_processes_do(
    sizes: list[int], arguments: dict[str, Any], spawn: Spawn
) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(Shard(sizes), **arguments)

    expected = story(build, processes(len(sizes)))
    assert spawn(story, build, ours(len(sizes))).result(PATIENCE) == expected
    rows = [batch.tolist() for batch in ThreadLoader(Shard(sizes), threads=len(sizes), **arguments)]
    assert rows == model(sizes, **arguments)


def model(sizes: list[int], batch_size: int | None, *, drop_last: bool = False) -> list[Any]:
    """Return the batches of torch's round robin."""
    queues: list[Any] = []
    for worker, size in enumerate(sizes):
        rows = [[worker, row] for row in range(size)]
        if batch_size is None:
            queues.append(rows)
            continue
        made = [rows[start : start + batch_size] for start in range(0, size, batch_size)]
        queues.append([batch for batch in made if len(batch) == batch_size or not drop_last])
    longest = max(len(queue) for queue in queues)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


# `spawn` has no state that one example could leave to the next.
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    batch_size=st.one_of(st.none(), st.integers(1, 5)),
    drop_last=st.booleans(),
    prefetch=st.one_of(st.none(), st.integers(1, 5)),
    persistent=st.booleans(),
)
def test_generated_replicas_take_turns_as_in_the_model(
    *,
    sizes: list[int],
    batch_size: int | None,
    drop_last: bool,
    prefetch: int | None,
    persistent: bool,
    spawn: Spawn,
) -> None:
    drop_last = drop_last and batch_size is not None
    expected = model(sizes, batch_size, drop_last=drop_last)
    with ThreadLoader(
        Shard(sizes),
        batch_size,
        drop_last=drop_last,
        prefetch=prefetch,
        threads=len(sizes),
        persistent_workers=persistent,
    ) as loader:
        for _ in range(2):
            got = spawn(list, loader).result(PATIENCE)
            assert [batch.tolist() for batch in got] == expected


@each_number_of_workers
def test_every_replica_gives_all_unless_it_shards(workers: int, spawn: Spawn) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(Whole(list(range(5))), 2)

    expected = story(build, processes(workers))
    assert spawn(story, build, ours(workers)).result(PATIENCE) == expected
    assert len(batches(expected)) == 2 * 3 * max(1, workers)


@each_number_of_workers
def test_a_dataset_that_is_its_own_iterator_is_started_once(workers: int, spawn: Spawn) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(Restarts(7), 2)

    assert spawn(story, build, ours(workers)).result(PATIENCE) == story(build, processes(workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_needs_only_next(workers: int, spawn: Spawn) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(GivesOnlyNext(), 3)

    assert spawn(story, build, ours(workers)).result(PATIENCE) == story(build, processes(workers))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_worker_init_fn_comes_at_the_first_next(workers: int, spawn: Spawn) -> None:
    def fail(worker: int) -> None:
        raise LookupError(worker)

    with ThreadLoader(Whole([1, 2]), 2, threads=workers, worker_init_fn=fail) as loader:
        iterator = iter(loader)
        with pytest.raises(LookupError):
            spawn(next, iterator).result(PATIENCE)


@pytest.mark.parametrize("length", [0, 2, 5, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_batches_are_warned_of_in_torch_s_words(
    workers: int, length: int, spawn: Spawn
) -> None:
    def warned(make_loader: Callable[..., Any]) -> Any:
        loader = make_loader(Sized([5, 2], length), None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told = [len(list(loader)), len(loader), len(list(loader))]
        mine = [str(warning.message) for warning in caught if warning.category is UserWarning]
        return told, [text.split(" at 0x")[0] + text.partition(">")[2] for text in mine]

    told = spawn(warned, ours(workers)).result(PATIENCE)
    assert told == warned(processes(workers))
    assert bool(told[1]) == (length < told[0][0])


@pytest.mark.parametrize("arguments", BATCHING, ids=str)
def test_len_is_torch_s(arguments: dict[str, Any]) -> None:
    for size in (0, 3, 7):
        loaders = [make(Sized([size], size), **arguments) for make in (ours(0), processes(0))]
        assert len(loaders[0]) == len(loaders[1])


@pytest.mark.parametrize("persistent", [False, True])
def test_replicas_are_as_fresh_as_torch_s(persistent: bool, spawn: Spawn) -> None:
    class Counts(IterableDataset[Any]):
        epoch = 0

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            return iter([self.epoch] * 3)

    def epochs(make_loader: Callable[..., Any]) -> list[Any]:
        loader = make_loader(Counts(), 2, persistent_workers=persistent)
        return [[batch.tolist() for batch in loader] for _ in range(3)]

    told = spawn(epochs, ours(2)).result(PATIENCE)
    assert told == epochs(processes(2))
    assert (told[0] == told[2]) == (not persistent)


def test_a_method_of_the_dataset_given_as_worker_init_fn_sets_up_the_replica(spawn: Spawn) -> None:
    class Range(IterableDataset[Any]):
        start = 0

        def set_up(self, worker: int) -> None:
            self.start = 10 * (worker + 1)

        def __iter__(self) -> Iterator[Any]:
            return iter(range(self.start, self.start + 3))

    def epochs(make_loader: Callable[..., Any]) -> list[Any]:
        dataset = Range()
        loader = make_loader(dataset, 2, worker_init_fn=dataset.set_up)
        return [[batch.tolist() for batch in loader], dataset.start]

    # Not torch's words: its forked workers have another replica for the method, too, but one.
    assert spawn(epochs, ours(2)).result(PATIENCE) == epochs(processes(2))


def test_worker_info_is_that_of_a_worker_process(spawn: Spawn) -> None:
    class Tells(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            return iter([(info.id, info.num_workers, info.seed, info.dataset is self)])

    def told(make_loader: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(5)
        return list(make_loader(Tells(), None))

    assert spawn(told, ours(3)).result(PATIENCE) == told(processes(3))


def test_an_endless_stream_may_be_left(spawn: Spawn) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            number = 0
            while True:
                yield number
                number += 1

    def some(make_loader: Callable[..., Any]) -> list[Any]:
        return [batch.tolist() for batch in islice(make_loader(Endless(), 3), 5)]

    assert spawn(some, ours(2)).result(PATIENCE) == some(processes(2))


def test_process_workers_beside_an_open_loader_are_told_of_themselves(spawn: Spawn) -> None:
    class Tells(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for row in range(3):
                info = get_worker_info()
                yield [info.id, info.num_workers, info.seed - torch.initial_seed(), row]

    alone = list(processes(2)(Tells(), None))
    with ThreadLoader(Tells(), None, threads=2) as loader:
        iterator = iter(loader)
        told = [spawn(next, iterator).result(PATIENCE)]
        assert list(processes(2)(Tells(), None)) == alone
        assert [*told, *spawn(list, iterator).result(PATIENCE)] == alone
    assert alone == [[worker, 2, 0, row] for row in range(3) for worker in (0, 1)]


def test_a_late_batch_is_torch_s_error_and_the_next_one_to_come(spawn: Spawn) -> None:
    class Late(IterableDataset[Any]):
        def __init__(self) -> None:
            self.gate = multiprocessing.get_context("fork").Event()

        def __iter__(self) -> Iterator[Any]:
            assert self.gate.wait(PATIENCE)
            return iter(range(5))

    def told(make_loader: Callable[..., Any]) -> Any:
        dataset = Late()
        iterator = iter(make_loader(dataset, 2, timeout=0.05))
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        dataset.gate.set()
        return str(caught.value), list(patiently(iterator))

    message, batches = told(processes(2))
    our_message, our_batches = spawn(told, ours(2)).result(PATIENCE)
    assert our_message.startswith(message)  # ours goes on with what the workers are in
    assert our_batches == batches == [[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]]


@pytest.mark.parametrize("sizes", [[7], [2, 9, 0], [1, 4, 2]], ids=str)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_samples_of_all_replicas_are_counted(
    batch_size: int | None, sizes: list[int], spawn: Spawn
) -> None:
    loader = ThreadLoader(Shard(sizes), batch_size, threads=len(sizes))
    delivered = len(spawn(list, loader).result(PATIENCE))
    totals = loader.statistics().totals
    assert totals.samples == sum(sizes)
    assert totals.batches == totals.tickets == delivered == len(model(sizes, batch_size))
