"""Streams: plain iterables are read once, in order, and no further than is needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count, islice
from threading import Event
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.streams import (
    Hiccups,
    each_number_of_threads,
    lists,
    make,
    outcomes,
    patiently,
    square,
)
from support.workers import join_workers

from threadloader import ThreadLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:an iterable that is no IterableDataset"),
    pytest.mark.usefixtures("slots_for_all_leaves"),
]


# Plain iterables


# What is counted


@each_number_of_threads
def test_an_error_counts_as_a_batch_and_its_samples_do_not(threads: int, spawn: Spawn) -> None:
    loader = make(Hiccups(9, {4}), threads=threads)
    told = spawn(outcomes, loader).result(PATIENCE)
    totals = loader.statistics().totals
    assert (totals.batches, totals.tickets, totals.samples) == (len(told), 3, 7)


# A time limit


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("transform", [None, square])
def test_a_batch_that_is_read_late_times_out_and_is_the_next_to_come(
    transform: Any, threads: int, spawn: Spawn
) -> None:
    gate = Event()

    def rows() -> Iterator[int]:
        yield from range(3)
        assert gate.wait(PATIENCE)
        yield from range(3, 7)

    expected = lists(make(map(transform or int, range(7)), 3, threads=0))
    iterator = iter(make(rows(), 3, threads=threads, transform=transform, timeout=0.05))
    batches = patiently(iterator)
    assert spawn(next, batches).result(PATIENCE) == expected[0]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0\.05 seconds"):
            spawn(next, iterator).result(PATIENCE)
    gate.set()
    assert spawn(list, batches).result(PATIENCE) == expected[1:]


# How far it is read, and what is left


@pytest.mark.parametrize("transform", [None, square])
def test_no_more_is_read_than_the_window_and_one_batch(transform: Any, spawn: Spawn) -> None:
    read: list[int] = []

    def rows() -> Iterator[int]:
        for row in range(10_000):
            read.append(row)
            yield row

    def two(loader: ThreadLoader[Any]) -> int:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        del iterator
        join_workers()
        return len(read)

    loader = make(rows(), 3, threads=3, prefetch=2, transform=transform)
    assert spawn(two, loader).result(PATIENCE) <= 3 * (2 + 2)


@each_number_of_threads
@pytest.mark.parametrize("transform", [None, square])
def test_an_endless_stream_may_be_left(threads: int, transform: Any, spawn: Spawn) -> None:
    def some() -> tuple[list[Any], int, int]:
        loader = make((row for row in count()), 2, threads=threads, transform=transform)
        got = lists(islice(loader, 3))
        join_workers()
        gc.collect()
        slots = loader.statistics().slots
        return got, slots.leased, slots.filling

    got, *slots = spawn(some).result(PATIENCE)
    change = transform or int
    assert got == [[change(2 * row), change(2 * row + 1)] for row in range(3)]
    assert slots == [0, 0]
