"""What can't begin is told and keeps nobody waiting; what begins at once begins right."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, InvalidStateError, wait
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.copies import Numbers
from support.copies import make as make_copying
from support.fake_device import FakeDevice
from support.patience import PATIENCE
from support.streams import Rows, make

from threadloader import _torch, get_worker_info
from threadloader._engine import workers as workers_module
from threadloader._threads import pool as pool_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn


class Replicas(_torch.IterableDataset):  # type: ignore[misc,name-defined]
    """Shards itself."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(info.id, 12, info.num_workers))


class Own(list[int]):
    """Of a class of the user's, whose code may draw."""


KINDS: dict[str, Callable[..., Any]] = {
    "map": lambda **more: make(Own(range(12)), 2, **more),
    "persistent": lambda **more: make(Own(range(12)), 2, persistent_workers=True, **more),
    "replicas": lambda **more: make(Replicas(), 2, **more),
    "kept replicas": lambda **more: make(Replicas(), 2, persistent_workers=True, **more),
    "plain": lambda **more: make(Rows(12), 2, threads=1, **more),
    "transform": lambda **more: make(Rows(12), 2, transform=int, **more),
    "device": lambda **more: make_copying(Numbers(12), FakeDevice(), **more),
}
TOTALS = dict.fromkeys(KINDS, 66) | {"device": 3 * 66}
each_kind = pytest.mark.parametrize("kind", KINDS)


def nothing(_worker: int) -> None:
    """Set up nothing."""


def total(loader: Any) -> int:
    return sum(int(row) for batch in loader for row in np.asarray(batch).ravel())


def end_of(loader: Any) -> BaseException:
    """Return what an epoch ends by."""
    try:
        for _ in loader:
            pass
    except BaseException as error:  # noqa: BLE001  # what is told
        return error.with_traceback(None)
    raise AssertionError("no error")


# Workers that can't begin


@each_kind
@pytest.mark.parametrize("failing", [[0], [1]], ids=str)
@pytest.mark.parametrize("sets_up", [False, True])
@pytest.mark.usefixtures("first_sample_waits")
def test_the_error_of_a_worker_that_cannot_begin_is_raised_and_the_loader_goes_on(
    kind: str, failing: list[int], sets_up: bool, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    if kind == "plain" and 0 not in failing:
        pytest.skip("there is one worker")
    whole = workers_module.WorkerStream
    dying: Future[threading.Thread] = Future()

    def stream(base_seed: int, number: int) -> Any:
        if number in failing:
            with contextlib.suppress(InvalidStateError):
                dying.set_result(threading.current_thread())
            raise MemoryError("no memory for its streams")
        if kind != "transform":  # whose reader is what starts the others
            dying.result(PATIENCE).join(PATIENCE)  # or it could load all before that one fails
        return whole(base_seed, number)

    monkeypatch.setattr(workers_module, "WorkerStream", stream)
    loader = KINDS[kind](worker_init_fn=nothing if sets_up else None)
    error = spawn(end_of, loader).result(PATIENCE)
    assert isinstance(error, MemoryError)
    assert error.__notes__[0] in {f"worker {number} could not run" for number in failing}
    monkeypatch.setattr(workers_module, "WorkerStream", whole)
    assert spawn(total, loader).result(PATIENCE) == TOTALS[kind]
    spawn(loader.close).result(PATIENCE)


class Failing(threading.Thread):
    """As if the system gave so many threads and no more."""

    left = 0

    def start(self) -> None:
        if not Failing.left:
            raise RuntimeError("can't start new thread")
        Failing.left -= 1
        super().start()


@each_kind
@pytest.mark.parametrize("started", [0, 1])
@pytest.mark.parametrize("sets_up", [False, True])
def test_a_thread_that_cannot_be_started_is_told_and_the_loader_goes_on(
    kind: str, started: int, sets_up: bool, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    if kind == "plain" and started:
        pytest.skip("there is one worker")
    loader = KINDS[kind](worker_init_fn=nothing if sets_up else None, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "Joinable", Failing)
        patch.setattr(Failing, "left", started)
        error = spawn(end_of, loader).result(PATIENCE)
    assert isinstance(error, RuntimeError)
    assert "can't start new thread" in str(error)
    assert spawn(total, loader).result(PATIENCE) == TOTALS[kind]
    spawn(loader.close).result(PATIENCE)


def test_an_epoch_that_iter_could_not_begin_does_not_count(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    def orders(loader: Any) -> list[Any]:
        return [[int(row) for batch in loader for row in batch] for _ in range(2)]

    def loader() -> Any:
        shuffled = {"shuffle": True, "seed": 5, "persistent_workers": True}
        return make(list(range(12)), 2, worker_init_fn=nothing, **shuffled)

    failed = loader()
    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "Joinable", Failing)
        assert isinstance(spawn(iter, failed).exception(PATIENCE), RuntimeError)
    with failed, loader() as other:
        assert spawn(orders, failed).result(PATIENCE) == spawn(orders, other).result(PATIENCE)


# Threads that call iter() at once


def at_once(spawn: Spawn, function: Callable[[], Any], threads: int = 4) -> list[Any]:
    """Return what several threads get, which begin together."""
    together = Barrier(threads)

    def call() -> Any:
        together.wait(PATIENCE)
        return function()

    return [future.result(PATIENCE) for future in [spawn(call) for _ in range(threads)]]


@pytest.mark.parametrize("kind", ["map", "persistent", "replicas", "transform", "device"])
@pytest.mark.parametrize("first", [True, False])
def test_threads_that_begin_epochs_at_once_each_get_all_samples(
    kind: str, first: bool, spawn: Spawn
) -> None:
    if kind == "transform":  # of one iterable, which is read once at a time
        loaders = [make(Rows(12), 2, transform=int, dataset_copy="deep") for _ in range(10)]
    else:
        loaders = [KINDS[kind]() for _ in range(10)]
    for loader in loaders:
        if not first:
            spawn(total, loader).result(PATIENCE)
        assert at_once(spawn, lambda loader=loader: total(loader)) == [TOTALS[kind]] * 4
        spawn(loader.close).result(PATIENCE)


def test_what_an_epoch_draws_lies_between_what_others_draw(spawn: Spawn) -> None:
    events: list[str] = []

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            # Each of these lines is a moment for another thread, if there may be one.
            events.append("begin")
            wait([spawn(Event().wait, 0.02)])
            events.append("drawn")
            return iter(range(12))

    loader = make(list(range(12)), 2, sampler=Sampler(), persistent_workers=True)
    assert at_once(spawn, lambda: total(loader)) == [66] * 4
    assert events == ["begin", "drawn"] * 4
    spawn(loader.close).result(PATIENCE)


# A thread that is being started
