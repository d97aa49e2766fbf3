"""A whole epoch under a controlled scheduler: every batch arrives, in order, and nobody hangs."""

from __future__ import annotations

import contextlib
import gc
import itertools
import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.scheduled import control_pool, explore, it

from threadloader import ClosedError, ThreadLoader
from threadloader._batch import direct_filling, ring
from threadloader._engine import epoch, hanging, maker, open_batch, progress
from threadloader._loader import kept_workers, session
from threadloader._report import stats
from threadloader._threads import pool, tuner, waiting

pytestmark = pytest.mark.interleaving


@pytest.fixture(autouse=True)
def controlled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "Lock", it.Lock)
    monkeypatch.setattr(progress, "SimpleQueue", lambda: queue.SimpleQueue())  # noqa: PLW0108
    monkeypatch.setattr(ring, "RLock", it.RLock)
    monkeypatch.setattr(session, "RLock", it.RLock)
    monkeypatch.setattr(direct_filling, "Lock", it.Lock)
    monkeypatch.setattr(stats, "RLock", it.RLock)
    control_pool(monkeypatch)
    # Looked up within the run, where time passes only while all threads wait.
    monkeypatch.setattr(waiting, "monotonic", lambda: time.monotonic())  # noqa: PLW0108
    monkeypatch.setattr(hanging, "perf_counter", lambda: time.monotonic())  # noqa: PLW0108
    # A second a look, so that tickets have one row and every schedule can be repeated.
    for module in (epoch, maker, open_batch, stats):
        monkeypatch.setattr(module, "perf_counter", itertools.count(1.0).__next__)
    clock = itertools.count(1.0).__next__  # of the time that the consumer waits
    defaults = clock, lambda: 0.0  # and no CPU time
    monkeypatch.setattr(tuner.Tuner.__init__, "__defaults__", defaults)
    # The collector would finalise an iterator in the midst of the scheduler.
    gc.disable()
    yield
    gc.enable()


class Numbers:
    """The numbers from 0; those in ``failing`` raise."""

    def __init__(self, size: int, *failing: int) -> None:
        self.size = size
        self.failing = failing

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index in self.failing:
            raise KeyError(index)
        return index


def _loader(dataset: Any, batch_size: int = 2, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, batch_size, threads=2, prefetch=2, output="numpy", **options)


def _error_of(batches: Iterator[Any]) -> tuple[type[Exception], object]:
    """Return what ``next`` raises, and keep neither it nor its frames."""
    try:
        next(batches)
    except Exception as error:  # noqa: BLE001  # the test tells which
        return type(error), error.args
    pytest.fail("no error")


SWITCHED = [
    module.__file__
    for module in (
        direct_filling,
        epoch,
        maker,
        pool,
        progress,
        ring,
        kept_workers,
        session,
        stats,
        open_batch,
    )
]


def test_every_batch_is_delivered_in_order() -> None:
    def scenario() -> None:
        loader = _loader(Numbers(5))
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
        assert loader.statistics().totals.samples == 5

    explore(scenario, 10, include=SWITCHED)


def test_the_lowest_rows_error_takes_the_place_of_its_batch() -> None:
    def scenario() -> None:
        batches = iter(_loader(Numbers(6, 2, 3)))
        assert next(batches).tolist() == [0, 1]
        assert _error_of(batches) == (KeyError, (2,))
        assert next(batches).tolist() == [4, 5]
        assert _error_of(batches) == (StopIteration, ())

    explore(scenario, 10, include=SWITCHED)


def test_samples_that_do_not_fit_each_other_arrive_in_order() -> None:
    """Rows that were written are read back while others still put theirs aside."""

    class Mixed(Numbers):
        def __getitem__(self, index: int) -> Any:
            return float(index) if index in self.failing else index

    def scenario() -> None:
        loader = _loader(Mixed(4, 1, 2))
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]

    explore(scenario, 6, include=SWITCHED)


def test_closing_from_another_thread_wakes_the_consumer() -> None:
    def scenario() -> None:
        batches = iter(_loader(Numbers(6)))
        closing = it.spawn(batches.close)
        delivered = []
        with contextlib.suppress(ClosedError):
            delivered.extend(batch.tolist() for batch in batches)
        closing.join()
        assert delivered == [[0, 1], [2, 3], [4, 5]][: len(delivered)]

    explore(scenario, 10, include=SWITCHED)


def test_dropping_the_iterator_half_way_ends_all_threads() -> None:
    def scenario() -> None:
        for batch in _loader(Numbers(6)):
            assert batch.tolist() == [0, 1]
            break

    explore(scenario, 10, include=SWITCHED)


def test_persistent_workers_go_on_after_an_epoch_that_was_dropped() -> None:
    def scenario() -> None:
        loader = _loader(Numbers(4), persistent_workers=True)
        next(iter(loader))
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        loader.close()

    explore(scenario, 10, include=SWITCHED)


def test_two_threads_may_begin_the_first_epochs_of_persistent_workers() -> None:
    def scenario() -> None:
        loader = _loader(Numbers(4), persistent_workers=True)
        got: list[Any] = []
        consumers = [
            it.Thread(target=lambda: got.append([batch.tolist() for batch in loader]))
            for _ in range(2)
        ]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
        loader.close()
        assert got == [[[0, 1], [2, 3]]] * 2

    explore(scenario, 6, include=SWITCHED)


def test_close_waits_for_the_threads_of_a_dropped_iterator() -> None:
    def scenario() -> None:
        loader = _loader(Numbers(6))
        batches = iter(loader)
        next(batches)
        del batches
        loader.close()
        samples = loader.statistics().totals.samples
        loader.close()
        assert loader.statistics().totals.samples == samples

    explore(scenario, 10, include=SWITCHED)
