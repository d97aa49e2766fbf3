"""Iterable datasets: replicas take turns as torch's worker processes do."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE, Spawn
from support.streams import Hiccups, patiently
from torch.utils.data import IterableDataset, get_worker_info

from conformance.loading import MakeLoader, kinds, ours, processes, story
from threadloader import ClosedError, ThreadLoader

Alike = Callable[..., Any]


class Shard(IterableDataset[Any]):
    """Worker ``w`` yields ``sizes[w]`` samples of its own; without workers it is worker 0."""

    def __init__(self, *sizes: int, length: int | None = None) -> None:
        self.sizes = sizes
        self.length = length  # may be wrong

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("no length")
        return self.length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter([torch.tensor([worker, row]) for row in range(self.sizes[worker])])


class Made(IterableDataset[Any]):
    """Its iterators are made by a function."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Any:
        return self.make()


class Restarts(IterableDataset[Any]):
    """Its own iterator, which ``__iter__`` starts again; ``set_up`` moves the first row."""

    start = 0
    row = -1
    passes = 0

    def set_up(self, worker: int) -> None:
        self.start = 100 * (worker + 1)

    def __iter__(self) -> Restarts:
        self.passes += 1
        self.row = self.start
        return self

    def __next__(self) -> int:
        if self.row == self.start + 9:
            raise StopIteration
        self.row += 1
        return self.row - 1


class OnlyNext:
    """An iterator without ``__iter__``."""

    def __init__(self) -> None:
        self.rows = iter(range(7))

    def __next__(self) -> int:
        return next(self.rows)


def broken(error: type[Exception], size: int = 4) -> Iterator[Any]:
    yield from range(size)
    raise error("here")


def unstartable() -> Any:
    raise LookupError("iter")


def told_of_its_worker() -> Iterator[Any]:
    info = get_worker_info()
    yield (None,) if info is None else (info.id, info.num_workers, info.seed)


STREAMS: dict[str, tuple[Callable[[], Any], list[int | None], tuple[int, ...]]] = {
    # The dataset, batch sizes, and numbers of workers.
    "every replica gives all": (partial(Made, lambda: iter(range(5))), [2], (0, 3)),
    "its own iterator": (Restarts, [2], (0, 1, 3)),
    "an iterator that has only next": (partial(Made, OnlyNext), [3], (0, 1)),
    "an iterator that goes on after errors": (
        partial(Made, lambda: Hiccups(10, {1, 4, 5})),
        [None, 3],
        (0, 2),
    ),
    "a generator that fails": (partial(Made, lambda: broken(LookupError)), [None, 3], (0, 2)),
    "a StopIteration": (partial(Made, lambda: broken(StopIteration)), [None, 3], (0, 2)),
    "a first row that fails": (partial(Made, lambda: broken(LookupError, 0)), [2], (0, 2)),
    "worker info": (partial(Made, told_of_its_worker), [None], (0, 3)),
}


@pytest.mark.parametrize("case", STREAMS)
def test_replicas_give_what_worker_processes_give(case: str, alike_workers: Alike) -> None:
    make, sizes, workers = STREAMS[case]
    for size in sizes:

        def run(loader: MakeLoader, size: int | None = size) -> Any:
            # Messages of torch's workers hold a traceback.
            return kinds(story(lambda loader: loader(make(), size), loader))

        alike_workers(run, *workers)


def test_a_data_pipe_is_refused() -> None:
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    with pytest.raises(TypeError, match="can't be a data pipe"):
        ThreadLoader(pipes.IterableWrapper(range(11)), 2)


def first_error(dataset: Any, make_loader: MakeLoader) -> tuple[str, type[Exception]]:
    """Return at which step the first error comes, and its type."""
    step, iterator = "iter", None
    try:
        iterator = iter(make_loader(dataset, 2))
        step = "next"
        next(iterator)
    except Exception as error:  # noqa: BLE001  # what is compared
        # Its traceback is a cycle that torch's iterator, and its processes, would hang on.
        return step, type(error.with_traceback(None))
    finally:
        # Dropped in a thread that ends, it dies late on a free-threaded build.
        getattr(iterator, "close", bool)()
    raise AssertionError("no error")


