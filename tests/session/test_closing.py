"""``close()`` waits for all that the loader has running, dropped iterators included."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from threading import Barrier, Event
from typing import Any

import pytest
from support.acting import Acting, Gated
from support.copies import Numbers
from support.copies import make as make_copying
from support.fake_device import FakeDevice
from support.patience import PATIENCE, Spawn
from support.streams import Rows, make

MOMENT = 0.2  # seconds for who does not wait to come back; who does may take any time
CREWS = [{"threads": 1}, {"threads": 3}, {"threads": 2, "persistent_workers": True}]

each_crew = pytest.mark.parametrize("crew", CREWS, ids=["1", "3", "persistent"])


def of_map(gated: Gated, crew: dict[str, Any]) -> Any:
    return make(gated, 2, dataset_copy="shared", **crew)


def of_iterable(gated: Gated, crew: dict[str, Any]) -> Any:
    return make(map(gated.__getitem__, range(12)), 2, **(crew | {"threads": 1}))


def of_transform(gated: Gated, crew: dict[str, Any]) -> Any:
    return make(Rows(12), 2, transform=gated.__getitem__, dataset_copy="shared", **crew)


each_kind = pytest.mark.parametrize("kind", [of_map, of_iterable, of_transform])


def is_waiting(future: Future[Any]) -> bool:
    return not wait([future], MOMENT).done


def drop_half_way(loader: Any, gated: Gated) -> None:
    """Begin an epoch, and drop its iterator while a sample runs."""
    iterators = [iter(loader)]
    assert gated.entered.wait(PATIENCE)
    iterators.clear()


@each_kind
@each_crew
def test_close_waits_for_the_samples_of_a_dropped_iterator(
    kind: Any, crew: dict[str, Any], spawn: Spawn
) -> None:
    gated = Gated(12, 5)
    loader = kind(gated, crew)
    spawn(drop_half_way, loader, gated).result(PATIENCE)
    closing = spawn(loader.close)
    waits = is_waiting(closing)
    gated.gate.set()
    closing.result(PATIENCE)
    assert waits
    assert gated.ended.is_set()
    assert not [thread for thread in threading.enumerate() if "-worker-" in thread.name]


@each_crew
def test_close_waits_for_the_copier_of_a_dropped_iterator(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice()
    loader = make_copying(Numbers(), device, **crew)

    def drop() -> None:
        device.hold()
        iterator = iter(loader)
        next(iterator)
        device.await_waiter()

    spawn(drop).result(PATIENCE)
    closing = spawn(loader.close)
    waits = is_waiting(closing)
    device.release()
    closing.result(PATIENCE)
    assert waits
    assert not [thread for thread in threading.enumerate() if "-copier-" in thread.name]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("closes", ["loader", "iterator"])
def test_samples_that_close_what_they_belong_to_do_not_wait_for_each_other(
    closes: str, persistent: bool, spawn: Spawn
) -> None:
    begun, together = Event(), Barrier(2)
    closed: list[int] = []

    class Closing(Acting):
        def __getitem__(self, index: int) -> int:
            if index < 2:
                assert begun.wait(PATIENCE)
                together.wait(PATIENCE)
                (loader if closes == "loader" else iterator).close()
                closed.append(index)
            return index

    loader = make(Closing(12), 1, dataset_copy="shared", persistent_workers=persistent)
    iterator = spawn(iter, loader).result(PATIENCE)
    workers = [thread for thread in threading.enumerate() if "-worker-" in thread.name]
    begun.set()
    if closes == "loader":
        for worker in workers:
            worker.join(PATIENCE)
    assert spawn(next, iterator, None).exception(PATIENCE)
    spawn(loader.close).result(PATIENCE)
    assert sorted(closed) == [0, 1]
