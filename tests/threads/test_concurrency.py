"""How many threads run jobs at once: found by trying, on traces of what jobs take."""

# ruff: noqa: SLF001  # the limit has no public name

from __future__ import annotations

import copy
import os
import pickle
import random
import sys
from contextlib import nullcontext, suppress
from threading import Barrier, Event, Lock, get_ident
from time import perf_counter, sleep, thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._threads import concurrency as concurrency_module
from threadloader._threads import thread_group
from threadloader._threads.advice import LONGEST_PAUSE, Range
from threadloader._threads.concurrency import Concurrency, gil_is_enabled
from threadloader._threads.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader._threads.thread_group import Job

# What a job of eight samples takes where ``running`` threads run jobs: its seconds, and its CPU's.
Data = "Callable[[int], tuple[float, float]]"
SAMPLES = 8


def holds_the_lock(running: int) -> tuple[float, float]:
    """Pure Python: the threads take turns."""
    return 1e-3 * running * (1.05 if running > 1 else 1), 1e-3


def changes_hands(running: int) -> tuple[float, float]:
    """Short operators: each release of the lock wakes another thread."""
    return 1e-3 * running * (4 if running > 1 else 1), 1.2e-3


def waits(_running: int) -> tuple[float, float]:
    """Reads: the threads wait side by side."""
    return 1e-2, 2e-4


def computes(running: int) -> tuple[float, float]:
    """A decoder that releases the lock: as fast with any number of threads."""
    return 2e-3 * (1 + 0.01 * running), 2e-3


def half_and_half(running: int) -> tuple[float, float]:
    """Half of it releases the lock: with more than two threads the lock is what is waited for."""
    return max(2e-3, 1e-3 * running * 1.1), 2e-3


def long_samples(running: int) -> tuple[float, float]:
    """Pure Python of a tenth of a second: threads that take turns every 5 ms lose nothing."""
    return 0.1 * running, 0.1


class Simulation:
    """Threads that run jobs of the same length, on a clock of their own."""

    def __init__(
        self, threads: int, noise: float = 0.0, most: int = 0, *, has_gil: bool = True
    ) -> None:
        self.most = max(threads, most)
        self.waits = 1.0  # share of its time that the consumer waits
        self.busy = 1.0  # share of their time that the threads have jobs
        self.delayed = False  # whether threads wait for cores
        self.now = 0.0
        self.used = 0.0  # CPU seconds of the threads
        self.concurrency = Concurrency(lambda: self.now, lambda: self.used)
        self.concurrency.serve(Range(threads, max(threads, most), has_gil))
        self._rng = random.Random(0)
        self._noise = noise

    @property
    def running(self) -> int:
        return min(self.concurrency.limit, self.most)

    def run(self, data: Callable[[int], tuple[float, float]], seconds: float) -> list[int]:
        """Return the threads that ran jobs, at each job."""
        end, seen = self.now + seconds, []
        while self.now < end:
            running = self.running
            wall, cpu = data(running)
            wall *= 1 + self._rng.uniform(0, self._noise)
            seconds = wall / running / self.busy
            self.used += cpu
            self.concurrency.begin_wait()
            self.now += self.waits * seconds
            self.concurrency.end_wait()
            self.now += (1 - self.waits) * seconds
            if self.now >= self.concurrency.due:
                limit = self.concurrency.limit
                asked = self.delayed and self.concurrency.asks_delay
                delay = wall - cpu if asked else 0.0
                self.concurrency.measured(limit, SAMPLES, wall, cpu, delay)
            seen.append(running)
        return seen


