"""Threads that a worker starts are told who the worker is."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from threading import Thread
from typing import Any

import pytest
from support.acting import Acting
from support.child import run_child
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader, get_worker_info
from threadloader._torch import IterableDataset
from threadloader._worker.worker_info import pass_seed_here

WORKERS = 3
INHERITS = getattr(sys.flags, "thread_inherit_context", False)


def me() -> tuple[int, int] | None:
    """Return number and workers of the calling thread's worker."""
    info = get_worker_info()
    return None if info is None else (info.id, info.num_workers)


def in_a_thread(ask: Callable[[], Any]) -> Any:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread = Thread(target=lambda: told.put(ask()), name="test-started")
    thread.start()
    thread.join(PATIENCE)
    return told.get(timeout=PATIENCE)


class Subclass(Thread):
    """A thread that overrides run() and start()."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(name="test-subclass")
        self.ask = ask
        self.told: Any = None

    def start(self) -> None:
        super().start()

    def run(self) -> None:
        self.told = self.ask()


def in_a_subclass(ask: Callable[[], Any]) -> Any:
    thread = Subclass(ask)
    thread.start()
    thread.join(PATIENCE)
    return thread.told


def in_an_executor(ask: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return pool.submit(ask).result(PATIENCE)


def in_a_thread_pool(ask: Callable[[], Any]) -> Any:
    with ThreadPool(2) as pool:
        told = pool.apply(ask)
        pool.close()
        pool.join()
    return told


def in_a_nested_thread(ask: Callable[[], Any]) -> Any:
    return in_a_thread(lambda: in_an_executor(lambda: in_a_subclass(ask)))


WAYS = [
    in_a_thread,
    in_a_subclass,
    in_an_executor,
    in_a_thread_pool,
    in_a_nested_thread,
]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


class Asks(IterableDataset):  # type: ignore[type-arg]
    """One sample a replica: what it is told in its own thread, and elsewhere."""

    def __init__(self, way: Callable[[Callable[[], Any]], Any], ask: Callable[[], Any]) -> None:
        self.way = way
        self.ask = ask

    def __iter__(self) -> Iterator[Any]:
        yield self.ask(), self.way(self.ask)


def told(dataset: Any, spawn: Spawn, **options: Any) -> list[Any]:
    with ThreadLoader(dataset, batch_size=None, collate_fn=tuple, **options) as loader:
        return spawn(list, loader).result(PATIENCE)


@each_way
@pytest.mark.parametrize("workers", [0, WORKERS])
def test_a_thread_of_a_replica_is_told_who_the_replica_is_and_the_seed_of_its_pass(
    workers: int, way: Callable[..., Any], spawn: Spawn
) -> None:
    pairs = told(Asks(way, lambda: (me(), pass_seed_here())), spawn, num_workers=workers)
    assert [who for (who, _), _ in pairs] == [(n, workers) for n in range(workers)] or [None]
    for here, there in pairs:
        assert here == there
        assert here[1] is not None


@each_way
def test_a_thread_of_a_sample_is_told_the_same_as_the_sample(
    way: Callable[..., Any], spawn: Spawn
) -> None:
    samples = Acting(6, sample=lambda _: (me(), way(me)))
    for here, there in told(samples, spawn, num_workers=WORKERS):
        assert here == there
        assert here is not None


def test_a_thread_is_told_of_its_dataset_and_keeps_none_alive(spawn: Spawn) -> None:
    gone, dropped, asked = threading.Event(), threading.Event(), threading.Event()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(dataset: weakref.ref[Any]) -> None:
        info = get_worker_info()
        answers.put(info.dataset is dataset() is not None)
        asked.set()
        assert dropped.wait(PATIENCE)
        answers.put((info.dataset, info.id))

    class Samples:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            weakref.finalize(self, gone.set).atexit = False
            thread = Thread(target=ask, args=(weakref.ref(self),), name="test-asks")
            thread.start()
            answers.put(thread)
            assert asked.wait(PATIENCE)  # while the dataset is there
            return index

    def load() -> None:
        with ThreadLoader(Samples(), num_workers=1) as loader:
            spawn(list, loader).result(PATIENCE)

    load()
    first = [answers.get(timeout=PATIENCE) for _ in range(2)]
    assert True in first
    gc.collect()
    assert gone.wait(PATIENCE)
    dropped.set()
    assert answers.get(timeout=PATIENCE) == (None, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_such_a_thread_forks_is_no_worker(spawn: Spawn) -> None:
    fork = multiprocessing.get_context("fork")

    def ask_forked() -> Any:
        ours, theirs = fork.Pipe(duplex=False)
        child = fork.Process(target=lambda: theirs.send((me(), in_a_thread(me))))
        child.start()
        assert ours.poll(PATIENCE)
        answer = ours.recv()
        child.join(PATIENCE)
        return answer

    [(_, there)] = told(Asks(in_a_thread, ask_forked), spawn, num_workers=1)
    assert there == (None, None)


@pytest.mark.skipif(INHERITS, reason="nothing is replaced where threads inherit context")
def test_nothing_is_replaced_before_there_are_workers() -> None:
    script = """
import sys, threading
sys.modules["torch"] = None  # what takes long to import, and is not needed
before = threading.Thread.start
from threadloader import ThreadLoader
loader = ThreadLoader(range(4), num_workers=2)
assert before is threading.Thread.start
for _ in range(3):
    list(loader)
    once = threading.Thread.start
assert once is threading.Thread.start is not before is once.__wrapped__
"""
    code, _, errors = run_child(script)
    assert code == 0, errors
