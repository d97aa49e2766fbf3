"""What is counted: all epochs together, the last one, and the last seconds, on a driven clock."""

# ruff: noqa: SLF001  # that a wait has begun has no public name

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.child import printed_by
from support.clock import DrivenClock
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader
from threadloader._report.interval import Interval


def kibibyte(index: int) -> Any:
    return np.full(1024, index % 256, np.uint8)


def made(act: Callable[[int], object] = int, size: int = 40, **options: Any) -> ThreadLoader[Any]:
    """Return a loader of batches of 4, by default in the calling thread."""
    samples = Acting(size, act, kibibyte)
    return ThreadLoader(samples, **{"batch_size": 4, "threads": 0} | options)


def epoch_of(loader: ThreadLoader[Any]) -> Interval:
    """Return what was counted in an epoch."""
    with loader:
        list(loader)
        return loader.statistics().epoch


@pytest.mark.parametrize("threads", [None, 0, 1, 2])
def test_an_epoch_is_counted_by_itself(threads: int | None, spawn: Spawn) -> None:
    with made(threads=threads) as loader:
        for _ in range(2):
            spawn(list, loader).result(PATIENCE)
        statistics = loader.statistics()
    epoch, totals = statistics.epoch, statistics.totals
    assert (epoch.batches, epoch.samples) == (10, 40)
    assert (totals.batches, totals.samples) == (20, 80)
    assert (epoch.nbytes, totals.nbytes) == (40 * 1024, 80 * 1024)
    assert statistics.epochs == 2
    assert statistics.recent.batches <= 10