@pytest.fixture(autouse=True)
def a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both builds decide as where there is a GIL."""
    monkeypatch.setattr(concurrency_module, "gil_is_enabled", lambda: True)
    monkeypatch.setattr("threadloader._work.workers.gil_is_enabled", lambda: True)


@pytest.mark.parametrize("threads", [2, 3, 8, 32])
@pytest.mark.parametrize("data", [holds_the_lock, changes_hands])
def test_one_thread_runs_where_all_of_them_are_slower(data: Any, threads: int) -> None:
    simulated = Simulation(threads)
    simulated.run(data, 2.0)
    assert simulated.concurrency.limit == 1


@pytest.mark.parametrize("threads", [2, 3, 8, 32])
@pytest.mark.parametrize("data", [waits, computes, long_samples])
def test_all_threads_run_where_that_is_faster(data: Any, threads: int) -> None:
    simulated = Simulation(threads)
    seen = simulated.run(data, 60.0)
    assert simulated.concurrency.limit >= threads
    # Tries included, of which there are fewer and fewer.
    assert np.mean(np.array(seen) >= threads) > 0.95


def test_data_that_does_not_wait_is_never_tried_with_fewer_threads() -> None:
    assert set(Simulation(8).run(computes, 60.0)) == {8}
    assert set(Simulation(8).run(long_samples, 60.0)) == {8}


def test_the_number_in_between_is_found() -> None:
    simulated = Simulation(16)
    simulated.run(half_and_half, 5.0)
    assert simulated.concurrency.limit == 2


@pytest.mark.parametrize("threads", [2, 8])
def test_a_number_is_found_again_when_the_data_changes(threads: int) -> None:
    simulated = Simulation(threads)
    simulated.run(changes_hands, 10.0)
    assert simulated.concurrency.limit == 1
    simulated.run(waits, LONGEST_PAUSE + 10)
    assert simulated.concurrency.limit >= threads
    simulated.run(changes_hands, LONGEST_PAUSE + 10)
    assert simulated.running < threads


@pytest.mark.parametrize("data", [changes_hands, waits])
def test_trying_costs_little(data: Any) -> None:
    simulated = Simulation(2, noise=0.5)
    simulated.run(data, 10.0)
    best = 1 if data is changes_hands else 2
    seen = simulated.run(data, 120.0)
    assert np.mean(np.array(seen) != best) < 0.03


def test_threads_that_wait_for_a_core_are_not_taken_for_threads_that_wait_for_each_other() -> None:
    simulated = Simulation(2, noise=0.5)
    simulated.delayed = True
    assert set(simulated.run(lambda _running: (4e-3, 2e-3), 60.0)) == {2}


def test_a_try_that_is_clearly_a_mistake_ends_after_a_few_jobs() -> None:
    simulated = Simulation(2)
    seen = simulated.run(waits, 1.0)
    assert 0 < seen.count(1) <= 8
    assert simulated.concurrency.limit >= 2


def test_a_stall_lets_all_threads_run_for_a_while() -> None:
    simulated = Simulation(4)
    simulated.run(changes_hands, 2.0)
    simulated.concurrency.stalled(4)
    assert simulated.concurrency.limit >= 4
    assert set(simulated.run(changes_hands, 0.9)) == {4}
    simulated.run(changes_hands, LONGEST_PAUSE)
    assert simulated.running < 4


def test_jobs_that_began_under_another_limit_do_not_count() -> None:
    simulated = Simulation(2)
    for _ in range(1000):
        simulated.concurrency.measured(1, 2, SAMPLES, 1.0, 0.1)
    assert simulated.concurrency.limit >= 2


def test_without_a_lock_all_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadloader._work.workers.gil_is_enabled", lambda: False)
    loader: ThreadLoader[Any] = ThreadLoader(range(8), 2, threads=2, persistent_workers=True)
    with loader:
        list(loader)
        workers = loader._session.kept_workers.workers
        assert workers is not None
        assert workers.pools[0].concurrency is None


def test_this_build_says_whether_it_has_a_lock() -> None:
    assert gil_is_enabled() == getattr(sys, "_is_gil_enabled", lambda: True)()


def test_a_copy_finds_its_own_number() -> None:
    concurrency = Concurrency()
    concurrency.limit = 1
    for copied in (copy.copy(concurrency), pickle.loads(pickle.dumps(concurrency))):
        assert copied.limit == sys.maxsize


# In a pool


class Jobs:
    """A work of many jobs, which are the same."""

    def __init__(self, job: Job[int], number: int) -> None:
        self._job, self._left = job, number

    def claim(self) -> Job[int] | None:
        if not self._left:
            return None
        self._left -= 1
        return self._job

    def jobs(self) -> int:
        return max(1, self._left)


@pytest.fixture
def pool() -> Iterator[Pool[int]]:
    pool: Pool[int] = Pool(4, "tl7", nullcontext, concurrency=Concurrency())
    try:
        yield pool
    finally:
        pool.stop()
        pool.join()


def limit(pool: Pool[int], threads: int) -> None:
    assert pool.concurrency is not None
    pool.concurrency.limit = threads


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_jobs_run_at_once_than_the_limit(pool: Pool[int], most: int) -> None:
    running, seen, lock, done = 0, [], Lock(), Event()

    def job(_: int) -> None:
        nonlocal running
        with lock:
            running += 1
            seen.append(running)
        sleep(1e-4)
        with lock:
            running -= 1
            if len(seen) == 100:
                done.set()

    limit(pool, most)
    for _ in range(10):
        pool.put(Jobs(job, 10))
    assert done.wait(PATIENCE)
    assert max(seen) <= most


def test_the_thread_that_runs_jobs_takes_the_next_one(pool: Pool[int]) -> None:
    seen: list[int] = []
    done = Event()

    def job(_: int) -> None:
        seen.append(get_ident())
        if len(seen) == 100:
            done.set()

    limit(pool, 1)
    pool.put(Jobs(job, 100))
    assert done.wait(PATIENCE)
    assert len(set(seen)) == 1


def test_jobs_that_wait_for_each_other_all_run(pool: Pool[int]) -> None:
    together = Barrier(5)
    limit(pool, 1)
    for _ in range(3):
        pool.put(Jobs(lambda _: together.wait(PATIENCE) and None, 4))
        together.wait(PATIENCE)
    assert pool.concurrency is not None
    assert pool.concurrency.limit >= 4


def test_jobs_that_wait_for_a_later_work_all_run(pool: Pool[int]) -> None:
    """The first is taken when nothing else is there yet."""
    began, go_on, done = Event(), Event(), Event()

    def first(_: int) -> None:
        began.set()
        assert go_on.wait(PATIENCE)
        done.set()

    limit(pool, 1)
    pool.put(Jobs(first, 1))
    assert began.wait(PATIENCE)
    pool.put(Jobs(lambda _: go_on.set(), 1))
    assert done.wait(PATIENCE)


def test_a_higher_limit_wakes_threads(pool: Pool[int]) -> None:
    together, done = Barrier(4), Event()

    def job(_: int) -> None:
        limit(pool, 4)
        together.wait(PATIENCE)
        done.set()

    limit(pool, 1)
    pool.put(Jobs(job, 4))
    assert done.wait(PATIENCE)


def test_jobs_may_wait_for_later_ones_when_another_pool_has_lowered_the_limit(
    pool: Pool[int],
) -> None:
    began, go_on, done = Event(), Event(), Event()

    def first(_: int) -> None:
        began.set()
        assert go_on.wait(PATIENCE)
        done.set()

    idle = pool.thread_group
    pool.put(Jobs(lambda _: None, 1))
    end = perf_counter() + PATIENCE
    while idle._idle < 4:
        assert perf_counter() < end
        sleep(1e-3)
    pool.put(Jobs(first, 1))
    assert began.wait(PATIENCE)
    limit(pool, 1)
    pool.put(Jobs(lambda _: go_on.set(), 1))
    assert done.wait(PATIENCE)


def test_a_long_job_alone_is_no_stall(pool: Pool[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_group, "STANDBY_SECONDS", 1e-3)
    done = Event()

    def job(_: int) -> None:
        sleep(0.05)
        done.set()

    limit(pool, 1)
    pool.put(Jobs(job, 1))
    assert done.wait(PATIENCE)
    assert pool.concurrency is not None
    assert pool.concurrency.limit == 1


def test_an_idle_pool_wakes_nobody(pool: Pool[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby sleeps without a limit as soon as no job runs."""
    monkeypatch.setattr(thread_group, "STANDBY_SECONDS", 1e-3)
    done = Event()
    limit(pool, 1)
    pool.put(Jobs(lambda _: done.set(), 1))
    assert done.wait(PATIENCE)
    group = pool.thread_group
    end = perf_counter() + PATIENCE
    while group._has_standby or group._running:
        assert perf_counter() < end
        sleep(1e-3)
    timed_out = Event()
    monkeypatch.setattr(group, "_stand_by", timed_out.set)
    assert not timed_out.wait(0.05)


