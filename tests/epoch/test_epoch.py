"""One epoch: in order, all threads behind the oldest batch, no further ahead than the window."""

from __future__ import annotations

import threading
from threading import Barrier, Event
from typing import Any

import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.streams import lists

from threadloader import ClosedError, ThreadLoader

ODD = 13  # in the fourth batch, when the layout has been known for long


class Gated:
    """Sample ``i`` is ``i``; it tells when it is entered and waits until its gate is open."""

    def __init__(self, size: int) -> None:
        self.entered = [Event() for _ in range(size)]
        self.gates = [Event() for _ in range(size)]

    def __len__(self) -> int:
        return len(self.gates)

    def __getitem__(self, index: int) -> int:
        self.entered[index].set()
        assert self.gates[index].wait(PATIENCE)
        return index

    def open(self, *indices: int) -> None:
        for index in indices or range(len(self.gates)):
            self.gates[index].set()

    def await_entry(self, index: int) -> None:
        assert self.entered[index].wait(PATIENCE), f"sample {index} was never asked for"

    def have_entered(self) -> list[int]:
        return [index for index, entered in enumerate(self.entered) if entered.is_set()]


def test_batches_come_in_order_when_later_ones_are_done_first(spawn: Spawn) -> None:
    dataset = Gated(5)
    consumer = spawn(lists, iter(ThreadLoader(dataset, threads=2, prefetch=5)))
    dataset.open(0, 2, 3, 4)  # the first one of all runs alone
    dataset.await_entry(4)  # by the thread that has been through 2 and 3; the other is in 1
    dataset.open(1)
    assert consumer.result(PATIENCE) == [[0], [1], [2], [3], [4]]


@pytest.mark.usefixtures("first_sample_waits")
def test_all_threads_work_on_the_first_batch_at_once(spawn: Spawn) -> None:
    barrier = Barrier(4)
    dataset = Acting(4, lambda _: barrier.wait(PATIENCE))
    loader: ThreadLoader[Any] = ThreadLoader(dataset, batch_size=4, threads=4)
    assert spawn(lists, loader).result(PATIENCE) == [[0, 1, 2, 3]]


@pytest.mark.usefixtures("first_sample_waits")
def test_the_oldest_batch_is_finished_before_the_next_is_begun(spawn: Spawn) -> None:
    dataset = Gated(8)
    consumer = spawn(lists, ThreadLoader(dataset, batch_size=4, threads=2))
    for index in (0, 1):
        dataset.await_entry(index + 1)  # each thread is in a sample: of 0, 1 and then of 1, 2
        dataset.open(index)
        dataset.await_entry(index + 2)
        assert dataset.have_entered() == list(range(index + 3))
    dataset.open()
    assert consumer.result(PATIENCE) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_threads_end_with_the_last_batch_though_the_iterator_is_kept(spawn: Spawn) -> None:
    before = set(threading.enumerate())
    iterator = iter(ThreadLoader(range(4), threads=2))
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    spawn(list, iterator).result(PATIENCE)
    for worker in workers:
        worker.join(PATIENCE)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.usefixtures("first_sample_waits")
def test_close_wakes_a_consumer_before_the_running_samples_end(
    persistent: bool, spawn: Spawn
) -> None:
    dataset = Gated(2)
    loader: ThreadLoader[Any] = ThreadLoader(dataset, threads=2, persistent_workers=persistent)
    consumer = spawn(next, iter(loader))
    dataset.await_entry(1)
    closing = spawn(loader.close)
    with pytest.raises(ClosedError, match="closed"):
        consumer.result(PATIENCE)
    dataset.open()
    closing.result(PATIENCE)


def test_a_sample_that_closes_its_loader_is_the_last_one() -> None:
    fetched: list[int] = []

    def act(index: int) -> None:
        fetched.append(index)
        if index == ODD:
            loader.close()

    loader: ThreadLoader[Any] = ThreadLoader(Acting(22, act), 4, threads=0, output="numpy")
    batches = iter(loader)
    for _ in range(ODD // 4):
        next(batches)
    with pytest.raises(ClosedError):
        next(batches)
    assert fetched == list(range(ODD + 1))


def test_a_sample_can_t_ask_for_the_batch_after_its_own() -> None:
    """Its random stream would be another sample's, and the batch come before its own."""
    dataset = Acting(22, lambda index: index == ODD and next(iterator))
    iterator = iter(ThreadLoader(dataset, 4, threads=0, output="numpy"))
    seen = [next(iterator).tolist() for _ in range(ODD // 4)]
    with pytest.raises(RuntimeError, match="the iterator that loads it"):
        next(iterator)
    seen += lists(iterator)
    assert seen == [list(range(n, min(n + 4, 22))) for n in (0, 4, 8, 16, 20)]
