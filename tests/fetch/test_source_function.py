"""Sources that are functions: ready samples or what makes them, until there are no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Barrier, Lock
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn
from support.resuming import after, state_after
from support.streams import lists, outcomes
from support.workers import each_kind_of_workers

from threadloader import ThreadLoader


class Counting:
    """Gives numbers in parts of given sizes, then nothing; each pass begins anew.

    Args:
        parts: How many items each call returns; the request is not obeyed.
        item: Makes an item of a number.
    """

    def __init__(self, *parts: int, item: Callable[[int], Any] = int) -> None:
        self.parts = parts
        self.item = item
        self.asked: list[int] = []
        self.callers: set[str] = set()

    def __call__(self, number: int) -> list[Any]:
        self.asked.append(number)
        self.callers.add(threading.current_thread().name)
        turn = (len(self.asked) - 1) % (len(self.parts) + 1)
        if turn == len(self.parts):
            return []
        start = sum(self.parts[:turn])
        return [self.item(start + offset) for offset in range(self.parts[turn])]


def later(number: int) -> Callable[[], int]:
    """Return a function that makes a sample."""
    return lambda: number


def mixed(number: int) -> Any:
    return later(number) if number % 2 else number


def make(source: Any, batch_size: int = 3, **arguments: Any) -> ThreadLoader[Any]:
    return ThreadLoader.from_source(source, batch_size, **({"output": "numpy"} | arguments))


def batches(size: int, rows: int = 3) -> list[list[int]]:
    return [list(range(size))[start : start + rows] for start in range(0, size, rows)]


@each_kind_of_workers
@pytest.mark.parametrize("item", [int, later, mixed])
@pytest.mark.parametrize(
    "parts",
    [(3, 3, 3), (1, 1, 1, 1), (2, 2, 2), (9,), (1, 7, 2), (100,), (3, 3, 2), ()],
    ids=str,
)
def test_items_come_in_the_order_in_which_the_source_gives_them(
    parts: tuple[int, ...], item: Any, workers: dict[str, Any], spawn: Spawn
) -> None:
    """A source may return fewer or more than it was asked for."""
    source = Counting(*parts, item=item)
    with make(source, **workers) as loader:
        for _ in range(2):
            assert spawn(lists, loader).result(PATIENCE) == batches(sum(parts))
    assert set(source.asked) == {3}
    assert len(source.asked) == 2 * (len(parts) + 1)


def test_the_source_is_never_called_by_two_threads_at_once(spawn: Spawn) -> None:
    """Not by two passes of one loader, either; the first of which is dropped."""
    inside, clashes = Lock(), []

    def source(number: int) -> list[int]:
        if not inside.acquire(blocking=False):
            clashes.append(threading.current_thread().name)
            return [0] * number
        try:
            return [len(str(2**4000))] * number
        finally:
            inside.release()

    def passes(loader: ThreadLoader[Any]) -> None:
        for _ in range(20):
            for number, _ in enumerate(loader):
                if number == 5:
                    break

    with make(source, threads=3) as loader:
        spawn(passes, loader).result(PATIENCE)
    assert clashes == []


def test_the_functions_are_called_by_several_threads_at_once(spawn: Spawn) -> None:
    barrier = Barrier(2)

    def source(number: int) -> list[Any]:
        return [lambda: barrier.wait(PATIENCE)] * number

    # One of three reads: two are left for the functions, which wait for each other.
    with make(source, 2, threads=3, chunk_size=1) as loader:
        first = spawn(lambda: next(iter(loader)).tolist()).result(PATIENCE)
        barrier.abort()
    assert sorted(first) == [0, 1]


def test_items_may_be_any_sequence_or_iterable(spawn: Spawn) -> None:
    made: list[Any] = [(0, 1), np.arange(2, 4), range(4, 6), (n for n in (6, 7, later(8))), {9: 0}]
    parts = iter([*made, []])
    with make(lambda _: next(parts), 2, threads=1) as loader:
        assert spawn(lists, loader).result(PATIENCE) == batches(10, 2)


# Errors ------------------------------------------------------------------------------------------


class Failing(Counting):
    """Raises instead of its second answer, once a pass."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        super().__init__(3, 3, 3)
        self.error = error
        self.failed = False

    def __call__(self, number: int) -> list[Any]:
        if len(self.asked) == 1 and not self.failed:
            self.failed = True
            raise self.error()
        return super().__call__(number)


@each_kind_of_workers
def test_an_error_of_the_source_comes_in_its_place_and_it_is_asked_again(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    error = OSError("gone")
    with make(Failing(lambda: error), **workers) as loader:
        first, failed, *rest = spawn(outcomes, loader).result(PATIENCE)
    assert failed is error
    assert [first, *rest] == batches(9)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_source_that_always_raises_hangs_nobody(threads: int, spawn: Spawn) -> None:
    def source(number: int) -> list[Any]:
        raise OSError(number)

    for on_error in ("raise", "skip"):
        with make(source, on_error=on_error, max_skipped=None, threads=threads) as loader:
            future = spawn(lambda loader: next(iter(loader)), loader)
            assert isinstance(future.exception(PATIENCE), OSError)


@each_kind_of_workers
def test_a_source_that_raises_stop_iteration_has_ended(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    parts = [[0, 1, 2], [3]]

    def source(_: int) -> list[int]:
        if not parts:
            raise StopIteration
        return parts.pop(0)

    with make(source, **workers) as loader:
        assert spawn(lists, loader).result(PATIENCE) == [[0, 1, 2], [3]]


# Without an end ----------------------------------------------------------------------------------


# States ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the state holds none of the iterable")
@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("done", [0, 1, 3])
def test_it_goes_on_from_a_state_with_any_threads(done: int, threads: int, spawn: Spawn) -> None:
    def build(threads: int) -> ThreadLoader[Any]:
        return make(Counting(5, 1, 7, item=later), threads=threads)

    state = spawn(state_after, build(2), done).result(PATIENCE)
    (rest,) = spawn(after, build(threads), state).result(PATIENCE)
    assert [batch.tolist() for batch in rest] == batches(13)[done:]


# Arguments ---------------------------------------------------------------------------------------

WRONG = {
    "batch_size": [0, -1, 1.5, None, "3", True],
    "chunk_size": [0, -1, 1.5, "3", True, False],
    "source": [None, 3, "abc", [1, 2, 3]],
    "shuffle": [True],
    "sampler": [[0]],
    "batch_sampler": [[[0]]],
    "transform": [int],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_what_a_source_can_not_have_is_refused_at_once(name: str, value: Any) -> None:
    arguments = {"source": Counting(3), "batch_size": 3} | {name: value}
    with pytest.raises((TypeError, ValueError), match=name):
        make(**arguments)


def test_a_source_that_returns_none_is_told_how_to_end(spawn: Spawn) -> None:
    with make(lambda _: None) as loader, pytest.raises(TypeError, match="ends by an empty list"):
        spawn(list, loader).result(PATIENCE)
