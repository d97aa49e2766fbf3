"""What goes wrong between our own stages costs no batch and leaves nobody waiting."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.child import run_child
from support.patience import PATIENCE

from threadloader import ClosedError, ThreadLoader
from threadloader._batch import ring as ring_module
from threadloader._threads import pool as pool_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future


pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


def outcomes(loader: Any) -> list[Any]:
    """Return the first number of each batch, or the type of the error in its place."""
    told: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            told.append(int(next(batches)[0]))
        except StopIteration:
            return told
        except Exception as error:  # noqa: BLE001  # whatever is raised
            told.append(type(error))


class Array:
    """Arrays, so that batches lie in slots."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index)


class First(Array):
    """Numbers, for `outcomes`."""

    def __getitem__(self, index: int) -> Any:
        return index


@pytest.mark.parametrize(("threads", "failing"), [(0, 1), (1, 1), (1, 2), (3, 1), (3, 3)])
def test_no_memory_for_a_slot_costs_that_batch_alone(
    threads: int, failing: int, monkeypatch: pytest.MonkeyPatch, spawn: Callable[..., Future[Any]]
) -> None:
    allocate, made = ring_module._allocate, []  # noqa: SLF001  # the one place to run out of memory

    def allocate_but_once(nbytes: int) -> Any:
        made.append(nbytes)
        if len(made) == failing:
            raise MemoryError
        return allocate(nbytes)

    monkeypatch.setattr(ring_module, "_allocate", allocate_but_once)
    loader: Any = ThreadLoader(First(), 2, threads=threads, output="numpy")
    kept = spawn(outcomes, loader).result(PATIENCE)
    assert kept.count(MemoryError) == 1
    assert len(kept) == 10
    places = [first if first is MemoryError else 2 * place for place, first in enumerate(kept)]
    assert kept == places


class Unspeakable:
    """An index whose repr() ends the interpreter."""

    def __index__(self) -> int:
        return 3

    def __repr__(self) -> str:
        raise SystemExit


def test_an_index_that_cannot_be_named_is_no_hang(spawn: Callable[..., Future[Any]]) -> None:
    loader: Any = ThreadLoader([1, 2], 1, sampler=[Unspeakable()], threads=2)
    assert spawn(outcomes, loader).result(PATIENCE) == [IndexError]


def test_an_error_of_code_without_a_module_arrives(spawn: Callable[..., Future[Any]]) -> None:
    space: dict[str, Any] = {"__name__": None}
    exec("def fail(index): raise ValueError(index)", space)  # noqa: S102  # as notebooks do

    class Fails(First):
        def __getitem__(self, index: int) -> Any:
            return space["fail"](index)

    loader: Any = ThreadLoader(Fails(), 10, threads=2)
    assert spawn(outcomes, loader).result(PATIENCE) == [ValueError, ValueError]


def test_a_sample_with_a_shape_of_its_own_has_the_error_of_its_kind(
    spawn: Callable[..., Future[Any]],
) -> None:
    class Shaped:
        @property
        def shape(self) -> Any:
            raise OSError("no shape")

    class Odd(First):
        def __getitem__(self, index: int) -> Any:
            return Shaped()

    loader: Any = ThreadLoader(Odd(), 10, threads=2)
    assert spawn(outcomes, loader).result(PATIENCE) == [TypeError, TypeError]


def test_a_collate_function_that_is_false_is_called() -> None:
    class Pipeline(list[Any]):
        def __call__(self, samples: list[int]) -> list[int]:
            return [sum(samples)]

    loader: Any = ThreadLoader([1, 2], 2, collate_fn=Pipeline(), threads=1)
    assert list(loader) == [[3]]


def test_persistent_workers_that_could_not_start_are_started_by_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch, spawn: Callable[..., Future[Any]]
) -> None:
    started: list[Any] = []

    class Few(pool_module.Joinable):
        def start(self) -> None:
            started.append(self)
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(pool_module, "Joinable", Few)
    with ThreadLoader(First(), 2, threads=3, persistent_workers=True) as loader:
        assert RuntimeError in spawn(outcomes, loader).result(PATIENCE)
        assert spawn(outcomes, loader).result(PATIENCE) == list(range(0, 20, 2))


def test_an_epoch_that_does_not_begin_leaves_the_one_before_its_threads(
    spawn: Callable[..., Future[Any]],
) -> None:
    class Interrupted:
        passes = 0

        def __iter__(self) -> Iterator[int]:
            self.passes += 1
            if self.passes == 2:
                raise KeyboardInterrupt
            return iter(range(20))

    options: dict[str, Any] = {"threads": 2, "persistent_workers": True, "prefetch": 1}
    with ThreadLoader(First(), 2, sampler=Interrupted(), **options) as loader:
        iterator = iter(loader)
        assert int(spawn(next, iterator).result(PATIENCE)[0]) == 0
        with pytest.raises(KeyboardInterrupt):
            spawn(iter, loader).result(PATIENCE)
        assert spawn(outcomes, iterator).result(PATIENCE) == list(range(2, 20, 2))