# In a loader


class Contended:
    """Samples that take four times as long where several threads make some."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = 0

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> int:
        with self._lock:
            self._running += 1
            running = self._running
        sleep(2e-4 if running == 1 else 2e-3)
        with self._lock:
            self._running -= 1
        return index


def test_a_loader_finds_its_number_and_keeps_it() -> None:
    dataset = Contended()
    loader: ThreadLoader[Any] = ThreadLoader(
        dataset, 16, threads=2, output="numpy", dataset_copy="shared"
    )
    end = perf_counter() + PATIENCE
    while loader.statistics().running != 1:
        assert perf_counter() < end
        assert [int(x) for batch in loader for x in batch] == list(range(4096))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_the_copy_of_a_loader_finds_its_own_number(copied: Callable[[Any], Any]) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(range(8), 2, threads=2)
    loader._concurrency.limit = 1
    assert copied(loader).statistics().running == 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_batches_are_the_same_with_any_limit(most: int) -> None:
    class Drawn:
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> tuple[int, float, float]:
            return index, random.random(), np.random.rand()  # noqa: NPY002

    def load(most: int) -> list[Any]:
        options: Any = {"threads": 3, "seed": 1, "shuffle": True, "output": "numpy"}
        loader: ThreadLoader[Any] = ThreadLoader(Drawn(), 7, **options)
        loader._concurrency.limit = most
        return [[part.tolist() for part in batch] for batch in loader]

    assert load(most) == load(sys.maxsize)


def test_the_time_of_a_thread_is_its_own() -> None:
    """`Concurrency` compares it with the time that went by."""
    before = thread_time()
    sleep(0.05)
    assert thread_time() - before < 0.05


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_finds_its_own_number_from_its_first_epoch_on() -> None:
    """A thread of the parent's may be deciding at the fork, and never ends that in the child."""
    loader: ThreadLoader[Any] = ThreadLoader(range(8), 2, threads=2, persistent_workers=True)
    loader._concurrency.limit = 1
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            next(iter(loader))
            workers = loader._session.kept_workers.workers
            concurrency = None if workers is None else workers.pools[0].concurrency
            found = concurrency is loader._concurrency and loader.statistics().running == 2
            code = 0 if found else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# A loader whose user chose no number of threads


