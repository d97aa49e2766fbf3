"""Counters: each thread has its own, and the totals lose none."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader._work import counters as counters_module
from threadloader._work import stats as stats_module
from threadloader._work.counters import Counters
from threadloader._work.snapshot import Totals
from threadloader._work.stats import Deliveries, Stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


WINDOW = SimpleNamespace(moment=lambda: (2, 4, 3))  # two threads; of four batches three are done


def _deliver(epoch: Deliveries, batches: int = 1, waited: float = 0.0) -> None:
    epoch.batches += batches
    if waited:
        epoch.waited(waited, reached=0.0, copying=False)


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
    for seconds in (0.5, 0.25):
        epoch = stats.begin_epoch()
        _deliver(epoch, waited=seconds)
        epoch.ended = seconds == 0.5
    assert stats.total() == _totals(batches=2, wait_seconds=0.75)


def test_totals_do_not_change_afterwards() -> None:
    stats = Stats()
    before = stats.total()
    stats.open().samples += 1
    _deliver(stats.begin_epoch(), waited=1.0)
    assert before == _totals()


def test_adding_changes_only_the_sum() -> None:
    stats = Stats()
    first, second = stats.open(), stats.open()
    first.samples, second.tickets, second.samples = 1, 1, 2
    stats.retire(first)
    for _ in range(2):
        assert (stats.total().tickets, stats.total().samples) == (1, 3)
    assert (second.tickets, second.samples) == (1, 2)


def test_writing_is_a_part_of_collating_in_the_totals() -> None:
    stats = Stats()
    counters = stats.open()
    counters.write_seconds, counters.collate_seconds = 1.0, 0.5
    assert stats.total() == _totals(write_seconds=1.0, collate_seconds=1.5)


def test_the_calling_thread_counts_and_is_told_apart() -> None:
    stats = Stats()
    for seconds in (0.75, 0.25):  # two epochs at once, perhaps in two threads
        stats.begin_epoch().calling.fetch_seconds += seconds
    stats.open().fetch_seconds += 2.0
    assert (stats.total().fetch_seconds, stats.total().inline_seconds) == (3.0, 1.0)


def test_epochs_that_follow_each_other_share_their_counters() -> None:
    stats = Stats()
    for _ in range(3):
        training = stats.begin_epoch()
        validation = stats.begin_epoch()
        assert training is not validation
        for epoch in (training, validation):
            _deliver(epoch)
            epoch.ended = True
    assert len(stats._deliveries) == 2  # noqa: SLF001  # or a long run takes more and more memory
    assert stats.total().batches == 6


def test_an_epoch_that_goes_on_beside_another_still_counts() -> None:
    stats = Stats()
    training, validation = stats.begin_epoch(), stats.begin_epoch()
    _deliver(validation, 2)
    validation.ended = True
    again = stats.begin_epoch()
    _deliver(training, 4)
    _deliver(again, 8)
    assert stats.total().batches == 14


def _course(stats: Stats, monkeypatch: pytest.MonkeyPatch, seconds: int) -> list[int]:
    """Deliver a batch in each second; return how many there were, by the history."""
    clock = iter(range(1000, 1001 + 2 * seconds))
    now = [1000.0]
    monkeypatch.setattr(stats_module, "perf_counter", lambda: now[0])
    epoch = stats.begin_epoch()
    for _ in range(seconds):
        now[0] = float(next(clock))
        _deliver(epoch)
        epoch.latest = now[0]
        epoch.note(0.0, stats, WINDOW)
    return [each.batches for each in stats.history()]


def test_the_history_has_a_snapshot_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = Stats()
    assert _course(stats, monkeypatch, 6) == [0, 2, 3, 4, 5, 6, 6]
    first, *rest, last = stats.history((2, 4, 1))
    assert (first.at, last.at) == (1000.0, 1005.0)
    assert {(each.running, each.planned, each.done) for each in rest} == {(2, 4, 3)}
    assert (last.running, last.planned, last.done) == (2, 4, 1)


def test_many_batches_in_a_second_are_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = Stats()
    now = 1000.0
    monkeypatch.setattr(stats_module, "perf_counter", lambda: now)
    epoch = stats.begin_epoch()
    for number in range(1, 1001):
        now = 1000.0 + 0.002 * number
        _deliver(epoch)
        epoch.latest = now
        if now >= epoch.due:
            epoch.note(0.0, stats, WINDOW)
    assert len(stats.history()) == 3


def test_a_long_history_becomes_coarser_and_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "MOST_SNAPSHOTS", 8)
    found = _course(Stats(), monkeypatch, 100)
    assert len(found) <= 9
    steps = {after - before for before, after in pairwise(found[1:-1])}
    assert steps == {16}
    assert (found[0], found[-1]) == (0, 100)


def test_the_last_seconds_are_apart_from_what_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stats = Stats()
    _course(stats, monkeypatch, 3)
    span = stats.recent()
    assert span.after.batches - span.before.batches == 3  # all of it, while there is little
    stats = Stats()
    _course(stats, monkeypatch, 30)
    span = stats.recent()
    assert span.after.batches - span.before.batches == 5


def test_of_jobs_in_a_row_few_are_measured() -> None:
    counters = Stats().open()
    begun = counters.begin_timing()
    sum(range(1000))
    counters.timed(begun.began + 2.0, begun)
    assert counters.timed_seconds == pytest.approx(2.0)
    assert counters.timed_cpu_seconds > 0
    assert counters.watched_delay_seconds >= 0
    assert counters.timing_due > begun.began + 2.0


@pytest.mark.parametrize("gil", [False, True])
def test_what_measuring_takes_is_no_part_of_the_job(
    gil: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)

    def run_delay() -> float:
        clock.now += 5.0  # it gave the GIL away
        return 0.0

    monkeypatch.setattr(counters_module, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(counters_module, "run_delay", run_delay)
    monkeypatch.setattr(counters_module, "gil_is_enabled", lambda: gil)
    counters = Counters()
    for _ in range(4):
        begun = counters.begin_timing()
        clock.now += 1.0
        counters.timed(clock.now, begun)
    assert counters.timed_seconds == (3.0 if gil else 4.0)
    assert counters.watched_seconds == (2 if gil else 4) * 11.0  # as long as the wait was counted


def test_where_asking_gives_the_gil_away_every_second_job_is_asked_for_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0, asking=0.005)

    def run_delay() -> float:
        clock.now += clock.asking
        return 0.0

    def given(jobs: int) -> list[tuple[bool, bool]]:
        asked = []
        for _ in range(jobs):
            begun = counters.begin_timing()
            asked.append((begun.delay is not None, begun.cpu is not None))
            counters.timed(clock.now, begun)
        return asked

    monkeypatch.setattr(counters_module, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(counters_module, "run_delay", run_delay)
    monkeypatch.setattr(counters_module, "gil_is_enabled", lambda: True)
    counters = Counters()
    assert given(5) == [(True, True), (False, True), (True, False), (False, True), (True, False)]
    clock.asking = 1e-5  # nobody takes it
    assert given(3) == [(False, True), (True, True), (True, True)]


def test_threads_with_a_task_are_found_longest_first() -> None:
    stats = Stats()
    idle, later, sooner = (stats.open(number) for number in range(3))
    for counters, began in ((later, 2.0), (sooner, 1.0)):
        counters.task, counters.task_began = "task", began
    assert stats.busy() == [sooner, later]
    assert idle.task is None


@pytest.mark.parallel
def test_no_count_is_lost_between_threads(spawn: Callable[..., Future[Any]]) -> None:
    stats = Stats()

    def work() -> None:
        for _ in range(50):
            counters = stats.open()
            for _ in range(20):
                counters.samples += 1
            epoch = stats.begin_epoch()
            _deliver(epoch, waited=1.0)
            epoch.ended = True
            stats.retire(counters)

    working = [spawn(work) for _ in range(4)]
    for future in working:
        stats.total()  # reading meanwhile disturbs nothing
        future.result(PATIENCE)
    assert stats.total() == _totals(batches=200, samples=4000, wait_seconds=200.0)