@pytest.mark.parametrize("make", [unstartable, lambda: 7], ids=["raises", "gives no iterator"])
def test_an_error_of_iter_comes_as_soon_as_with_torch(
    make: Callable[[], Any], alike_workers: Alike
) -> None:
    alike_workers(partial(first_error, Made(make)), 0, 1, 2)


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


@pytest.mark.parametrize(
    ("sizes", "arguments"),
    [
        ([7], {"batch_size": 3}),
        ([2, 9, 0], {"batch_size": 2}),
        ([7, 1, 5], {"batch_size": 2, "drop_last": True}),
        ([1, 4, 2], {"batch_size": None}),
        ([0, 0], {"batch_size": 2}),
    ],
    ids=str,
)
def test_the_model_is_torch_s(sizes: list[int], arguments: dict[str, Any]) -> None:
    made = processes(len(sizes))(Shard(*sizes), **arguments)
    assert [batch.tolist() for batch in made] == model(sizes, **arguments)


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
    inline=st.booleans(),
)
def test_replicas_take_turns_as_in_the_model_and_all_is_counted(
    *,
    sizes: list[int],
    batch_size: int | None,
    drop_last: bool,
    prefetch: int | None,
    inline: bool,
    spawn: Spawn,
) -> None:
    drop_last = drop_last and batch_size is not None
    inline = inline and prefetch is None
    expected = model(sizes[:1] if inline else sizes, batch_size, drop_last=drop_last)
    with ThreadLoader(
        Shard(*sizes),
        batch_size,
        drop_last=drop_last,
        prefetch=prefetch,
        threads=0 if inline else len(sizes),
        persistent_workers=prefetch is not None,
    ) as loader:
        for epoch in (1, 2):
            got = spawn(list, loader).result(PATIENCE)
            assert [batch.tolist() for batch in got] == expected
            totals = loader.statistics().totals
            assert totals.batches == totals.tickets == epoch * len(expected)
            rows = sum(len(batch) for batch in expected) if batch_size else len(expected)
            assert totals.samples == epoch * rows


