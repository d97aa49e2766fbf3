"""Iterators, loaders, batches and errors: none outlives what it should, or keeps what is over."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest
from support.acting import Acting, Gated
from support.patience import PATIENCE, Spawn
from support.streams import each_output
from support.workers import each_kind_of_workers, join_workers

from threadloader import ClosedError, ThreadLoader

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

SIZE = 24  # samples
ROWS = 3  # samples in a batch
WINDOW = 2  # batches

each_kind_of_threads = pytest.mark.parametrize(
    "workers",
    [{"threads": 2}, {"threads": 2, "persistent_workers": True}],
    ids=["", "persistent"],
)


def sample(epoch: int, index: int) -> Any:
    """Return what no other sample of any other epoch has."""
    return 10_000 * epoch + 100 * index + np.arange(6).reshape(2, 3)


def batch_of(epoch: int, number: int) -> Any:
    return np.stack([sample(epoch, ROWS * number + row) for row in range(ROWS)])


class Epochs:
    """Arrays that tell their epoch and their index."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return sample(self.epoch, index)


class Late(Epochs):
    """In epoch 0 one sample waits until the test lets it go on."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.late = late
        self.entered = Event()
        self.gate = Event()

    def __getitem__(self, index: int) -> Any:
        if self.epoch == 0 and index == self.late:
            self.entered.set()
            assert self.gate.wait(PATIENCE)
        return super().__getitem__(index)


def make(dataset: Any, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": ROWS, "prefetch": WINDOW, "threads": 2, "output": "numpy"}
    return ThreadLoader(dataset, **(defaults | arguments))


def held(loader: ThreadLoader[Any]) -> int:
    """Return how many slots are not free once the workers have ended.

    Called by the consumer: on a free-threaded build it is the thread which made an object that
    finalises it, when it next runs.
    """
    join_workers()
    slots = loader.statistics().slots
    return slots.leased + slots.filling


def slots_of(loader: ThreadLoader[Any]) -> int:
    """Return how many slots there are."""
    slots = loader.statistics().slots
    return slots.free + slots.filling + slots.leased


def plain_loops(loader: ThreadLoader[Any], epochs: int) -> list[int]:
    """Return how many slots there are at each batch of a plain for loop."""
    made = []
    for _ in range(epochs):
        for batch in loader:
            assert len(batch)
            made.append(slots_of(loader))
    return made


# Kept exceptions


def failing(index: int, error: type[Exception] = LookupError) -> Any:
    if index == ROWS + 1:
        raise error(index)
    return sample(0, index)


class WholeBatches(Epochs):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [failing(index) for index in indices]


recovered: list[Exception] = []  # kept, as a log does


def recovering(index: int) -> Any:
    try:
        raise OSError(index)
    except OSError as error:
        recovered.append(error)
    return failing(index)


def collate_or_fail(samples: list[Any]) -> Any:
    if samples[0][0, 0] == 100 * ROWS:
        raise LookupError
    return np.stack(samples)


class BrokenSampler:
    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(ROWS))
        raise LookupError


BROKEN: dict[str, Callable[..., ThreadLoader[Any]]] = {
    "getitem": partial(make, Acting(SIZE, sample=failing)),
    "getitems": partial(make, WholeBatches()),
    "StopIteration": partial(make, Acting(SIZE, sample=partial(failing, error=StopIteration))),
    "recovered": partial(make, Acting(SIZE, sample=recovering)),
    "default_collate": partial(make, Acting(SIZE, sample=lambda n: sample(0, n)[n == ROWS + 1 :])),
    "collate_fn": partial(make, Epochs(), collate_fn=collate_or_fail),
    "sampler": partial(make, Epochs(), batch_size=1, batch_sampler=BrokenSampler()),
}


def first_error(loader: ThreadLoader[Any]) -> tuple[Exception, weakref.ref[Any]]:
    """Iterate to the first error; return it, and what is left of the iterator."""
    iterator = iter(loader)
    gone = weakref.ref(iterator)
    try:
        deque(iterator, maxlen=0)
    except Exception as error:  # noqa: BLE001  # what is kept
        del iterator
        return error, gone
    raise AssertionError("no error")


@each_output
@each_kind_of_workers
@pytest.mark.parametrize("broken", BROKEN)
def test_a_kept_exception_keeps_no_slot_and_no_iterator(
    broken: str, workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    def keep_one(loader: ThreadLoader[Any]) -> tuple[Any, Any, int]:
        error, gone = first_error(loader)
        iterator = gone()
        loader.close()
        return error.__traceback__, iterator, held(loader)

    loader = BROKEN[broken](output=output, **workers)
    traceback, iterator, slots = spawn(keep_one, loader).result(PATIENCE)
    assert traceback is not None
    assert iterator is None
    assert slots == 0


def error_of(iterators: list[Any]) -> Exception:
    """Return the first error that ``next()`` raises; only the list keeps the iterator."""
    while True:
        try:
            next(iterators[0])
        except Exception as error:  # noqa: BLE001  # what the tests are about
            return error


@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_of_a_close_during_next_does_not_keep_the_iterator(
    in_order: bool, spawn: Spawn
) -> None:
    slow = Gated(8, *range(8))
    iterators = [iter(ThreadLoader(slow, 1, threads=2, in_order=in_order, output="numpy"))]
    told = spawn(error_of, iterators)
    assert slow.entered.wait(PATIENCE)
    iterators[0].cancel()
    error = told.result(PATIENCE)
    slow.gate.set()
    kept = weakref.ref(iterators.pop())
    join_workers()
    gc.collect()
    assert isinstance(error, ClosedError)
    assert kept() is None


@pytest.mark.usefixtures("one_row_tickets")
@each_output
@each_kind_of_threads
def test_a_late_sample_of_an_abandoned_batch_is_written_into_no_batch_of_a_later_epoch(
    workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    dataset = Late(late=ROWS + 1)  # in the second batch, whose first row has taken a slot

    def abandon_while_it_runs(loader: ThreadLoader[Any]) -> list[Any]:
        iterator = iter(loader)
        next(iterator)
        assert dataset.entered.wait(PATIENCE)
        del iterator
        dataset.epoch = 1
        kept = list(loader)
        dataset.gate.set()
        loader.close()
        join_workers()  # also those of the iterator that was dropped
        return kept

    # A dataset that is not copied, so that persistent workers see the epoch, too.
    loader = make(dataset, output=output, prefetch=1, dataset_copy="shared", **workers)
    kept = spawn(abandon_while_it_runs, loader).result(PATIENCE)
    for number, batch in enumerate(kept):
        np.testing.assert_array_equal(batch, batch_of(1, number))


def root_of(loader: ThreadLoader[Any]) -> Any:
    """Return the memory of the first batch, 1024 bytes."""
    return next(iter(loader)).reshape(-1)


def plain_loader() -> ThreadLoader[Any]:
    return ThreadLoader([np.arange(1024).astype(np.uint8)], 1, threads=0, output="numpy")


def torch() -> Any:
    return pytest.importorskip("torch")


VIEWS: dict[str, Callable[[np.ndarray[Any, Any]], object]] = {
    "row of rows": lambda root: root.reshape(8, 128)[3][5:],
    "of its memoryview": lambda root: np.asarray(memoryview(root)[4:]),
    "dlpack": lambda root: np.from_dlpack(root[3:]),
    "array of a tensor": lambda root: torch().from_numpy(root[8:].view(np.float32))[2:].numpy(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_keeps_the_slot(view: Callable[[Any], object]) -> None:
    loader = plain_loader()
    kept = view(root_of(loader))
    assert loader.statistics().slots.leased == 1
    del kept
    assert loader.statistics().slots.leased == 0


def test_a_slot_that_another_thread_let_go_is_free(spawn: Spawn) -> None:
    """On a free-threaded build it is its maker that finalises it, as soon as it runs again."""

    def hand_over(loader: ThreadLoader[Any]) -> list[int]:
        hands = [next(iter(loader))]
        leased = [loader.statistics().slots.leased]
        spawn(hands.clear).result(PATIENCE)
        leased.append(loader.statistics().slots.leased)
        return leased

    assert spawn(hand_over, make(Epochs())).result(PATIENCE) == [1, 0]


def test_an_idle_worker_keeps_nothing_of_its_last_batch(spawn: Spawn) -> None:
    class Index:
        """An index that can be referred to weakly."""

    class Constant:
        def __getitem__(self, index: Index) -> int:
            return 0

    gone = Event()

    def one_index() -> Iterator[Index]:
        index = Index()
        weakref.finalize(index, gone.set)
        yield index

    with make(Constant(), sampler=one_index(), threads=1, persistent_workers=True) as loader:
        spawn(list, loader).result(PATIENCE)
        # In short waits: on a free-threaded build it may be this thread that has to finalise it.
        assert any(gone.wait(PATIENCE / 1000) for _ in range(1000))


@each_output
@each_kind_of_workers
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_plain_loop_needs_at_most_two_slots_more_than_the_window(
    window: int, workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    # Two threads that are both late may hold no more than what is planned: not one more.
    with make(Epochs(), prefetch=window, output=output, **workers) as loader:
        made = spawn(plain_loops, loader, 5).result(PATIENCE)
    assert max(made) <= window + 2


def loops_with_breaks(loader: ThreadLoader[Any], epochs: int) -> int:
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            assert len(batch)
            if number == 3:
                break
        if not loader.persistent_workers:
            join_workers()  # a sample that is running at the break keeps its batch until it ends
    return slots_of(loader)


@each_kind_of_workers
def test_a_break_in_each_epoch_takes_no_slot_away(workers: dict[str, Any], spawn: Spawn) -> None:
    with make(Epochs(), **workers) as loader:
        made = spawn(loops_with_breaks, loader, 20).result(PATIENCE)
        running = loader.num_workers - 1 if loader.persistent_workers else 0
    assert made <= WINDOW + 2 + running


class Sample:
    """What nothing but a batch keeps."""


@pytest.mark.parametrize("workers", [{"threads": 0}, {"threads": 2}], ids=str)
def test_an_error_of_a_collate_function_that_is_forgotten_keeps_no_sample(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    alive: weakref.WeakSet[Sample] = weakref.WeakSet()

    def make_sample(_: int) -> Sample:
        alive.add(sample := Sample())
        return sample

    def run() -> int:
        with ThreadLoader(
            Acting(4, sample=make_sample), 4, collate_fn=lambda _: 1 // 0, **workers
        ) as loader:
            gc.collect()
            gc.disable()
            try:
                with suppress(ZeroDivisionError):
                    list(loader)
            finally:
                loader.close()
                gc.enable()
        join_workers()
        return len(alive)

    assert spawn(run).result(PATIENCE) == 0