ROW = np.zeros(1024, np.uint8)
CYCLE: list[Any] = [ROW]
CYCLE += [CYCLE] * 7
SMALL = {str(number): np.zeros(0) for number in range(20)}
COUNTED = {
    "fields that differ": (SMALL | {"image": ROW}, 1024),
    "the same the other way round": ({"image": ROW} | SMALL, 1024),
    "records of a list": ([{"row": ROW, "name": "a"}] * 100, 100 * 1024),
    "a batch that holds itself": (CYCLE, 64 * 1024),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_bytes_of_a_batch_are_those_of_its_arrays(name: str) -> None:
    batch, most = COUNTED[name]
    nbytes = epoch_of(made(size=4, collate_fn=lambda _: batch)).nbytes
    assert 1024 <= nbytes <= most
    assert nbytes == most or batch is CYCLE


def test_rates_and_shares_are_those_of_the_seconds_that_passed(clock: DrivenClock) -> None:
    def act(_: int) -> None:
        clock.idle(0.75)
        clock.compute(0.25)

    with made(act) as loader:
        for _ in islice(iterator := iter(loader), 10):
            clock.compute(4.0)
        epoch = loader.statistics().epoch
        iterator.close()
    assert (epoch.seconds, epoch.samples_per_second, epoch.batches_per_second) == (80, 0.5, 0.125)
    assert (epoch.inline_seconds, epoch.wait_share, epoch.loading_share) == (40, 0.5, 0.5)
    assert (epoch.per_sample.fetch, epoch.stages.fetch, epoch.is_inline) == (1.0, 40, True)
    assert (epoch.cpu_share, epoch.waiting_share, epoch.delay_share) == (0.25, 0.75, 0.0)
    assert (epoch.worker_cores, epoch.cores) == (0.125, 50 / 80)


def test_stages_are_apart_in_an_epoch_and_collating_is_with_writing_in_the_totals(
    clock: DrivenClock,
) -> None:
    def collate(samples: list[Any]) -> list[Any]:
        clock.compute(2.0)
        return samples

    with made(lambda _: clock.idle(1.0), collate_fn=collate) as loader:
        list(loader)
        statistics = loader.statistics()
    stages = statistics.epoch.stages
    assert (stages.fetch, stages.write, stages.collate, stages.copy) == (40, 0, 20, 0)
    assert (statistics.totals.fetch_seconds, statistics.totals.collate_seconds) == (40, 20)
    with made() as loader:
        list(loader)
        totals = loader.statistics().totals
    assert totals.collate_seconds == totals.write_seconds


def test_what_is_neither_waiting_nor_making_batches_is_planning(clock: DrivenClock) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            for index in range(10):
                clock.compute(3.0)
                yield [index]

    loader = ThreadLoader(Acting(40, lambda _: clock.idle(1.0)), batch_sampler=Sampler(), threads=0)
    epoch = epoch_of(loader)
    assert (epoch.plan_seconds, epoch.inline_seconds, epoch.loading_seconds) == (30, 10, 40)


def test_percentiles_are_of_all_batches_but_the_first(clock: DrivenClock) -> None:
    slow = {0: 100.0, **dict.fromkeys(range(40, 78), 0.25), 78: 8.0, 79: 8.0}
    epoch = epoch_of(made(lambda i: clock.idle(slow.get(i, 1e-6)), 100, batch_size=1))
    assert epoch.wait_p50 == 0.0
    assert epoch.wait_p99 == pytest.approx(8.0, rel=0.1)
    assert epoch.first_seconds == pytest.approx(100)
    assert epoch.loading_share == 1.0
    assert epoch.steady_share == pytest.approx(1.0)


def test_an_epoch_ends_with_its_last_batch(clock: DrivenClock) -> None:
    with made(lambda _: clock.compute(1.0)) as loader:
        for leave in (3, None):
            iterator = iter(loader)
            batches = len(list(islice(iterator, leave)))
            del iterator
            clock.compute(900.0)  # a validation, say
            statistics = loader.statistics()
            assert (statistics.epoch.batches, statistics.epoch.seconds) == (batches, 4 * batches)
            assert (statistics.epoch.cores, statistics.recent.cores) == (1.0, 1.0)


def test_the_last_seconds_are_apart_from_what_came_before(clock: DrivenClock) -> None:
    with made(size=400) as loader:
        for number, _ in enumerate(loader):
            clock.idle(0.1 if number < 50 else 1.0)
            if number == 20:  # all of it, while there is little
                assert loader.statistics().recent.seconds == pytest.approx(2.1)
        recent = loader.statistics().recent
    assert recent.seconds == pytest.approx(5.0)
    assert recent.batches_per_second == pytest.approx(1.0)


def test_a_wait_that_lasts_is_counted_already_but_not_in_the_totals(
    clock: DrivenClock, spawn: Spawn
) -> None:
    gate, asked = threading.Event(), threading.Event()

    with made(lambda _: asked.set() or gate.wait(PATIENCE), threads=1) as loader:  # type: ignore[func-returns-value]
        taken = spawn(next, iter(loader))
        assert asked.wait(PATIENCE)
        while not loader._session.kept.stats.last.waits_since:  # type: ignore[union-attr]
            assert not taken.done()
        clock.idle(2.5)
        statistics = loader.statistics()
        assert (statistics.epoch.wait_seconds, statistics.totals.wait_seconds) == (2.5, 0.0)
        gate.set()
        taken.result(PATIENCE)


def test_of_the_window_is_seen_once_a_second_how_much_is_done(
    clock: DrivenClock, spawn: Spawn
) -> None:
    gate, reached = threading.Event(), threading.Event()

    def act(index: int) -> None:
        if index == 3:
            reached.set()
            assert gate.wait(PATIENCE)

    with made(act, batch_size=1, threads=1, prefetch=4) as loader:
        assert loader.statistics().planned == 0
        iterator = iter(loader)
        spawn(next, iterator).result(PATIENCE)
        assert reached.wait(PATIENCE)
        clock.idle(2.0)
        spawn(next, iterator).result(PATIENCE)
        statistics = loader.statistics()
        assert (statistics.planned, statistics.done) == (4, 1)
        assert statistics.epoch.window_share == 0.25
        gate.set()
        spawn(list, iterator).result(PATIENCE)
        assert loader.statistics().planned == 0


def test_threads_that_take_epochs_at_once_lose_no_count(spawn: Spawn) -> None:
    with made(size=4000, output="numpy") as loader, made(threads=2, output="numpy") as threaded:
        epochs = [spawn(lambda: sum(1 for _ in loader)) for _ in range(4)]
        short = [spawn(lambda: [len(list(threaded)) for _ in range(20)]) for _ in range(2)]
        loader.statistics()  # reading meanwhile disturbs nothing
        assert [epoch.result(PATIENCE) for epoch in epochs] == [1000] * 4
        assert [counted.result(PATIENCE) for counted in short] == [[10] * 20] * 2
        totals, of_threads = loader.statistics().totals, threaded.statistics().totals
    assert (totals.batches, totals.samples) == (4000, 16_000)
    assert (of_threads.batches, of_threads.samples) == (400, 1600)


@pytest.mark.filterwarnings("ignore:a sample was left out")
def test_samples_that_fail_take_time_too(clock: DrivenClock) -> None:
    def act(index: int) -> None:
        clock.idle(1.0)
        if index % 2:
            raise ValueError(index)

    epoch = epoch_of(made(act, on_error="skip"))
    assert (epoch.stages.fetch, epoch.samples) == (40, 20)


def test_the_totals_are_those_since_the_loader_was_made_and_are_told_in_few_lines(
    clock: DrivenClock,
) -> None:
    clock.idle(2000.0)
    with made(lambda _: clock.idle(1.0)) as loader:
        for _ in range(2):
            list(loader)
        statistics = loader.statistics()
    assert statistics.totals.seconds == 80
    first, *others = repr(statistics).splitlines()
    assert first == "in all      80 samples, 20 batches, 2 epochs, 80.0 s"
    assert len(others) == 3


# Asks for reports as a signal handler would: as a module of ours begins to be imported, and at each
# line of ours that the loop runs, whatever lock it holds there.
IN_A_HANDLER = """
import signal, sys, warnings
sys.modules["torch"] = None
from importlib.machinery import PathFinder
from threadloader import ThreadLoader

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name.startswith("threadl") else None
        if spec is not None:
            execute = spec.loader.exec_module
            def exec_module(module):
                signal.raise_signal(signal.SIGTERM)
                execute(module)
            spec.loader.exec_module = exec_module
        return spec

class Samples:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return 1 // index

def report(*_):
    loader.statistics(), loader.verdict(), loader.metrics(), loader.state_dict(), repr(loader)

def at_each_line(frame, event, _):
    if "threadloader" in frame.f_code.co_filename:
        if event == "line":
            report()
        return at_each_line

warnings.simplefilter("ignore")
loader = ThreadLoader(Samples(), 4, threads=2, on_error="skip")
signal.signal(signal.SIGTERM, report)
sys.meta_path.insert(0, Interrupts())
report()
sys.settrace(at_each_line)
list(loader)
sys.settrace(None)
print(loader.statistics().skipped_count)
"""


def test_a_report_in_a_signal_handler_meets_neither_half_of_a_module_nor_a_lock() -> None:
    assert printed_by(IN_A_HANDLER) == "1"
