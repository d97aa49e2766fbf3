"""The pool under a controlled scheduler: no order of switches loses a wake-up.

A lost wake-up shows as a deadlock: every thread waits, and the scheduler says for what.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

import pytest
from support.patience import PATIENCE
from support.scheduled import control_pool, explore, it

from threadloader._threads import pool as pool_module
from threadloader._threads.pool import Job, Pool

pytestmark = pytest.mark.interleaving


class Jobs:
    """A work that is a list of jobs."""

    def __init__(self, *jobs: Job[int]) -> None:
        self._left = deque(jobs)

    def claim(self) -> Job[int] | None:
        return self._left.popleft() if self._left else None

    def jobs(self) -> int:
        return max(1, len(self._left))


def ignore(_worker: int) -> None:
    """Do nothing, as a job."""


SWITCHED = [pool_module.__file__]


@pytest.fixture(autouse=True)
def controlled(monkeypatch: pytest.MonkeyPatch) -> None:
    control_pool(monkeypatch)


class Pair:
    """Two jobs that wait for each other, so one thread alone would wait for ever."""

    def __init__(self) -> None:
        self.here, self.there = it.Event(), it.Event()

    def one(self, _worker: int) -> None:
        self.here.set()
        self.there.wait()

    def other(self, _worker: int) -> None:
        self.there.set()
        self.here.wait()

    def wait(self) -> None:
        self.here.wait()
        self.there.wait()


def _pool(size: int) -> Pool[int]:
    return Pool(range(size), "tl", nullcontext)


def _end(pool: Pool[int]) -> None:
    pool.stop()
    pool.join()


def test_a_wake_against_a_thread_going_idle_loses_no_count_of_idle_threads() -> None:
    def scenario() -> None:
        pool = _pool(2)
        pool.put(Jobs(ignore))
        pool.wake()
        it.spawn(ignore, 0).join()  # time to go idle
        pair = Pair()
        pool.put(Jobs(pair.one, pair.other))
        pair.wait()
        _end(pool)

    explore(scenario, iterations=60, include=SWITCHED)


@pytest.mark.parametrize("most", [1, 2])
def test_with_a_limit_each_work_is_run_and_no_more_at_once(most: int) -> None:
    def scenario() -> None:
        pool = Pool(range(3), "tl", nullcontext)
        pool.resize(most)
        running: list[int] = []
        ran: list[int] = []
        done = it.Event()

        def job(worker: int) -> None:
            running.append(worker)
            assert len(running) <= most
            running.remove(worker)
            ran.append(worker)
            if len(ran) == 5:
                done.set()

        for number in (1, 3, 1):
            pool.put(Jobs(*[job] * number))
        done.wait()
        _end(pool)

    explore(scenario, iterations=20)


def test_a_limit_that_is_raised_leaves_no_job_behind() -> None:
    """The jobs wait for each other, so two threads alone would wait for ever."""

    def scenario() -> None:
        pool = Pool(range(3), "tl", nullcontext)
        pool.resize(1)
        met = [it.Event() for _ in range(3)]

        def job(number: int) -> None:
            met[number].set()
            for event in met:
                event.wait()

        # No thread that has a job comes back to take another.
        pool.put(Jobs(*[lambda _worker, n=n: job(n) for n in range(3)]))
        pool.resize(3)
        for event in met:
            event.wait()
        _end(pool)

    explore(scenario, iterations=16)


def test_one_thread_going_idle_against_a_put_under_every_schedule() -> None:
    """Exhaustive: all schedules with at most two preemptions, between any two lines."""

    def scenario() -> None:
        pool = _pool(1)
        ran = it.Event()
        pool.put(Jobs(ignore))
        pool.put(Jobs(lambda _worker: ran.set()))
        ran.wait()
        _end(pool)

    result = it.explore(
        scenario,
        timeout=PATIENCE,
        iterations=20_000,
        strategy="dfs",
        granularity="line",
        include=SWITCHED,
    )
    assert result.exhausted
