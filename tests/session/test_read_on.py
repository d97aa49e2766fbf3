"""What can be read once is read on by the next epoch, and by one thread at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import wait
from threading import Event, Lock
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn, becomes
from support.streams import Rows, lists, make, square
from support.workers import join_workers

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

MOMENT = 0.2  # seconds in which a thread that is not held back would have come in

each_crew = pytest.mark.parametrize(
    ("threads", "transform"), [(1, None), (1, int), (3, int)], ids=str
)


class Once:
    """An iterator; at ``stop`` it waits for the gate, and it counts who is in ``next()``."""

    def __init__(self, size: int, stop: int) -> None:
        self.rows = iter(range(size))
        self.stop = stop
        self.waits = Event()
        self.gate = Event()
        self.counting = Lock()
        self.inside = self.most = 0

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> int:
        with self.counting:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            row = next(self.rows)
            if row == self.stop:
                self.waits.set()
                assert self.gate.wait(PATIENCE)
            return row
        finally:
            with self.counting:
                self.inside -= 1


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def read_on_after_a_break(rows: Any, once: Once, spawn: Spawn, **arguments: Any) -> list[int]:
    """Return the second epoch, which starts while the reader of the first is in ``next()``."""
    loader = make(rows, 1, **arguments)

    def first() -> Any:
        for batch in loader:
            assert once.waits.wait(PATIENCE)
            return batch
        return None

    try:
        assert spawn(first).result(2 * PATIENCE) == [0]
        second = spawn(lists, loader)
        wait([second], MOMENT)
    finally:
        once.gate.set()
    return [row for batch in second.result(PATIENCE) for row in batch]


@each_crew
@pytest.mark.parametrize(
    "rows_of",
    [lambda once: once, lambda once: (row for row in once)],
    ids=["iterator", "generator"],
)
def test_what_can_be_read_once_is_read_on_when_the_reader_before_has_left(
    rows_of: Any, threads: int, transform: Any, spawn: Spawn
) -> None:
    once = Once(40, 2)
    got = read_on_after_a_break(rows_of(once), once, spawn, threads=threads, transform=transform)
    assert got == list(range(40 - len(got), 40))  # what was on its way at the break is lost
    assert once.most == 1


@pytest.mark.parametrize("dataset", [Rows(12), list(range(12))], ids=["plain", "map-style"])
def test_two_iterators_over_persistent_workers_are_independent(dataset: Any, spawn: Spawn) -> None:
    with make(dataset, 1, threads=1, persistent_workers=True, prefetch=1) as loader:
        first = iter(loader)
        assert spawn(next, first).result(PATIENCE) == [0]
        second = iter(loader)
        assert spawn(lists, second).result(PATIENCE) == [[row] for row in range(12)]
        assert spawn(lists, first).result(PATIENCE) == [[row] for row in range(1, 12)]


def test_several_threads_for_a_plain_iterable_are_warned_of_with_all_that_helps() -> None:
    with pytest.warns(UserWarning, match="the others have nothing to do") as caught:
        make(Rows(3), threads=2)
    (warning,) = caught
    assert warning.filename == make.__code__.co_filename  # where they are asked for
    for remedy in ("transform=", "get_worker_info()", "shard(rank, world_size, epoch)"):
        assert remedy in str(warning.message)
    make(Rows(3), threads=1)  # a warning would be an error
    assert make(Rows(3), threads=None).num_workers == 1
    make(Rows(3), threads=2, transform=square)


@pytest.mark.usefixtures("without_gc")
def test_a_slot_of_a_dropped_iterator_is_given_back_without_a_gc(spawn: Spawn) -> None:
    once = Once(100, 2)
    loader = make(once, 2, threads=2, transform=abs)
    iterators = [iter(loader)]  # a list: the test's other threads must not keep the iterator
    try:
        spawn(lambda: next(iterators[0])).result(PATIENCE)
        assert once.waits.wait(PATIENCE)
        iterators.clear()
    finally:
        once.gate.set()
    join_workers()
    assert becomes(lambda: loader.statistics().slots.filling == 0)
