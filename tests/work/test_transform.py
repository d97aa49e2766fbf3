"""A transform is applied to the samples of an iterable by several threads, in order."""

from __future__ import annotations

import threading
from itertools import islice
from threading import Barrier, Thread
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.streams import (
    Rows,
    each_number_of_threads,
    each_output,
    lists,
    make,
    outcomes,
    square,
)


@each_output
@each_number_of_threads
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_a_transform_keeps_the_order(
    batch_size: int | None, threads: int, output: str, spawn: Spawn
) -> None:
    loader = make(Rows(10), batch_size, threads=threads, transform=square, output=output)
    expected = lists(make(map(square, range(10)), batch_size, threads=0))
    assert spawn(lists, loader).result(PATIENCE) == expected


def test_a_transform_of_a_map_style_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="map-style"):
        make([1, 2], transform=square)


def test_a_transform_is_applied_by_several_threads_at_once(spawn: Spawn) -> None:
    together = Barrier(3)

    def meet(row: int) -> int:
        together.wait(PATIENCE)
        return row

    loader = make(Rows(3), 1, threads=4, transform=meet, dataset_copy="shared")
    assert spawn(lists, loader).result(2 * PATIENCE) == [[0], [1], [2]]


@each_number_of_threads
def test_an_error_of_a_transform_names_its_row_and_loses_no_other_batch(
    threads: int, spawn: Spawn
) -> None:
    def fail(row: int) -> int:
        if row == 4:
            raise LookupError(row)
        return row

    loader = make(Rows(9), 3, threads=threads, transform=fail)
    first, error, last = spawn(outcomes, loader).result(PATIENCE)
    assert (first, last) == ([0, 1, 2], [6, 7, 8])
    assert isinstance(error, LookupError)
    assert error.__notes__[0].endswith("batch 1, row 1")


# What is counted


# Persistent workers


each_number_of_workers = pytest.mark.parametrize("threads", [1, 2, 5])
SQUARES = [[0, 1, 4], [9, 16, 25], [36]]


def workers() -> set[Thread]:
    return {thread for thread in threading.enumerate() if "-worker-" in thread.name}


@each_number_of_workers
def test_the_same_threads_go_on_after_an_epoch_that_was_left(threads: int, spawn: Spawn) -> None:
    def some(loader: Any, batches: int) -> list[Any]:
        return lists(islice(loader, batches))

    with make(Rows(7), threads=threads, transform=square, persistent_workers=True) as loader:
        spawn(lists, loader).result(PATIENCE)
        hired = workers()
        for batches in range(3):
            assert spawn(some, loader, batches).result(PATIENCE) == SQUARES[:batches]
            assert spawn(lists, loader).result(PATIENCE) == SQUARES
        assert workers() == hired


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(("size", "batches"), [(0, 0), (2, 0), (3, 1), (8, 2), (9, 3)])
def test_a_short_last_batch_may_be_left_out(
    size: int, batches: int, threads: int, spawn: Spawn
) -> None:
    loader = make(Rows(size), 3, threads=threads, transform=square, drop_last=True)
    expected = [[square(3 * batch + row) for row in range(3)] for batch in range(batches)]
    assert spawn(lists, loader).result(PATIENCE) == expected
