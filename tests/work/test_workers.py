"""Workers: which threads there are, what each has of the dataset, and how all of them end."""

from __future__ import annotations

import threading
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader import get_worker_info
from threadloader._work.counters import Stats
from threadloader._work.progress import Progress
from threadloader._work.workers import (
    Workers,
    WorkerSetup,
    make_readers,
    make_transformers,
    make_workers,
)
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.patience import Spawn


class Data:
    """Iterable and map-style; its method may be a ``worker_init_fn``."""

    def __init__(self) -> None:
        self.values = [1, 2]
        self.seen: list[int] = []

    def __getitem__(self, index: int) -> int:
        return self.values[index]

    def set_up(self, worker: int) -> None:
        self.seen.append(worker)


class Undeepable(Data):
    """Refuses a deep copy."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no")


def setup(workers: int, stats: Stats | None = None) -> WorkerSetup:
    return WorkerSetup("tl-staff", workers, 100, stats or Stats())


def end(staff: Workers, spawn: Spawn) -> None:
    staff.stop()
    spawn(staff.join).result(PATIENCE)
    assert staff.stopped


def begin(staff: Workers, spawn: Spawn) -> None:
    staff.start()
    assert spawn(staff.ready, PATIENCE, Progress()).result(2 * PATIENCE)


def test_replicas_are_deep_copies_each_with_a_pool() -> None:
    data = Data()
    staff = make_readers(setup(3), data, "auto", None)
    replicas = [fetcher.dataset for fetcher in staff.fetchers]
    assert len(staff.pools) == 3
    assert len({id(replica.values) for replica in (data, *replicas)}) == 4


def test_what_refuses_a_deep_copy_is_copied_shallowly() -> None:
    data = Undeepable()
    replica = make_readers(setup(1), data, "auto", None).fetchers[0].dataset
    assert replica is not data
    assert replica.values is data.values


def test_what_refuses_every_copy_is_shared() -> None:
    rows = (row for row in range(3))
    assert make_readers(setup(1), rows, "auto", None).fetchers[0].dataset is rows


def test_a_deep_copy_that_was_asked_for_is_not_replaced() -> None:
    with pytest.raises(TypeError, match="no"):
        make_readers(setup(1), Undeepable(), "deep", None)


def test_a_shared_dataset_and_one_that_a_function_returns_are_as_given() -> None:
    data, other = Data(), Data()
    assert make_readers(setup(1), data, "shared", None).fetchers[0].dataset is data
    assert make_readers(setup(1), data, lambda _: other, None).fetchers[0].dataset is other


@pytest.mark.parametrize("kind", [Data, Undeepable])
def test_a_method_given_as_init_fn_is_that_of_the_replica(
    kind: Callable[[], Data], spawn: Spawn
) -> None:
    class Alone(kind):  # type: ignore[misc, valid-type]
        def set_up(self, worker: int) -> None:
            self.seen = [worker]

    data = Alone()
    staff = make_readers(setup(2), data, "auto", data.set_up)
    begin(staff, spawn)
    end(staff, spawn)
    assert [fetcher.dataset.seen for fetcher in staff.fetchers] == [[0], [1]]
    assert data.seen == []


def test_readers_are_the_workers_that_they_say_they_are(spawn: Spawn) -> None:
    told: dict[int, Any] = {}

    def tell(worker: int) -> None:
        info = get_worker_info()
        told[worker] = (info.id, info.num_workers, info.seed, info.dataset)

    staff = make_readers(setup(2), Data(), "auto", tell)
    begin(staff, spawn)
    end(staff, spawn)
    mine = [fetcher.dataset for fetcher in staff.fetchers]
    assert told == {0: (0, 2, 100, mine[0]), 1: (1, 2, 101, mine[1])}


def test_the_reader_of_a_transform_is_alone(spawn: Spawn) -> None:
    told: dict[int, int] = {}

    def tell(worker: int) -> None:
        told[worker] = get_worker_info().num_workers

    staff = make_transformers(setup(3), Data(), abs, "auto", tell)
    assert len(staff.pools) == 2
    begin(staff, spawn)
    end(staff, spawn)
    assert told == {0: 1, 1: 3, 2: 3}


def test_an_error_of_init_fn_is_that_of_the_lowest_worker(spawn: Spawn) -> None:
    def fail(worker: int) -> None:
        raise LookupError(worker)

    staff = make_readers(setup(3), Data(), "auto", fail)
    staff.start()
    with pytest.raises(LookupError, match="0"):
        spawn(staff.ready, PATIENCE, Progress()).result(2 * PATIENCE)
    with pytest.raises(ClosedError, match="worker_init_fn failed"):
        spawn(staff.ready, PATIENCE, Progress()).result(2 * PATIENCE)
    end(staff, spawn)


def test_a_worker_that_is_not_ready_in_time_is_told(spawn: Spawn) -> None:
    gate = Event()
    staff = make_readers(setup(1), Data(), "auto", lambda _: gate.wait(PATIENCE))
    staff.start()
    assert not spawn(staff.ready, 0.01, Progress()).result(PATIENCE)
    gate.set()
    assert spawn(staff.ready, PATIENCE, Progress()).result(2 * PATIENCE)
    end(staff, spawn)


def test_without_an_init_fn_no_thread_starts_before_its_first_batch(spawn: Spawn) -> None:
    before = threading.active_count()
    staff = make_readers(setup(2), Data(), "auto", None)
    staff.start()
    assert staff.ready(None, Progress())
    assert threading.active_count() == before
    staff.wake()
    assert not staff.stopped
    end(staff, spawn)


def test_a_map_style_dataset_has_one_pool_for_all() -> None:
    staff = make_workers(setup(3), Data(), "auto", None, whole=False)
    assert len(staff.pools) == 1
    assert len({id(fetcher.dataset) for fetcher in staff.fetchers}) == 3
