"""An interval: what was counted between two moments, as rates, waits and shares."""

from __future__ import annotations

import threading
import time
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._report.interval import Interval, interval_of
from threadloader._work import stats as stats_module
from threadloader._work.snapshot import Span
from threadloader._work.stats import Deliveries, Stats

if TYPE_CHECKING:
    from support.patience import Spawn


class Rows:
    """Sample ``i`` is ``i`` as an array of 1 KiB."""

    def __init__(self, size: int = 40) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return np.full(1024, index, np.uint8)


class Course:
    """An epoch of four seconds, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(stats_module, "perf_counter", lambda: self.now)
        self.stats = Stats()
        self.epoch = self.stats.begin_epoch()
        self.epoch.due = 1e6  # the first batch was before

    def call(self, seconds: float, times: int = 1) -> None:
        """Let ``next()`` take so long."""
        for _ in range(times):
            self.epoch.latest = 100.0 + seconds
            self.epoch.batches += 1
            self.epoch.loading_seconds += seconds
            self.epoch.note(seconds, self.stats, None)  # type: ignore[arg-type]  # not due

    def interval(self) -> Interval:
        self.now = 104.0
        return interval_of(self.stats.epoch(), threads=2)


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> Course:
    return Course(monkeypatch)


def _between(stats: Stats, act: Any) -> Interval:
    before = stats.snapshot(10.0)
    act(stats.begin_epoch())
    return interval_of(Span(before, stats.snapshot(14.0), ()), threads=2)


def test_rates_are_what_was_counted_by_the_seconds_between() -> None:
    stats = Stats()
    stats.open().samples += 100
    stats.begin_epoch().batches += 1

    def act(epoch: Deliveries) -> None:
        stats.open().samples += 8
        epoch.batches += 2
        epoch.waited(1.0, reached=0.0, copying=False)
        epoch.nbytes += 64

    interval = _between(stats, act)
    assert (interval.seconds, interval.batches, interval.samples) == (4.0, 2, 8)
    assert (interval.samples_per_second, interval.batches_per_second) == (2.0, 0.5)
    assert (interval.wait_seconds, interval.wait_share, interval.nbytes) == (1.0, 0.25, 64)


def test_percentiles_count_batches_that_nobody_waited_for(course: Course) -> None:
    course.call(1e-6, 60)
    course.call(0.25, 38)
    course.call(8.0, 2)
    interval = course.interval()
    assert interval.wait_p50 == 0.0
    assert interval.wait_p99 == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize("seconds", [2e-4, 0.003, 0.05, 0.999, 1.0, 7.0, 3600.0])
def test_a_wait_is_found_again_to_some_percent(seconds: float, course: Course) -> None:
    course.call(seconds)
    interval = course.interval()
    assert interval.wait_p50 == pytest.approx(seconds, rel=0.1)
    assert interval.wait_p99 == interval.wait_p50


def test_the_first_batch_is_apart(course: Course) -> None:
    course.epoch.due = 0.0
    course.call(2.0)
    course.call(0.001)
    interval = course.interval()
    assert interval.wait_p99 == pytest.approx(0.001, rel=0.1)
    assert interval.loading_share == pytest.approx(0.50025)
    assert interval.steady_share == pytest.approx(0.0005)


def test_what_is_neither_waiting_nor_making_batches_is_planning(course: Course) -> None:
    course.call(2.0)
    course.epoch.waited(0.5, reached=0.0, copying=False)
    course.epoch.calling.fetch_seconds += 0.75
    course.stats.open().fetch_seconds += 3.0
    interval = course.interval()
    assert (interval.loading_seconds, interval.wait_seconds) == (2.0, 0.5)
    assert (interval.inline_seconds, interval.plan_seconds) == (0.75, 0.75)
    assert interval.wait_share == 1.25 / 4.0
    assert not interval.is_inline


def test_stages_are_apart() -> None:
    stats = Stats()

    def act(_: Deliveries) -> None:
        counters = stats.open()
        counters.samples, counters.fetch_seconds = 4, 2.0
        counters.collate_seconds, counters.write_seconds = 2.0, 1.0
        stats.copied(0.5)

    interval = _between(stats, act)
    stages = interval.stages
    assert (stages.fetch, stages.write, stages.collate, stages.copy) == (2.0, 1.0, 2.0, 0.5)
    assert interval.per_sample.fetch == 0.5
    assert interval.busy_seconds == 5.0
    assert interval.pool_share == 5.0 / 8.0


def test_the_share_of_cpu_time_is_that_of_the_tickets_that_were_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = count(0.0, 8.0)
    monkeypatch.setattr(stats_module, "process_use", lambda: (next(used), 0))
    stats = Stats()

    def act(_: Deliveries) -> None:
        counters = stats.open()
        counters.fetch_seconds = 8.0
        counters.timed_seconds, counters.timed_cpu_seconds = 2.0, 0.5
        counters.watched_seconds, counters.watched_delay_seconds = 4.0, 0.5

    interval = _between(stats, act)
    assert interval.cpu_share == 0.25
    assert interval.worker_cores == 0.5
    assert (interval.delay_share, interval.waiting_share) == (0.125, 0.625)


def test_samples_have_no_more_cpu_time_than_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    used = count(0.0, 2.0)
    monkeypatch.setattr(stats_module, "process_use", lambda: (next(used), 0))
    stats = Stats()

    def act(_: Deliveries) -> None:
        counters = stats.open()
        counters.fetch_seconds = 8.0
        counters.timed_seconds = counters.timed_cpu_seconds = 1.0  # the few that never waited

    interval = _between(stats, act)
    assert (interval.cpu_share, interval.worker_cores, interval.cores) == (0.25, 0.5, 0.5)


def test_what_was_not_measured_is_unknown() -> None:
    interval = _between(Stats(), lambda _: None)
    unknown = (interval.cpu_share, interval.waiting_share, interval.window_share)
    assert (*unknown, interval.worker_cores, interval.delay_share) == (None,) * 5
    assert (interval.wait_p50, interval.wait_p99, interval.samples_per_second) == (0.0, 0.0, 0.0)


def test_a_window_that_is_full_now_and_then_is_seen() -> None:
    window = SimpleNamespace(moment=lambda: (2, 4, 3))
    stats = Stats()

    def act(epoch: Deliveries) -> None:
        for _ in range(3):
            epoch.due = -1.0  # long ago
            epoch.note(0.0, stats, window)

    assert _between(stats, act).window_share == 0.75


@pytest.mark.parametrize("threads", [None, 0, 1, 2])
def test_an_epoch_is_counted_by_itself(threads: int | None, spawn: Spawn) -> None:
    with ThreadLoader(Rows(), batch_size=4, threads=threads, output="numpy") as loader:
        for _ in range(2):
            spawn(list, loader).result(PATIENCE)
        statistics = loader.statistics()
    assert (statistics.epoch.batches, statistics.epoch.samples) == (10, 40)
    assert (statistics.totals.batches, statistics.totals.samples) == (20, 80)
    assert statistics.epochs == 2
    assert statistics.recent.batches <= 10


def test_an_epoch_that_ended_takes_no_longer_and_longer(spawn: Spawn) -> None:
    with ThreadLoader(Rows(), batch_size=4, threads=2, output="numpy") as loader:
        spawn(list, loader).result(PATIENCE)
        seconds = {loader.statistics().epoch.seconds for _ in range(3)}
        assert len(seconds) == 1
        iterator = iter(loader)
        next(iterator)
        goes_on = [loader.statistics().epoch.seconds for _ in range(3)]
        assert goes_on[0] < goes_on[1] < goes_on[2]
        del iterator
        assert len({loader.statistics().epoch.seconds for _ in range(3)}) == 1


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_the_process_does_after_an_epoch_is_none_of_it(
    broken_off: bool, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [(0.0, 0)]
    monkeypatch.setattr(stats_module, "process_use", lambda: used[-1])
    with ThreadLoader(Rows(), batch_size=4, threads=2, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        used.append((2.0, 1000))
        if not broken_off:
            spawn(list, iterator).result(PATIENCE)
        del iterator
        used.append((900.0, 10**9))  # a validation, and a checkpoint that is read
        for interval in (loader.statistics().epoch, loader.statistics().recent):
            assert interval.cores * interval.seconds == pytest.approx(2.0)
            assert interval.read_nbytes == 1000


def test_a_wait_that_lasts_is_counted_already(course: Course) -> None:
    course.call(1.0)
    course.epoch.waits_since = 101.5
    interval = course.interval()  # at 104
    assert (interval.wait_seconds, interval.loading_seconds) == (2.5, 3.5)
    assert course.stats.total().wait_seconds == 0  # it must not fall when the wait ends


@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_are_those_of_the_batches(threads: int, spawn: Spawn) -> None:
    with ThreadLoader(Rows(), batch_size=4, threads=threads, output="numpy") as loader:
        spawn(list, loader).result(PATIENCE)
        assert loader.statistics().epoch.nbytes == 40 * 1024


def test_what_is_planned_and_done_now_is_seen(spawn: Spawn) -> None:
    gate = threading.Event()

    class Gated(Rows):
        def __getitem__(self, index: int) -> Any:
            assert index == 0 or gate.wait(PATIENCE)
            return index

    with ThreadLoader(Gated(), threads=1, prefetch=3) as loader:
        assert loader.statistics().planned == 0
        iterator = iter(loader)
        spawn(next, iterator).result(PATIENCE)
        statistics = loader.statistics()
        assert (statistics.planned, statistics.done) == (3, 0)
        gate.set()
        spawn(list, iterator).result(PATIENCE)
        assert loader.statistics().planned == 0


def test_writing_and_collating_are_counted_apart(spawn: Spawn) -> None:
    def collate(samples: list[Any]) -> list[Any]:
        time.sleep(0.005)
        return list(samples)

    with ThreadLoader(Rows(), 4, threads=1, output="numpy") as loader:
        spawn(list, loader).result(PATIENCE)
        assert loader.statistics().epoch.stages.write > 0
    with ThreadLoader(Rows(), 4, collate_fn=collate, threads=1) as loader:
        spawn(list, loader).result(PATIENCE)
        assert loader.statistics().epoch.stages.collate >= 10 * 0.005


def test_batches_that_the_calling_thread_makes_are_waited_for(spawn: Spawn) -> None:
    with ThreadLoader(range(40), 4, threads=0, output="numpy") as loader:
        spawn(list, loader).result(PATIENCE)
        epoch = loader.statistics().epoch
    assert epoch.is_inline
    assert epoch.inline_seconds == epoch.busy_seconds > 0
    assert epoch.loading_seconds > epoch.inline_seconds
    assert epoch.wait_share > 0
    assert epoch.pool_share is None


@pytest.mark.parallel
def test_threads_that_make_batches_themselves_are_counted_each(spawn: Spawn) -> None:
    with ThreadLoader(range(20_000), batch_size=4, threads=0, output="numpy") as loader:
        epochs = [spawn(lambda: sum(1 for _ in loader)) for _ in range(4)]
        assert [epoch.result(PATIENCE) for epoch in epochs] == [5_000] * 4
        totals = loader.statistics().totals
    assert (totals.batches, totals.samples) == (20_000, 80_000)


def test_the_history_goes_over_epochs(spawn: Spawn) -> None:
    with ThreadLoader(Rows(), 4, threads=2) as loader:
        for _ in range(3):
            spawn(list, loader).result(PATIENCE)
        first, *_, last = loader._session.history()  # noqa: SLF001  # for a plot of it
    assert (first.batches, last.batches, last.samples) == (0, 30, 120)
    assert (first.epochs, last.epochs) == (0, 3)


def test_a_copy_of_a_loader_has_counted_nothing(spawn: Spawn) -> None:
    import copy  # noqa: PLC0415  # for this test alone

    with ThreadLoader(Rows(), 4, threads=1) as loader:
        spawn(list, loader).result(PATIENCE)
        twin = copy.copy(loader)
        assert twin.statistics().epoch.batches == twin.statistics().epochs == 0
