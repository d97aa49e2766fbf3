"""worker_init_fn: whose copy it sets up, and who waits for it."""

from __future__ import annotations

import gc
from threading import Barrier, Event
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.workers import join_workers

from threadloader import ClosedError, ThreadLoader
from threadloader._threads import worker_startup as startup_module
from threadloader._threads.waiting import wait_until
from threadloader.errors import SampleError


class Marked:
    """Samples are the mark of the copy that they come from; two workers meet in them."""

    together = Barrier(2)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        self.together.wait(PATIENCE)
        return vars(self).get("mark")

    def set_up(self, worker: int) -> None:
        self.mark = 100 + worker


class Numbers:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def fail(worker: int) -> None:
    raise LookupError(worker)


@pytest.mark.parametrize("how", ["auto", "deep"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.usefixtures("first_sample_waits")
def test_a_method_of_the_dataset_sets_up_each_worker_s_copy(
    how: Any, persistent: bool, spawn: Spawn
) -> None:
    dataset = Marked()
    with ThreadLoader(
        dataset,
        None,
        threads=2,
        worker_init_fn=dataset.set_up,
        dataset_copy=how,
        persistent_workers=persistent,
    ) as loader:
        for _ in range(2):
            assert sorted(spawn(list, loader).result(2 * PATIENCE)) == [100, 101]
    assert vars(dataset) == {}


def test_of_a_shared_dataset_it_sets_up_the_dataset(spawn: Spawn) -> None:
    dataset = Marked()
    loader: Any = ThreadLoader(
        dataset, None, threads=2, worker_init_fn=dataset.set_up, dataset_copy="shared"
    )
    assert len(set(spawn(list, loader).result(2 * PATIENCE))) == 1
    assert dataset.mark in {100, 101}


@pytest.mark.parametrize("persistent", [False, True])
def test_close_wakes_who_waits_for_an_init_fn_that_does_not_end(
    persistent: bool, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    waits, gate = Event(), Event()

    def telling(*how: Any) -> bool:
        waits.set()  # whoever closes from now on is heard
        return wait_until(*how)

    monkeypatch.setattr(startup_module, "wait_until", telling)
    with ThreadLoader(
        [1, 2],
        threads=2,
        worker_init_fn=lambda _: gate.wait(2 * PATIENCE),
        persistent_workers=persistent,
    ) as loader:
        iterator = iter(loader)
        try:
            waiting = spawn(next, iterator)
            assert waits.wait(PATIENCE)
            closing = spawn(iterator.close)
            with pytest.raises(ClosedError, match="was closed"):
                waiting.result(PATIENCE)
        finally:
            gate.set()
        closing.result(PATIENCE)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_init_fn_is_the_end_of_the_iterator(persistent: bool, spawn: Spawn) -> None:
    with ThreadLoader(
        [1, 2], threads=2, worker_init_fn=fail, persistent_workers=persistent
    ) as loader:
        iterator = iter(loader)
        with pytest.raises(LookupError, match="0"):
            spawn(next, iterator).result(PATIENCE)
        for _ in range(2):
            assert spawn(next, iterator, "end").result(PATIENCE) == "end"


def test_an_init_fn_that_raises_stop_iteration_does_not_end_the_epoch_in_silence() -> None:
    def stops(_: int) -> None:
        next(iter(()))

    with pytest.raises(SampleError, match="worker_init_fn raised StopIteration"):
        list(ThreadLoader(range(4), threads=2, worker_init_fn=stops))


def test_a_kept_error_of_init_fn_keeps_no_copy_of_the_dataset(spawn: Spawn) -> None:
    class Noted(Numbers):
        pass

    def first() -> Exception:
        iterator = iter(ThreadLoader(Noted(), num_workers=2, worker_init_fn=fail))
        try:
            next(iterator)
        except LookupError as error:
            del iterator
            return error
        raise AssertionError

    error = spawn(first).result(PATIENCE)
    join_workers()
    gc.collect()
    assert error.args == (0,)
    assert not any(type(each) is Noted for each in gc.get_objects())