def test_what_is_counted_as_fetched_was_fetched() -> None:
    fetched: list[int] = []
    loader: Any

    class Closes(First):
        def __getitem__(self, index: int) -> int:
            fetched.append(index)
            if index == 5:
                iterator.close()
            return index

    loader = ThreadLoader(Closes(), 20, threads=0)
    list(ThreadLoader(First(), 20, threads=0))
    iterator = iter(loader)
    with pytest.raises(ClosedError):
        next(iterator)
    assert loader.statistics().totals.samples <= len(fetched)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_works_in_a_forked_child(persistent: bool) -> None:
    with ThreadLoader(
        First(), 2, threads=2, persistent_workers=persistent, output="numpy"
    ) as loader:
        expected = outcomes(loader)
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()

        def child() -> None:
            theirs.send(outcomes(loader))

        process = context.Process(target=child)
        process.start()
        try:
            assert mine.poll(PATIENCE), "the child hangs"
            assert mine.recv() == expected
        finally:
            process.kill()
            process.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_iterator_says_in_a_forked_child_that_its_threads_are_not_there() -> None:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    iterator = iter(ThreadLoader(First(), 2, threads=2, output="numpy"))

    def child() -> None:
        try:
            next(iterator)
        except ClosedError as error:
            theirs.send(str(error))

    process = context.Process(target=child)
    process.start()
    try:
        assert mine.poll(PATIENCE), "the child hangs"
        assert "fork" in mine.recv()
    finally:
        process.kill()
        process.join()
        iterator.close()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_threads_that_share_an_iterator_take_turns(
    threads: int, spawn: Callable[..., Future[Any]]
) -> None:
    iterator = iter(ThreadLoader(range(400), 2, threads=threads, output="numpy"))
    consumers = [spawn(lambda: [int(batch[0]) for batch in iterator]) for _ in range(4)]
    taken = [first for consumer in consumers for first in consumer.result(PATIENCE)]
    assert sorted(taken) == list(range(0, 400, 2))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_in_use_can_be_copied(copied: Callable[[Any], Any], persistent: bool) -> None:
    with ThreadLoader(
        [1, 2, 3], 2, threads=1, persistent_workers=persistent, output="numpy"
    ) as loader:
        kept = list(loader)
        twin: Any = copied(loader)
        with twin:
            assert outcomes(twin) == outcomes(loader) == [int(batch[0]) for batch in kept]


def test_a_batch_size_beyond_the_dataset_takes_no_more_memory_than_the_dataset() -> None:
    loader: Any = ThreadLoader(Array(), 10**9, threads=2, output="numpy")
    [batch] = loader
    assert batch.shape == (20, 3)


def test_a_handler_at_exit_that_goes_on_with_an_iterator_is_told_that_it_is_closed(
    spawn: Callable[..., Future[Any]],
) -> None:
    code = """
import atexit
def go_on():
    try:
        for _ in iterator: pass
    except Exception as error:
        print(type(error).__name__)
atexit.register(go_on)
from threadloader import ThreadLoader
iterator = iter(ThreadLoader(range(1000), 1, threads=2, output="numpy"))
next(iterator)
"""
    assert spawn(run_child, code).result(3 * PATIENCE)[:2] == (0, "ClosedError")


class Afresh:
    """An iterable, each pass over which begins at its beginning."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(1000))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadLoader(Afresh(), 8, threads=1),
        lambda: ThreadLoader(Afresh(), 8, threads=3, transform=int),
        lambda: ThreadLoader.from_source(lambda number: [0] * number, 8, threads=2),
    ],
    ids=["plain", "transform", "source"],
)
def test_a_second_pass_over_a_plain_iterable_ends_the_first(
    make: Callable[[], ThreadLoader[Any]], spawn: Callable[..., Future[Any]]
) -> None:
    with make() as loader:
        first = iter(loader)
        spawn(next, first).result(PATIENCE)
        second = iter(loader)
        assert int(spawn(next, second).result(PATIENCE)[0]) == 0
        with pytest.raises(ClosedError, match="a later iter"):
            spawn(next, first).result(PATIENCE)
        assert len(spawn(next, second).result(PATIENCE)) == 8


@pytest.mark.parametrize("arguments", [{"dataset_copy": "deep"}, {"threads": 0}], ids=str)
def test_passes_that_share_nothing_are_independent(
    arguments: dict[str, Any], spawn: Callable[..., Future[Any]]
) -> None:
    with ThreadLoader(Afresh(), 8, **({"threads": 1} | arguments)) as loader:
        first, second = iter(loader), iter(loader)
        for start in range(0, 80, 8):
            for iterator in (first, second):
                assert int(spawn(next, iterator).result(PATIENCE)[0]) == start