def reads(running: int) -> tuple[float, float]:
    """Reads of 10 ms, with 50 us of Python each: the lock is busy with 200 of them."""
    return max(1e-2, 5e-5 * running) * SAMPLES, 5e-5 * SAMPLES


def link_of_16(running: int) -> tuple[float, float]:
    """Reads that share a link, which is full with 16 of them."""
    return 1e-2 * SAMPLES * max(1, running / 16), 5e-5 * SAMPLES


@pytest.mark.parametrize("has_gil", [True, False])
def test_reads_get_many_more_threads_than_cores(has_gil: bool) -> None:
    simulated = Simulation(2, most=256, has_gil=has_gil)
    simulated.run(reads, 5.0)
    assert simulated.running >= 64


@pytest.mark.parametrize("has_gil", [True, False])
def test_no_more_threads_read_than_gain_by_it(has_gil: bool) -> None:
    simulated = Simulation(2, most=256, has_gil=has_gil)
    seen = simulated.run(link_of_16, 60.0)
    assert simulated.running == 16
    assert max(seen) == 32


def test_the_user_decides_how_many_threads_there_are_at_the_most() -> None:
    simulated = Simulation(2, most=10)
    assert max(simulated.run(reads, 5.0)) == 10


@pytest.mark.parametrize("data", [computes, holds_the_lock, changes_hands])
@pytest.mark.parametrize("has_gil", [True, False])
def test_data_that_needs_a_core_gets_no_more_threads_than_cores(data: Any, has_gil: bool) -> None:
    if not has_gil:
        data = computes
    seen = Simulation(4, most=256, has_gil=has_gil).run(data, 60.0)
    assert np.mean(np.array(seen) > 4) < 0.05