@pytest.mark.parametrize("length", [0, 2, 5, 7])
def test_its_length_is_believed_and_too_many_batches_are_warned_of_in_torch_s_words(
    length: int, alike_workers: Alike
) -> None:
    def warned(make_loader: MakeLoader) -> Any:
        loader = make_loader(Shard(5, 2, length=length), None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told = [len(list(loader)), len(loader), len(list(loader))]
        mine = [str(warning.message) for warning in caught if warning.category is UserWarning]
        lengths = [len(make_loader(Shard(5, length=length), 3, drop_last=d)) for d in (False, True)]
        return told, [text.split(" at 0x")[0] + text.partition(">")[2] for text in mine], lengths

    told = alike_workers(warned, 0, 2)
    assert bool(told[1]) == (length < told[0][0])


@pytest.mark.parametrize("persistent", [False, True])
def test_replicas_are_as_fresh_as_torch_s_and_share_what_processes_share(
    persistent: bool, alike_workers: Alike
) -> None:
    class Counts(IterableDataset[Any]):
        """Is told of the epoch through memory that processes share, as Hugging Face's are."""

        passes = 0

        def __init__(self) -> None:
            self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return iter([[self.passes, int(self.epoch)]] * 3)

    def epochs(make_loader: MakeLoader) -> Iterator[Any]:
        dataset = Counts()
        loader = make_loader(dataset, None, persistent_workers=persistent)
        for epoch in range(3):
            dataset.epoch.fill_(epoch)
            yield list(loader)

    told = alike_workers(lambda make: list(epochs(make)), 2)
    assert [epoch[0] for epoch in told] == [[1 + persistent * e, e] for e in range(3)]


def rows(iterator: Any) -> list[int]:
    return [int(sample) for sample in iterator]


@pytest.mark.parametrize("transform", [None, int], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_new_epoch_of_persistent_replicas_ends_the_one_before(
    threads: int, transform: Any, spawn: Spawn
) -> None:
    replicas = threads if transform is None else 1
    arguments = {"transform": transform, "persistent_workers": True, "prefetch": threads}
    with ThreadLoader(Restarts(), None, threads=threads, **arguments) as loader:
        for _ in range(5):
            before: Any = iter(loader)
            assert spawn(next, before).result(PATIENCE) == 0
            after = iter(loader)
            expected = [row for row in range(9) for _ in range(replicas)]
            assert spawn(rows, after).result(PATIENCE) == expected
            with pytest.raises(ClosedError):
                spawn(next, before).result(PATIENCE)


# A replica that is late ---------------------------------------------------------------------------


class Gated(IterableDataset[Any]):
    """Worker ``w`` yields ``sizes[w]`` samples of its own; worker 0 waits for the gate."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.gate = multiprocessing.get_context("fork").Event()  # threads share it too

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info().id  # type: ignore[union-attr]
        if worker == 0:
            assert self.gate.wait(PATIENCE)
        for row in range(self.sizes[worker]):
            yield 100 * worker + row


def test_a_late_batch_is_torch_s_error_and_the_next_one_to_come(spawn: Spawn) -> None:
    def told(make_loader: MakeLoader) -> Any:
        dataset = Gated(3, 5)
        iterator = iter(make_loader(dataset, 2, timeout=0.05))
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        dataset.gate.set()
        return str(caught.value), list(patiently(iterator))

    message, expected = told(processes(2))
    our_message, our_batches = spawn(told, ours(2)).result(PATIENCE)
    assert our_message.startswith(message)  # ours goes on with what the workers are in
    assert our_batches == expected == [[0, 1], [100, 101], [2], [102, 103], [104]]


@pytest.mark.parametrize(
    ("sizes", "arguments", "early"),
    [
        ([0], {}, 0),
        ([5], {"batch_size": 2}, 0),
        ([0, 0], {"batch_size": 2}, 0),
        ([7, 1], {}, 1),
        ([3, 2, 0], {}, 2),
        ([0, 1, 0, 6], {"batch_size": 2}, 4),
        ([20, 20], {}, 20),
        ([20, 20], {"prefetch_factor": 1}, 20),
        ([20, 20], {"prefetch": 7}, 20),
    ],
    ids=str,
)
def test_out_of_order_a_blocked_replica_holds_nobody_back_and_each_batch_comes_once(
    sizes: list[int], arguments: dict[str, Any], early: int, spawn: Spawn
) -> None:
    size = arguments.pop("batch_size", None)
    dataset = Gated(*sizes)
    iterator = iter(ThreadLoader(dataset, size, threads=len(sizes), in_order=False, **arguments))
    told = spawn(lambda: [next(iterator) for _ in range(early)]).result(PATIENCE)
    dataset.gate.set()
    told += spawn(list, iterator).result(PATIENCE)
    given = [batch if size is None else batch.tolist() for batch in told]
    expected = [
        [100 * batch[0] + batch[1] if size is None else [100 * w + row for w, row in batch]]
        for batch in model(sizes, size)
    ]
    assert sorted(given) == sorted(batch for (batch,) in expected)
    for worker in range(len(sizes)):  # batches of one replica stay in order
        mine = [each for each in given if (each if size is None else each[0]) // 100 == worker]
        assert mine == sorted(mine)


# transform= ---------------------------------------------------------------------------------------


def same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_behind_a_transform_one_replica_is_read_and_the_dataset_is_left_alone(
    threads: int, spawn: Spawn
) -> None:
    for how in ("auto", "deep"):
        dataset = Restarts()
        arguments = {"threads": threads, "transform": same, "dataset_copy": how}
        for start in (0, 100):  # set up by worker 0 alone
            init = dataset.set_up if start else None
            loader = ThreadLoader(dataset, None, worker_init_fn=init, **arguments)
            for _ in range(2):
                assert spawn(lambda loader=loader: next(iter(loader))).result(PATIENCE) == start
                assert spawn(rows, loader).result(PATIENCE) == list(range(start, start + 9))
        assert not vars(dataset)
    shared = ThreadLoader(dataset, None, threads=threads, transform=same, dataset_copy="shared")
    assert spawn(rows, shared).result(PATIENCE) == list(range(9))
    assert dataset.passes == 1
