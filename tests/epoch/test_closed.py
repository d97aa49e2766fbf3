"""Iterators that are closed, or fail, while somebody waits; and what their errors keep."""

from __future__ import annotations

import gc
import weakref
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.streams import make
from support.workers import join_workers

from threadloader import ClosedError, ThreadLoader
from threadloader._work.progress import Progress

if TYPE_CHECKING:
    from support.patience import Spawn


def error_of(iterators: list[Any]) -> Exception:
    """Return the first error that ``next()`` raises; only the list keeps the iterator."""
    while True:
        try:
            next(iterators[0])
        except Exception as error:  # noqa: BLE001  # what the tests are about
            return error


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_kept_error_of_a_closed_iterator_does_not_keep_it(
    threads: int, in_order: bool, spawn: Spawn
) -> None:
    iterators = [iter(make(range(50), 1, threads=threads, in_order=in_order))]
    spawn(next, iterators[0]).result(PATIENCE)
    iterators[0].close()
    error = spawn(error_of, iterators).result(PATIENCE)
    gone = weakref.ref(iterators.pop())
    gc.collect()  # without a GIL an object may outlive its last reference until then
    assert isinstance(error, ClosedError)
    assert gone() is None


@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_of_a_close_during_next_does_not_keep_the_iterator(
    in_order: bool, spawn: Spawn
) -> None:
    wanted, gate = Event(), Event()

    class Slow:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            wanted.set()
            assert gate.wait(PATIENCE)
            return index

    iterators = [iter(make(Slow(), 1, threads=2, in_order=in_order))]
    told = spawn(error_of, iterators)
    assert wanted.wait(PATIENCE)
    iterators[0].cancel()
    error = told.result(PATIENCE)
    gate.set()
    kept = weakref.ref(iterators.pop())
    join_workers()
    gc.collect()
    assert isinstance(error, ClosedError)
    assert kept() is None


@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_that_comes_up_while_the_consumer_waits_costs_no_batch(
    in_order: bool, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    # As a signal handler of the user's raises it, for an alarm say.
    def alarm(*_: object) -> None:
        monkeypatch.undo()
        raise TimeoutError("alarm")

    monkeypatch.setattr(Progress, "wait" if in_order else "wait_for_any", alarm)
    with ThreadLoader(
        range(8), 2, threads=2, in_order=in_order, output="numpy", collate_fn=list
    ) as loader:
        iterator = iter(loader)
        with pytest.raises(TimeoutError, match="alarm"):
            spawn(next, iterator).result(PATIENCE)
        rest = spawn(list, iterator).result(PATIENCE)
        assert sorted(rest) == [[0, 1], [2, 3], [4, 5], [6, 7]]
