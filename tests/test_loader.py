"""The loader itself: its arguments, how far ahead it draws, and how it is closed."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conformance.datasets import Endless
from support.acting import Gated
from support.orders import Counted
from support.patience import PATIENCE, Spawn
from support.workers import join_workers

from threadloader import ClosedError, ThreadLoader

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sampler": [], "shuffle": "keyed"}, r"sampler.*shuffle"),
        ({"batch_sampler": [], "shuffle": "keyed"}, r"batch_sampler.*shuffle"),
        ({"dataset": iter([1]), "shuffle": "keyed", "threads": 1}, r"shuffle"),
        ({"threads": 2, "num_workers": 3}, r"threads.*num_workers.*2.*3"),
        ({"num_workers": 0, "persistent_workers": True}, r"persistent_workers.*num_workers"),
        ({"threads": 0, "prefetch_factor": 2}, r"prefetch_factor"),
    ],
)
def test_arguments_that_exclude_each_other_are_named(arguments: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ThreadLoader(**{"dataset": range(4), **arguments})


def test_a_timeout_that_is_assigned_where_there_are_no_threads_says_what_it_needs() -> None:
    loader = ThreadLoader(range(4), threads=0)
    loader.timeout = 3
    with pytest.raises(AssertionError) as caught:
        iter(loader)
    assert "timeout needs threads" in caught.value.__notes__[0]


@pytest.mark.parametrize("shuffle", ["key", "yes", "", "False"])
def test_a_word_for_shuffle_is_refused_unless_it_is_keyed(shuffle: Any) -> None:
    with pytest.raises(ValueError, match="'keyed', but got") as caught:
        ThreadLoader(range(4), shuffle=shuffle)
    assert repr(shuffle) in str(caught.value)
    assert sorted(batch.item() for batch in ThreadLoader(range(4), shuffle="keyed")) == [0, 1, 2, 3]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "num_workers of str": ({"num_workers": "4"}, "num_workers must be an int, but got '4'"),
    "num_workers of float": ({"num_workers": 4.0}, "num_workers must be an int, but got 4.0"),
    "timeout of str": ({"timeout": "3"}, "timeout must be a number of seconds, but got '3'"),
    "timeout of None": ({"timeout": None}, "timeout must be a number of seconds, but got None"),
    "class of a dataset": ({"dataset": Endless}, r"dataset is the class Endless: .*\(...\)"),
    "class of a sampler": ({"sampler": Counted}, "sampler is the class Counted: give an object"),
    "shuffle without length": ({"dataset": Endless(), "shuffle": True}, "give it a __len__"),
    "keyed without length": ({"dataset": Endless(), "shuffle": "keyed"}, "give it a __len__"),
    "no length": ({"dataset": Endless()}, "give it a __len__, or the loader a sampler"),
    "flat batch_sampler": ({"batch_sampler": [1, 2]}, "must yield lists of indices, but gave 1"),
}


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_every_day_is_a_type_error_that_says_what_to_do(
    mistake: str, threads: int, spawn: Spawn
) -> None:
    arguments, advice = MISTAKES[mistake]
    threaded = {} if "num_workers" in arguments else {"threads": threads}
    error = spawn(
        lambda: list(ThreadLoader(**{"dataset": range(4), **threaded, **arguments}))
    ).exception(PATIENCE)
    assert type(error) is TypeError
    assert re.search(advice, "\n".join([str(error), *getattr(error, "__notes__", [])]))


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_torch_output_without_torch_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*extra: torch"):
        ThreadLoader(range(4), output="torch")


def test_a_loader_says_what_it_is() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(range(100), batch_size=8, threads=3)
    assert repr(loader) == "<ThreadLoader of range, 13 batches, 8 samples in each, 3 threads>"
    loader = ThreadLoader(range(100), threads=1)
    assert repr(loader) == "<ThreadLoader of range, 100 batches, 1 sample in each, 1 thread>"
    told = repr(ThreadLoader((n for n in range(3)), batch_size=None))
    assert told == "<ThreadLoader of generator, as many threads as are fastest>"


def test_the_window_is_drawn_at_iter_and_one_more_before_each_batch(spawn: Spawn) -> None:
    sampler = Counted([[index] for index in range(6)])
    loader: ThreadLoader[Any] = ThreadLoader(range(6), batch_sampler=sampler, threads=2, prefetch=3)
    iterator = iter(loader)
    drawn = [sampler.drawn]
    while spawn(next, iterator, None).result(PATIENCE) is not None:
        drawn.append(sampler.drawn)
    assert drawn == [3, 4, 5, 6, 6, 6, 6]


def test_the_sampler_is_drawn_from_by_the_consumer_alone(spawn: Spawn) -> None:
    drawers: list[threading.Thread] = []

    def indices() -> Iterator[int]:
        for index in range(20):
            drawers.append(threading.current_thread())
            yield index

    loader: ThreadLoader[Any] = ThreadLoader(range(20), 2, sampler=indices(), threads=3)
    spawn(list, loader).result(PATIENCE)
    (drawer,) = set(drawers)
    assert drawer.name.startswith("test-")


@pytest.mark.parametrize(("threads", "batch_size"), [(1, 1), (2, 64), (32, 1), (32, 8)])
def test_a_default_window_has_work_for_all_threads(threads: int, batch_size: int) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(range(9), batch_size, threads=threads)
    assert loader.statistics().window * batch_size >= 2 * threads
    assert loader.statistics().window >= 4


@pytest.mark.parametrize(
    ("nbytes", "budget", "window"),
    [
        *((1 << 10, None, 16), (2 << 20, None, 8), (8 << 20, None, 4)),
        *((1 << 20, 1 << 20, 2), (1 << 20, 5 << 20, 5), (1 << 20, 4 << 30, 16)),
    ],
)
def test_the_window_that_is_counted_follows_the_size_of_batches_and_the_users_bytes(
    nbytes: int, budget: int | None, window: int, spawn: Spawn
) -> None:
    dataset = [np.zeros(nbytes, np.uint8)] * 20
    with ThreadLoader(dataset, 1, threads=1, memory_budget=budget) as loader:
        assert loader.statistics().window == 4
        spawn(deque, loader, 0).result(PATIENCE)
        assert loader.statistics().window == window
        assert loader.statistics().slots.made <= max(4, window) + 2  # 4 until one is measured


def test_few_batches_are_drawn_when_they_become_large(spawn: Spawn) -> None:
    sizes, drawn = [1] + [300] * 20, 0

    def sampler() -> Iterator[list[int]]:
        nonlocal drawn
        for size in sizes:
            drawn += 1
            yield [0] * size

    def ahead() -> list[int]:
        data = [np.zeros(1 << 10, np.uint8)]
        with ThreadLoader(
            data, batch_sampler=sampler(), threads=2, memory_budget=1 << 20
        ) as loader:
            return [drawn - number for number, _ in enumerate(loader, 1)]

    counted = spawn(ahead).result(PATIENCE)
    assert max(counted) <= 5
    assert counted[6] == 3


ENDS: dict[str, Callable[[Any, list[Any]], object]] = {
    "drop": lambda _, iterators: iterators.clear(),
    "close the iterator": lambda _, iterators: iterators[0].close(),
    "close the loader": lambda loader, _: loader.close(),
}


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("end", ENDS)
def test_what_is_queued_is_cancelled_at_once(end: str, persistent: bool, spawn: Spawn) -> None:
    """Only the samples that are running when the iterator ends are ever asked for."""
    dataset = Gated(100, *range(1, 100))
    loader: ThreadLoader[Any] = ThreadLoader(dataset, 10, threads=1, persistent_workers=persistent)
    iterators = [iter(loader)]
    assert dataset.entered.wait(PATIENCE)
    ending = spawn(ENDS[end], loader, iterators)
    # Closing waits for the sample that is running, so that it has to end meanwhile; but no
    # earlier than all else is cancelled, which a consumer is told.
    if end == "drop":
        ending.result(PATIENCE)
    else:
        assert isinstance(spawn(next, iterators[0]).exception(PATIENCE), ClosedError)
    dataset.gate.set()
    ending.result(PATIENCE)
    spawn(loader.close).result(PATIENCE)
    join_workers()
    assert dataset.asked == [0, 1]


def test_a_ticket_of_many_rows_is_cancelled_between_its_samples(spawn: Spawn) -> None:
    dataset = Gated(200)
    loader: ThreadLoader[Any] = ThreadLoader(dataset, 100, threads=1)
    spawn(list, loader).result(PATIENCE)  # samples of microseconds make large tickets
    dataset.asked.clear()
    dataset.waits = tuple(range(3, 200))
    iterator = iter(loader)
    assert dataset.entered.wait(PATIENCE)
    del iterator
    dataset.gate.set()
    join_workers()
    assert dataset.asked == [0, 1, 2, 3]
