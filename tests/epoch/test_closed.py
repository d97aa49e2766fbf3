"""Iterators that are closed, or fail, while somebody waits; and what their errors keep."""

from __future__ import annotations

import gc
import weakref
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.streams import make
from support.workers import join_workers

from threadloader import ClosedError, ThreadLoader
from threadloader._epoch import epoch, made_here
from threadloader._work.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn


def error_of(iterators: list[Any]) -> Exception:
    """Return the first error that ``next()`` raises; only the list keeps the iterator."""
    while True:
        try:
            next(iterators[0])
        except Exception as error:  # noqa: BLE001  # what the tests are about
            return error


@pytest.mark.parametrize("look", range(12))
def test_out_of_order_close_may_come_at_any_look_at_the_window(
    look: int, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    looks = [0]
    closed: list[int] = []

    class Looking(type):
        def __instancecheck__(cls, batch: object) -> bool:
            looks[0] += 1
            if looks[0] == look + 1:
                spawn(iterator.close).result(PATIENCE)
                closed.append(look)
            return isinstance(batch, OpenBatch)

    OpenBatch = epoch.OpenBatch  # noqa: N806  # a class
    iterator = iter(make(range(1000), 1, in_order=False, prefetch=4))
    kind = Looking("OpenBatch", (), {})
    for module in (epoch, made_here):
        monkeypatch.setattr(module, "OpenBatch", kind)
    told = spawn(error_of, [iterator]).result(PATIENCE)
    assert closed == [look]
    assert isinstance(told, ClosedError)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_kept_error_of_a_closed_iterator_does_not_keep_it(
    threads: int, in_order: bool, spawn: Spawn
) -> None:
    iterators = [iter(make(range(50), 1, threads=threads, in_order=in_order))]
    spawn(next, iterators[0]).result(PATIENCE)
    iterators[0].close()
    error = spawn(error_of, iterators).result(PATIENCE)
    gone = weakref.ref(iterators.pop())
    gc.collect()  # without a GIL an object may outlive its last reference until then
    assert isinstance(error, ClosedError)
    assert gone() is None


class Raw:
    """A sample as it was read."""


class Raws:
    """Yields them, and knows which are alive."""

    def __init__(self) -> None:
        self.read: list[weakref.ref[Raw]] = []

    def __iter__(self) -> Iterator[Raw]:
        for _ in range(8):
            raw = Raw()
            self.read.append(weakref.ref(raw))
            yield raw
            del raw


def refuse(raw: Raw) -> None:
    del raw  # this frame is the user's, and stays with the error
    raise LookupError


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_a_kept_error_of_a_transform_keeps_no_samples(threads: int, spawn: Spawn) -> None:
    raws = Raws()
    iterators = [iter(make(raws, 4, threads=threads, transform=refuse))]
    error = spawn(error_of, iterators).result(PATIENCE)
    iterators.clear()
    join_workers()
    gc.collect()
    assert isinstance(error, LookupError)
    assert raws.read
    assert [raw() for raw in raws.read if raw() is not None] == []


@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_of_a_close_during_next_does_not_keep_the_iterator(
    in_order: bool, spawn: Spawn
) -> None:
    wanted, gate = Event(), Event()

    class Slow:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            wanted.set()
            assert gate.wait(PATIENCE)
            return index

    iterators = [iter(make(Slow(), 1, threads=2, in_order=in_order))]
    told = spawn(error_of, iterators)
    assert wanted.wait(PATIENCE)
    iterators[0].cancel()
    error = told.result(PATIENCE)
    gate.set()
    kept = weakref.ref(iterators.pop())
    join_workers()
    gc.collect()
    assert isinstance(error, ClosedError)
    assert kept() is None


@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_that_comes_up_while_the_consumer_waits_costs_no_batch(
    in_order: bool, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    # As a signal handler of the user's raises it, for an alarm say.
    def alarm(*_: object) -> None:
        monkeypatch.undo()
        raise TimeoutError("alarm")

    monkeypatch.setattr(Progress, "wait" if in_order else "wait_for_any", alarm)
    with ThreadLoader(
        range(8), 2, threads=2, in_order=in_order, output="numpy", collate_fn=list
    ) as loader:
        iterator = iter(loader)
        with pytest.raises(TimeoutError, match="alarm"):
            spawn(next, iterator).result(PATIENCE)
        rest = spawn(list, iterator).result(PATIENCE)
        assert sorted(rest) == [[0, 1], [2, 3], [4, 5], [6, 7]]
