"""Counters: each thread has its own, and the totals lose none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader._work.counters import Counters, Stats, Totals

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


def _totals(**changed: float) -> Totals:
    zero: dict[str, Any] = dict.fromkeys(Totals.__dataclass_fields__, 0)
    return Totals(**{**zero, **changed})


def test_a_fresh_loader_has_counted_nothing() -> None:
    assert Stats().total() == _totals()


def test_each_thread_has_counters_of_its_own() -> None:
    stats = Stats()
    assert stats.open() is not stats.open()


def test_the_totals_are_the_sums_over_all_threads() -> None:
    stats = Stats()
    for samples in (3, 4):
        counters = stats.open()
        counters.tickets += 1
        counters.samples += samples
        counters.fetch_seconds += 0.5
        counters.collate_seconds += 0.25
    assert stats.total() == _totals(tickets=2, samples=7, fetch_seconds=1.0, collate_seconds=0.5)


def test_a_thread_that_ended_still_counts() -> None:
    stats = Stats()
    counters = stats.open()
    counters.samples += 5
    stats.retire(counters)
    stats.open().samples += 2
    assert stats.total().samples == 7


def test_retired_counters_count_once() -> None:
    stats = Stats()
    counters = stats.open()
    counters.samples += 5
    stats.retire(counters)
    counters.samples += 100
    assert stats.total().samples == 5


def test_retiring_one_of_two_equal_counters_leaves_the_other() -> None:
    stats = Stats()
    first, second = stats.open(), stats.open()
    stats.retire(second)
    first.samples += 1
    second.samples += 100
    assert stats.total().samples == 1


def test_delivered_batches_and_the_wait_for_them_are_counted() -> None:
    stats = Stats()
    stats.delivered(0.5)
    stats.delivered(0.25)
    assert stats.total() == _totals(batches=2, wait_seconds=0.75)


def test_totals_do_not_change_afterwards() -> None:
    stats = Stats()
    before = stats.total()
    stats.open().samples += 1
    stats.delivered(1.0)
    assert before == _totals()


def test_adding_changes_only_the_sum() -> None:
    total, part = Counters(samples=1), Counters(1, 2, 3.0, 4.0)
    total.add(part)
    assert (total.tickets, total.samples, total.fetch_seconds, total.collate_seconds) == (
        1,
        3,
        3,
        4,
    )
    assert (part.tickets, part.samples) == (1, 2)


@pytest.mark.parallel
def test_no_count_is_lost_between_threads(spawn: Callable[..., Future[Any]]) -> None:
    stats = Stats()

    def work() -> None:
        for _ in range(50):
            counters = stats.open()
            for _ in range(20):
                counters.samples += 1
            stats.delivered(1.0)
            stats.retire(counters)

    working = [spawn(work) for _ in range(4)]
    for future in working:
        stats.total()  # reading meanwhile disturbs nothing
        future.result(PATIENCE)
    assert stats.total() == _totals(batches=200, samples=4000, wait_seconds=200.0)
