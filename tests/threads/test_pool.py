"""The pool: who runs what, in which order, and how its threads end."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import contextmanager, nullcontext
from threading import Barrier, Event, current_thread
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader import ClosedError
from threadloader._threads import pool as pool_module
from threadloader._threads.pool import Pool
from threadloader._threads.starting import Joinable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from threadloader._threads.thread_group import Job


class Jobs:
    """A work that is a list of jobs."""

    def __init__(self, *jobs: Job[int]) -> None:
        self._left = deque(jobs)

    def claim(self) -> Job[int] | None:
        return self._left.popleft() if self._left else None

    def jobs(self) -> int:
        return max(1, len(self._left))


class Gate:
    """A job that tells when it has started, and waits until it may end."""

    def __init__(self) -> None:
        self.started = Event()
        self.may_end = Event()

    def __call__(self, _worker: int) -> None:
        self.started.set()
        assert self.may_end.wait(PATIENCE)

    def occupy(self, pool: Pool[int]) -> None:
        """Return once a thread of the pool is busy with this job."""
        pool.put(Jobs(self))
        assert self.started.wait(PATIENCE)


@contextmanager
def running(size: int, enter: Callable[[int], Any] = nullcontext) -> Iterator[Pool[int]]:
    pool: Pool[int] = Pool(size, "tl7", enter)
    try:
        yield pool
    finally:
        pool.stop()


def _threads(prefix: str = "tl7-") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def _finish(pool: Pool[int], spawn: Callable[..., Future[Any]]) -> None:
    pool.stop()
    spawn(pool.join).result(PATIENCE)


def test_no_thread_is_started_before_the_first_work() -> None:
    with running(3):
        assert not _threads()


def test_threads_are_named_after_the_pool_and_numbered() -> None:
    with running(3) as pool:
        pool.put(Jobs())
        assert sorted(thread.name for thread in _threads()) == [
            "tl7-worker-0",
            "tl7-worker-1",
            "tl7-worker-2",
        ]


def test_the_threads_of_a_pool_are_started_once() -> None:
    with running(2) as pool:
        pool.put(Jobs())
        before = _threads()
        pool.put(Jobs())
        assert _threads() == before


def test_a_job_gets_what_its_thread_entered() -> None:
    seen: list[tuple[str, int]] = []
    together = Barrier(4)

    def job(worker: int) -> None:
        together.wait(PATIENCE)
        seen.append((current_thread().name, worker))

    with running(3, lambda number: nullcontext(10 * number)) as pool:
        pool.put(Jobs(job, job, job))
        together.wait(PATIENCE)
    for thread in _threads():
        thread.join(PATIENCE)
    assert sorted(seen) == [("tl7-worker-0", 0), ("tl7-worker-1", 10), ("tl7-worker-2", 20)]


def test_each_thread_enters_and_leaves_its_context_once(
    spawn: Callable[..., Future[Any]],
) -> None:
    events: list[tuple[str, int, str]] = []

    @contextmanager
    def enter(number: int) -> Iterator[int]:
        events.append(("enter", number, current_thread().name))
        yield number
        events.append(("leave", number, current_thread().name))

    with running(2, enter) as pool:
        for _ in range(5):
            pool.put(Jobs(*[lambda _worker: None] * 3))
        _finish(pool, spawn)
    assert sorted(events) == [
        ("enter", 0, "tl7-worker-0"),
        ("enter", 1, "tl7-worker-1"),
        ("leave", 0, "tl7-worker-0"),
        ("leave", 1, "tl7-worker-1"),
    ]


def test_the_oldest_work_is_finished_first() -> None:
    ran: list[str] = []
    done = Event()

    def job(name: str) -> Job[int]:
        return lambda _worker: ran.append(name)

    with running(1) as pool:
        gate = Gate()
        gate.occupy(pool)
        pool.put(Jobs(job("a1"), job("a2"), job("a3")))
        pool.put(Jobs(job("b1"), job("b2")))
        pool.put(Jobs(lambda _worker: done.set()))
        gate.may_end.set()
        assert done.wait(PATIENCE)
    assert ran == ["a1", "a2", "a3", "b1", "b2"]


def test_a_thread_that_becomes_free_turns_to_the_oldest_work() -> None:
    ran: list[str] = []
    done = Event()
    old, new = Gate(), Gate()

    with running(2) as pool:
        pool.put(Jobs(old, lambda _worker: ran.append("old")))
        pool.put(Jobs(new, lambda _worker: ran.append("new"), lambda _worker: done.set()))
        assert old.started.wait(PATIENCE)
        old.may_end.set()
        new.may_end.set()
        assert done.wait(PATIENCE)
    assert ran == ["old", "new"]


def test_all_threads_run_jobs_of_one_work_at_once() -> None:
    together = Barrier(5)
    with running(4) as pool:
        pool.put(Jobs(*[lambda _worker: together.wait(PATIENCE)] * 4))
        together.wait(PATIENCE)


def test_idle_threads_are_all_woken_for_a_new_work() -> None:
    together = Barrier(4)
    with running(3) as pool:
        for _ in range(20):
            pool.put(Jobs(*[lambda _worker: together.wait(PATIENCE)] * 3))
            together.wait(PATIENCE)


def test_works_put_one_by_one_run_at_once() -> None:
    together = Barrier(4)
    with running(3) as pool:
        for _ in range(20):
            for _ in range(3):
                pool.put(Jobs(lambda _worker: together.wait(PATIENCE)))
            together.wait(PATIENCE)


def test_waking_an_idle_pool_costs_no_later_work_a_thread() -> None:
    together = Barrier(4)
    with running(3) as pool:
        for _ in range(20):
            pool.wake()
            pool.put(Jobs(*[lambda _worker: together.wait(PATIENCE)] * 3))
            pool.wake()
            together.wait(PATIENCE)


def test_stop_lets_the_running_job_end_and_no_other_start(
    spawn: Callable[..., Future[Any]],
) -> None:
    ran: list[str] = []
    with running(1) as pool:
        gate = Gate()
        gate.occupy(pool)
        pool.put(Jobs(lambda _worker: ran.append("queued")))
        pool.stop()
        ended = spawn(pool.join)
        gate.may_end.set()
        ended.result(PATIENCE)
    assert not ran
    assert not _threads()


def test_stop_does_not_wait(spawn: Callable[..., Future[Any]]) -> None:
    with running(1) as pool:
        gate = Gate()
        gate.occupy(pool)
        spawn(pool.stop).result(PATIENCE)
        assert _threads()
        gate.may_end.set()


def test_join_waits_for_the_running_job(spawn: Callable[..., Future[Any]]) -> None:
    events: list[str] = []
    with running(1) as pool:
        gate = Gate()
        gate.occupy(pool)
        pool.stop()
        joining = spawn(lambda: (pool.join(), events.append("joined")))
        pool_thread = _threads()[0]
        assert pool_thread.is_alive()
        assert not events
        gate.may_end.set()
        joining.result(PATIENCE)
        assert not pool_thread.is_alive()


def test_stop_ends_idle_threads(spawn: Callable[..., Future[Any]]) -> None:
    together = Barrier(4)
    with running(3) as pool:
        pool.put(Jobs(*[lambda _worker: together.wait(PATIENCE)] * 3))
        together.wait(PATIENCE)
        _finish(pool, spawn)
    assert not _threads()


def test_stopping_twice_and_joining_twice_is_harmless(
    spawn: Callable[..., Future[Any]],
) -> None:
    with running(2) as pool:
        pool.put(Jobs())
        _finish(pool, spawn)
        _finish(pool, spawn)


def test_a_pool_that_never_ran_can_be_stopped_and_joined(
    spawn: Callable[..., Future[Any]],
) -> None:
    with running(2) as pool:
        _finish(pool, spawn)


def test_work_put_after_stop_is_refused_and_not_run(spawn: Callable[..., Future[Any]]) -> None:
    ran: list[int] = []
    with running(2) as pool:
        pool.put(Jobs())
        pool.stop()
        with pytest.raises(ClosedError):
            pool.put(Jobs(ran.append, ran.append))
        spawn(pool.join).result(PATIENCE)
    assert not ran


def test_a_thread_that_cannot_be_started_stops_those_that_were(
    monkeypatch: pytest.MonkeyPatch, spawn: Callable[..., Future[Any]]
) -> None:
    class Few(Joinable):
        started = 0

        def start(self) -> None:
            Few.started += 1
            if Few.started == 3:
                message = "can't start new thread"
                raise RuntimeError(message)
            super().start()

    monkeypatch.setattr(pool_module, "Joinable", Few)
    pool: Pool[int] = Pool(4, "tl9", nullcontext)
    with pytest.raises(RuntimeError, match="start new thread"):
        pool.put(Jobs())
    assert pool.stopped
    spawn(pool.join).result(PATIENCE)


def test_a_job_may_stop_and_join_its_own_pool(spawn: Callable[..., Future[Any]]) -> None:
    joined = Event()

    def job(_worker: int) -> None:
        pool.stop()
        pool.join()
        joined.set()

    with running(2) as pool:
        pool.put(Jobs(job))
        assert joined.wait(PATIENCE)
        spawn(pool.join).result(PATIENCE)


def test_dropping_the_pool_ends_its_threads() -> None:
    together = Barrier(3)
    pool: Pool[int] = Pool(2, "tl7", nullcontext)
    pool.put(Jobs(*[lambda _worker: together.wait(PATIENCE)] * 2))
    together.wait(PATIENCE)
    threads = _threads()
    del pool
    for thread in threads:
        thread.join(PATIENCE)
    assert not _threads()


def test_dropping_the_pool_waits_for_nobody(spawn: Callable[..., Future[Any]]) -> None:
    gate = Gate()
    pools: list[Pool[int]] = [Pool(1, "tl7", nullcontext)]
    gate.occupy(pools[0])
    spawn(pools.clear).result(PATIENCE)
    assert _threads()
    gate.may_end.set()


# What dies in another thread is finalised, on a free-threaded build, when its maker next runs: so
# the makers below are threads that end, and do not wait.


def test_an_idle_thread_keeps_no_work_alive(spawn: Callable[..., Future[Any]]) -> None:
    gone = Event()
    with running(2) as pool:

        def put() -> None:
            work = Jobs(lambda _worker: None)
            weakref.finalize(work, gone.set)
            pool.put(work)

        spawn(put).result(PATIENCE)
        assert gone.wait(PATIENCE)


def test_an_idle_thread_keeps_no_job_alive(spawn: Callable[..., Future[Any]]) -> None:
    gone = Event()
    with running(1) as pool:

        def put() -> None:
            job = Gate()
            job.may_end.set()
            weakref.finalize(job, gone.set)
            pool.put(Jobs(job))

        spawn(put).result(PATIENCE)
        assert gone.wait(PATIENCE)


def test_stop_drops_the_works_that_are_queued(spawn: Callable[..., Future[Any]]) -> None:
    gone = Event()
    with running(1) as pool:
        gate = Gate()
        gate.occupy(pool)

        def put() -> None:
            queued = Jobs(lambda _worker: None)
            weakref.finalize(queued, gone.set)
            pool.put(queued)

        spawn(put).result(PATIENCE)
        pool.stop()
        gate.may_end.set()
        assert gone.wait(PATIENCE)


class Cancellable(Jobs):
    """A work that can be told to have no more jobs."""

    def cancel(self) -> None:
        self._left.clear()


def test_wake_drops_a_work_that_was_cancelled_while_another_job_runs(
    spawn: Callable[..., Future[Any]],
) -> None:
    gone = Event()
    with running(2) as pool:
        first, second = Gate(), Gate()

        def put() -> None:
            # Both threads are busy with its jobs; the work stays queued with what is left of it.
            work = Cancellable(first, second, lambda _worker: None)
            weakref.finalize(work, gone.set)
            pool.put(work)
            assert first.started.wait(PATIENCE)
            assert second.started.wait(PATIENCE)
            work.cancel()

        spawn(put).result(PATIENCE)
        second.may_end.set()
        pool.wake()
        assert gone.wait(PATIENCE)
        first.may_end.set()


def test_wake_drops_what_an_idle_thread_left_queued(spawn: Callable[..., Future[Any]]) -> None:
    gone = Event()
    with running(2) as pool:
        gate = Gate()

        def put() -> None:
            work = Jobs(gate)
            weakref.finalize(work, gone.set)
            pool.put(work)

        spawn(put).result(PATIENCE)
        assert gate.started.wait(PATIENCE)
        pool.wake()  # the other thread is idle, or about to be
        assert gone.wait(PATIENCE)
        gate.may_end.set()


@pytest.mark.parallel
def test_every_job_runs_exactly_once() -> None:
    ran: list[int] = []
    done = Event()

    def job(number: int) -> Job[int]:
        return lambda _worker: ran.append(number)

    pool: Pool[int] = Pool(4, "tl8", nullcontext)
    for first in range(0, 1000, 10):
        pool.put(Jobs(*map(job, range(first, first + 10))))
    pool.put(Jobs(lambda _worker: done.set()))
    assert done.wait(PATIENCE)
    pool.stop()
    pool.join()
    assert sorted(ran) == list(range(1000))