def on_a_busy_machine(running: int) -> tuple[float, float]:
    """A decoder on cores of which others take three quarters; more threads get a larger share."""
    return 8e-3 * max(1, running / 8), 2e-3


def test_threads_that_wait_for_a_core_take_no_more_of_them() -> None:
    """Else the ranks of a host would drive each other up."""
    simulated = Simulation(4, most=256, has_gil=False)
    simulated.delayed = True
    assert set(simulated.run(on_a_busy_machine, 60.0)) == {4}


@pytest.mark.parametrize("has_gil", [True, False])
def test_threads_go_when_reads_come_from_a_cache(has_gil: bool) -> None:
    def cached(running: int) -> tuple[float, float]:
        return 1e-3 * max(1, running / (1 if has_gil else 2)), 1e-3

    simulated = Simulation(2, most=256, has_gil=has_gil)
    simulated.run(reads, 5.0)
    simulated.run(cached, 2 * LONGEST_PAUSE)
    assert simulated.running <= 2
    simulated.run(reads, LONGEST_PAUSE + 5.0)
    assert simulated.running >= 64


_chance = random.Random(0)


def in_each_others_way(running: int) -> float:
    """Return by how much longer a job takes on two cores: one in ten is lucky."""
    return 1.0 if running <= 2 or _chance.random() < 0.1 else 0.65 * running


def rows_in_each_others_way(running: int) -> tuple[float, float]:
    """Samples of a microsecond."""
    return 8e-6 * in_each_others_way(running), 8e-6


def work(running: int) -> tuple[float, float]:
    """A decoder that releases the lock."""
    return 8e-3 * in_each_others_way(running), 8e-3


@pytest.mark.parametrize("data", [rows_in_each_others_way, work])
@pytest.mark.parametrize("has_gil", [True, False])
def test_threads_go_soon_when_samples_wait_no_more(data: Any, has_gil: bool) -> None:
    simulated = Simulation(2, most=256, has_gil=has_gil)
    simulated.run(reads, 60.0)  # by now tries are far between
    simulated.run(data, 1.0)
    seen = simulated.run(data, 5.0)
    assert np.mean(np.array(seen) > 2) < 0.1
    simulated.run(reads, 5.0)
    assert simulated.running >= 64


def test_a_change_is_told_for_the_thread_that_makes_batches_itself() -> None:
    simulated = Simulation(2, most=256)
    simulated.run(reads, 5.0)
    assert not simulated.concurrency.changed_to
    simulated.run(rows_in_each_others_way, 1.0)
    assert 0 < simulated.concurrency.changed_to < 1e-4


