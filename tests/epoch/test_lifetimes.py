"""Iterators, loaders and kept errors: none outlives what it should, or keeps what is over."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.lent_batches import (
    ROWS,
    SIZE,
    Epochs,
    batch_of,
    each_kind_of_threads,
    held,
    make,
    plain_loops,
    sample,
)
from support.patience import PATIENCE
from support.streams import each_output
from support.workers import each_kind_of_workers, join_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

    from threadloader import ThreadLoader

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


def abandon(loader: ThreadLoader[Any]) -> None:
    """Iterate to the second batch, and drop all of it."""
    iterator = iter(loader)
    next(iterator)
    next(iterator)


def test_dropping_a_loader_ends_its_persistent_workers(spawn: Spawn) -> None:
    loader = make(Epochs(), persistent_workers=True)
    spawn(plain_loops, loader, 2).result(PATIENCE)
    assert any("-worker-" in thread.name for thread in threading.enumerate())
    spawn(abandon, loader).result(PATIENCE)
    gone = weakref.ref(loader)
    del loader
    join_workers()
    assert gone() is None


@each_kind_of_workers
def test_dropping_or_closing_one_iterator_leaves_the_other(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    def survive(loader: ThreadLoader[Any]) -> list[Any]:
        survivor, dropped, closed = (iter(loader) for _ in range(3))
        batches = [next(survivor)]
        next(dropped)
        next(closed)
        del dropped
        closed.close()
        return batches + list(survivor)

    with make(Epochs(), **workers) as loader:
        batches = spawn(survive, loader).result(PATIENCE)
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batch_of(0, number))
    assert len(batches) == SIZE // ROWS


@each_kind_of_threads
def test_threads_that_iterate_one_loader_at_once_do_not_disturb_each_other(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    with make(Epochs(), **workers) as loader:
        spawn(plain_loops, loader, 1).result(PATIENCE)  # which starts persistent workers
        consumers = [spawn(list, loader) for _ in range(4)]
        for batches in (consumer.result(PATIENCE) for consumer in consumers):
            assert len(batches) == SIZE // ROWS
            for number, batch in enumerate(batches):
                np.testing.assert_array_equal(batch, batch_of(0, number))


# Kept exceptions


class Broken(Epochs):
    def __init__(self) -> None:
        super().__init__(bad=ROWS + 1)


class BrokenBatches(Broken):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Ragged(Epochs):
    def __getitem__(self, index: int) -> Any:
        return sample(0, index)[: 1 if index == ROWS + 1 else 2]


class Stopping(Epochs):
    def __getitem__(self, index: int) -> Any:
        if index == ROWS + 1:
            raise StopIteration
        return sample(0, index)


def collate_or_fail(samples: list[Any]) -> Any:
    if samples[0][0, 0] == 100 * ROWS:
        raise LookupError
    return np.stack(samples)


class BrokenSampler:
    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(ROWS))
        raise LookupError


BROKEN: dict[str, Callable[..., ThreadLoader[Any]]] = {
    "getitem": lambda **arguments: make(Broken(), **arguments),
    "getitems": lambda **arguments: make(BrokenBatches(), **arguments),
    "StopIteration": lambda **arguments: make(Stopping(), **arguments),
    "default_collate": lambda **arguments: make(Ragged(), **arguments),
    "collate_fn": lambda **arguments: make(Epochs(), collate_fn=collate_or_fail, **arguments),
    "sampler": lambda **arguments: make(
        Epochs(), batch_size=1, batch_sampler=BrokenSampler(), **arguments
    ),
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
