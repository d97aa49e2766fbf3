"""Streams: plain iterables are read once, in order, and no further than is needed."""

from __future__ import annotations

import gc
import warnings
import weakref
from itertools import count, islice
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.child import run_child
from support.patience import PATIENCE
from support.streams import (
    Hiccups,
    Rows,
    each_number_of_threads,
    each_output,
    lists,
    make,
    outcomes,
    patiently,
    square,
)
from support.workers import join_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

    from threadloader import ThreadLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:an iterable that is no IterableDataset"),
    pytest.mark.usefixtures("slots_for_all_leaves"),
]


# Plain iterables


@each_output
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_plain_iterable_is_read_once(workers: int, output: str, spawn: Spawn) -> None:
    loader = make(Rows(7), threads=None, num_workers=workers, output=output)
    for _ in range(2):
        assert spawn(lists, loader).result(PATIENCE) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterator_of_itertools_warns_of_nothing(workers: int, spawn: Spawn) -> None:
    # Python 3.12 warns when one is copied.
    loader = make(islice(count(), 4), threads=workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert spawn(lists, loader).result(PATIENCE) == [[0, 1, 2], [3]]
    assert not caught


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_single_samples_are_not_collated(workers: int, spawn: Spawn) -> None:
    loader = make(iter("abc"), None, threads=workers)
    assert spawn(list, loader).result(PATIENCE) == ["a", "b", "c"]


@pytest.mark.parametrize(("name", "value"), [("shuffle", True), ("sampler", [1])])
def test_a_plain_iterable_has_its_own_order(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"unspecified {name} option"):
        make(Rows(3), **{name: value})


@pytest.mark.parametrize("cores", [1, 4])
def test_without_a_number_of_threads_there_is_one_reader_and_no_warning(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadloader._session.arguments.default_threads", lambda: cores)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert make(Rows(3), threads=None).num_workers == 1
    assert not caught


# What is counted


@each_number_of_threads
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_batch_is_one_ticket_and_epochs_add_up(
    batch_size: int | None, threads: int, spawn: Spawn
) -> None:
    loader = make(Rows(7), batch_size, threads=threads)
    for epochs in (1, 2, 3):
        delivered = len(spawn(list, loader).result(PATIENCE))
        totals = loader.statistics().totals
        assert totals.batches == totals.tickets == epochs * delivered
        assert totals.samples == epochs * 7


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


@each_output
@each_number_of_threads
@pytest.mark.parametrize("transform", [None, square])
def test_kept_batches_never_change(transform: Any, threads: int, output: str, spawn: Spawn) -> None:
    def rows() -> Iterator[Any]:
        for row in range(60):
            yield np.full(4, row)

    loader = make(rows(), 2, threads=threads, prefetch=2, transform=transform, output=output)
    kept = spawn(list, loader).result(PATIENCE)
    change = transform or int
    for number, batch in enumerate(kept):
        expected = [[change(row)] * 4 for row in (2 * number, 2 * number + 1)]
        assert np.asarray(batch).tolist() == expected
    assert len(kept) == 30


@each_number_of_threads
@pytest.mark.parametrize("transform", [None, square])
def test_a_kept_exception_keeps_no_slot_and_no_iterator(
    transform: Any, threads: int, spawn: Spawn
) -> None:
    def keep(loader: ThreadLoader[Any]) -> tuple[Any, Any, int]:
        iterator = iter(loader)
        gone = weakref.ref(iterator)
        next(iterator)
        try:
            next(iterator)
        except LookupError as error:
            kept = error
        del iterator
        left = gone()
        join_workers()
        slots = loader.statistics().slots
        return kept.__traceback__, left, slots.leased + slots.filling

    loader = make(Hiccups(9, {4}), threads=threads, transform=transform)
    traceback, left, slots = spawn(keep, loader).result(PATIENCE)
    assert traceback is not None
    assert (left, slots) == (None, 0)


def test_the_interpreter_ends_cleanly_half_way() -> None:
    program = """
import sys
sys.modules["torch"] = None
from itertools import count
from threadloader import ThreadLoader
plain = iter(ThreadLoader((n for n in count()), 4, threads=1))
changed = iter(ThreadLoader((n for n in count()), 4, threads=3, transform=lambda n: n + 1))
print(next(plain).tolist(), next(changed).tolist())
"""
    assert run_child(program, "-W", "error") == (0, "[0, 1, 2, 3] [1, 2, 3, 4]", "")