def test_a_slow_first_sample_does_not_hide_that_the_others_are_short() -> None:
    simulated = Simulation(2, most=256)
    simulated.concurrency.expect(1e-3)
    assert simulated.running == 2
    seen = simulated.run(rows_in_each_others_way, 0.5)
    assert 1 in seen
    assert 0 < simulated.concurrency.changed_to < 1e-4


def test_reads_of_different_lengths_are_no_change() -> None:
    rng = random.Random(1)

    def web(_running: int) -> tuple[float, float]:
        return 0.1 * rng.lognormvariate(0, 0.5), 4e-4

    simulated = Simulation(2, most=256, has_gil=False)
    simulated.run(web, 10.0)
    seen = simulated.run(web, 60.0)
    assert np.mean(np.array(seen) < 64) < 0.03


def test_data_that_changes_all_the_time_is_looked_at_less_and_less() -> None:
    jobs = iter(range(1 << 40))

    def half_cached(running: int) -> tuple[float, float]:
        return work(running) if next(jobs) // 200 % 2 else reads(running)

    simulated = Simulation(2, most=256, has_gil=False)
    simulated.run(half_cached, 60.0)
    changes = simulated.concurrency._found.changes
    simulated.run(half_cached, 60.0)
    assert simulated.concurrency._found.changes - changes < 30


def test_no_more_threads_run_than_fill_the_cores() -> None:
    def costly_reads(running: int) -> tuple[float, float]:
        return max(1e-2, 1.5e-4 * running / 2) * SAMPLES, 1.5e-4 * SAMPLES

    simulated = Simulation(2, most=1024, has_gil=False)
    assert max(simulated.run(costly_reads, 30.0)) == 128


def test_long_samples_that_hold_the_lock_get_one_thread_by_default() -> None:
    simulated = Simulation(2, 0.3, most=256)
    seen = np.array(simulated.run(long_samples, 120.0))
    assert np.max(seen) <= 2
    assert np.mean(seen[len(seen) // 4 :] > 1) < 0.3


@pytest.mark.parametrize("has_gil", [True, False])
@pytest.mark.parametrize(("data", "least", "most"), [(computes, 4, 4), (reads, 64, 256)])
def test_one_slow_sample_in_a_thousand_changes_nothing(
    data: Any, least: int, most: int, has_gil: bool
) -> None:
    jobs = iter(range(1 << 40))

    def with_slow_samples(running: int) -> tuple[float, float]:
        wall, cpu = data(running)
        return wall + (0.2 if next(jobs) % (1000 // SAMPLES) == 7 else 0.0), cpu

    simulated = Simulation(4, most=256, has_gil=has_gil)
    simulated.run(with_slow_samples, 10.0)
    seen = np.array(simulated.run(with_slow_samples, 60.0))
    assert np.mean((seen < least) | (seen > most)) < 0.1


@pytest.mark.parametrize("has_gil", [True, False])
def test_threads_that_have_nothing_to_do_are_given_back(has_gil: bool) -> None:
    simulated = Simulation(16, most=256, has_gil=has_gil)
    simulated.waits, simulated.busy = 0.0, 0.1
    simulated.run(computes, 10.0)
    assert simulated.running == 1
    simulated.waits, simulated.busy = 1.0, 1.0
    simulated.run(computes, 10.0)
    assert simulated.running == 16


def test_a_number_that_the_user_chose_stays() -> None:
    simulated = Simulation(16)
    simulated.waits, simulated.busy = 0.0, 0.1
    assert set(simulated.run(computes, 30.0)) == {16}


def test_the_more_often_threads_come_back_the_later_they_go() -> None:
    simulated = Simulation(4, most=256)
    changes = 0
    for _ in range(100):  # of 2 s: now they have nothing to do, now the consumer waits
        before = simulated.running
        simulated.waits, simulated.busy = 0.0, 0.1
        simulated.run(computes, 2.5)
        changes += simulated.running != before
        simulated.waits, simulated.busy = 1.0, 1.0
        simulated.run(computes, 1.0)
    assert changes < 10
