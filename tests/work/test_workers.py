"""Workers: which threads there are, what each has of the dataset, and how all of them end."""

from __future__ import annotations

import threading
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.settings import settings_of

from threadloader import get_worker_info
from threadloader._work.first_samples import FirstSamples
from threadloader._work.progress import Progress
from threadloader._work.stats import Stats
from threadloader._work.workers import Workers, make_workers
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


def readers(num_workers: int, dataset: Any, **given: Any) -> Workers:
    return made(num_workers, dataset, iterable=True, **given)


def made(num_workers: int, dataset: Any, **given: Any) -> Workers:
    settings = settings_of(dataset, num_workers=num_workers, **given)
    return make_workers(settings, 100, Stats(), FirstSamples())


def end(workers: Workers, spawn: Spawn) -> None:
    workers.stop()
    spawn(workers.join).result(PATIENCE)
    assert workers.stopped


def begin(workers: Workers, spawn: Spawn) -> None:
    workers.start()
    assert spawn(workers.ready, PATIENCE, Progress()).result(2 * PATIENCE)


def test_replicas_are_deep_copies_each_with_a_pool() -> None:
    data = Data()
    workers = readers(3, data)
    replicas = [fetcher.dataset for fetcher in workers.fetchers]
    assert len(workers.pools) == 3
    assert len({id(replica.values) for replica in (data, *replicas)}) == 4


def test_what_refuses_a_deep_copy_is_copied_shallowly() -> None:
    data = Undeepable()
    replica = readers(1, data).fetchers[0].dataset
    assert replica is not data
    assert replica.values == data.values


def test_what_refuses_every_copy_is_shared() -> None:
    rows = (row for row in range(3))
    assert readers(1, rows).fetchers[0].dataset is rows


def test_a_deep_copy_that_was_asked_for_is_not_replaced() -> None:
    with pytest.raises(TypeError, match="no"):
        readers(1, Undeepable(), dataset_copy="deep")


def test_a_shared_dataset_and_one_that_a_function_returns_are_as_given() -> None:
    data, other = Data(), Data()
    assert readers(1, data, dataset_copy="shared").fetchers[0].dataset is data
    assert readers(1, data, dataset_copy=lambda _: other).fetchers[0].dataset is other


@pytest.mark.parametrize("kind", [Data, Undeepable])
def test_a_method_given_as_init_fn_is_that_of_the_replica(
    kind: Callable[[], Data], spawn: Spawn
) -> None:
    class Alone(kind):  # type: ignore[misc, valid-type]
        def set_up(self, worker: int) -> None:
            self.seen = [worker]

    data = Alone()
    workers = readers(2, data, worker_init_fn=data.set_up)
    begin(workers, spawn)
    end(workers, spawn)
    assert [fetcher.dataset.seen for fetcher in workers.fetchers] == [[0], [1]]
    assert data.seen == []


def test_readers_are_the_workers_that_they_say_they_are(spawn: Spawn) -> None:
    told: dict[int, Any] = {}

    def tell(worker: int) -> None:
        info = get_worker_info()
        told[worker] = (info.id, info.num_workers, info.seed, info.dataset)

    workers = readers(2, Data(), worker_init_fn=tell)
    begin(workers, spawn)
    end(workers, spawn)
    mine = [fetcher.dataset for fetcher in workers.fetchers]
    assert told == {0: (0, 2, 100, mine[0]), 1: (1, 2, 101, mine[1])}


def test_the_reader_of_a_transform_is_alone(spawn: Spawn) -> None:
    told: dict[int, int] = {}

    def tell(worker: int) -> None:
        told[worker] = get_worker_info().num_workers

    workers = readers(3, Data(), transform=abs, worker_init_fn=tell)
    assert len(workers.pools) == 2
    begin(workers, spawn)
    end(workers, spawn)
    assert told == {0: 1, 1: 3, 2: 3}


def test_an_error_of_init_fn_is_that_of_the_lowest_worker(spawn: Spawn) -> None:
    def fail(worker: int) -> None:
        raise LookupError(worker)

    workers = readers(3, Data(), worker_init_fn=fail)
    workers.start()
    with pytest.raises(LookupError, match="0"):
        spawn(workers.ready, PATIENCE, Progress()).result(2 * PATIENCE)
    with pytest.raises(ClosedError, match="worker_init_fn failed"):
        spawn(workers.ready, PATIENCE, Progress()).result(2 * PATIENCE)
    end(workers, spawn)


def test_a_worker_that_is_not_ready_in_time_is_told(spawn: Spawn) -> None:
    gate = Event()
    workers = readers(1, Data(), worker_init_fn=lambda _: gate.wait(PATIENCE))
    workers.start()
    assert not spawn(workers.ready, 0.01, Progress()).result(PATIENCE)
    gate.set()
    assert spawn(workers.ready, PATIENCE, Progress()).result(2 * PATIENCE)
    end(workers, spawn)


def test_without_an_init_fn_no_thread_starts_before_its_first_batch(spawn: Spawn) -> None:
    before = threading.active_count()
    workers = readers(2, Data())
    workers.start()
    assert workers.ready(None, Progress())
    assert threading.active_count() == before
    workers.wake()
    assert not workers.stopped
    end(workers, spawn)


def test_a_map_style_dataset_has_one_pool_for_all() -> None:
    workers = made(3, Data())
    assert len(workers.pools) == 1
    assert len({id(fetcher.dataset) for fetcher in workers.fetchers}) == 3
