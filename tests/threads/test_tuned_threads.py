"""A loader whose user chose no number of threads: it starts more of them while it runs."""

# ruff: noqa: SLF001  # the limit has no public name

from __future__ import annotations

import gc
import logging
import threading
import time
from typing import Any

import pytest
from support.patience import PATIENCE
from support.shared import SharedSet

from threadloader import ThreadLoader
from threadloader._threads.tuner import Tuner


@pytest.fixture(autouse=True)
def more_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no noise of a busy machine decide."""
    monkeypatch.setattr("threadloader._threads.tuner.MORE_NEEDED", 0.5)


class Reads:
    """Samples that wait, and tell which thread made them.

    Args:
        length: Samples.
        seconds: That each waits.  As a rule so many that on a busy machine, too, the consumer is
            quicker than a dozen threads.
    """

    def __init__(self, length: int = 1 << 30, seconds: float = 0.01) -> None:
        self.length = length
        self.seconds = seconds
        self.names: set[str] = SharedSet()  # all copies have the same

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.names.add(threading.current_thread().name)
        time.sleep(self.seconds)
        return index


def names_after_growth(loader: ThreadLoader[Any], dataset: Reads, threads: int) -> set[str]:
    """Load until so many threads have made samples."""
    end = time.perf_counter() + PATIENCE
    for _ in loader:
        if len(dataset.names) >= threads:
            break
        assert time.perf_counter() < end
    return dataset.names


def test_samples_that_wait_get_more_threads_than_there_are_cores() -> None:
    dataset = Reads()
    with ThreadLoader(dataset, 16, output="numpy") as loader:
        cores = loader.num_workers
        names = names_after_growth(loader, dataset, 4 * cores)
        assert loader.statistics().running > cores
        assert loader.statistics().workers > cores
    prefix = loader._fixed.name
    assert names - {"MainThread"} <= {f"{prefix}-worker-{number}" for number in range(256)}


@pytest.mark.parametrize("given", [{"threads": 2}, {"num_workers": 2}, {"max_threads": 2}])
def test_a_number_that_the_user_chose_is_not_exceeded(given: dict[str, int]) -> None:
    dataset = Reads(800, 0.002)
    with ThreadLoader(dataset, 16, output="numpy", **given) as loader:
        loader.num_workers = 2
        if "max_threads" in given:
            loader.threads = None
        assert sum(1 for _ in loader) == 50
        assert len(dataset.names - {"MainThread"}) <= 2


def test_threads_may_be_left_to_the_loader_again() -> None:
    dataset = Reads()
    with ThreadLoader(dataset, 16, threads=1, output="numpy") as loader:
        loader.threads = None
        assert len(names_after_growth(loader, dataset, 4)) >= 4  # the calling thread among them


def test_only_what_a_loop_does_once_is_no_part_of_what_it_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left_out: list[float] = []

    class Told(Tuner):
        def leave_out(self, seconds: float) -> None:
            left_out.append(round(seconds, 3))

    now = [time.perf_counter()]
    monkeypatch.setattr("threadloader._engine.epoch.perf_counter", lambda: now[0])
    loader = ThreadLoader(list(range(100)))
    loader._session.kept.tuner = Told()
    batches = iter(loader)
    for seconds in (0.01, 0.04, 1.0, 1.5, 1.2, 0.01, 0.4, 0.4):
        next(batches)
        now[0] += seconds
    next(batches)
    assert left_out == [1.0, 0.4]


def test_dropping_the_loader_ends_threads_that_were_started_later() -> None:
    dataset = Reads()
    loader = ThreadLoader(dataset, 16, output="numpy", persistent_workers=True)
    names_after_growth(loader, dataset, 8)
    names = dataset.names - {"MainThread"}
    threads = [each for each in threading.enumerate() if each.name in names]
    assert threads
    del loader
    gc.collect()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_where_no_more_threads_can_be_started_those_that_there_are_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    caplog.set_level(logging.INFO, "threadloader")
    dataset = Reads()
    end = time.perf_counter() + PATIENCE
    with ThreadLoader(dataset, 16, output="numpy", persistent_workers=True) as loader:
        cores = loader.num_workers
        batches = iter(loader)
        monkeypatch.setattr("threadloader._threads.pool.start_all", refuse)
        while not any("can't start new thread" in message for message in caplog.messages):
            assert time.perf_counter() < end
            next(batches)
        assert loader.statistics().running == cores
        assert len(next(batches)) == 16
    assert len(dataset.names) <= cores
