"""Replicas that outlive an epoch, are blocked, or have a length that is wrong."""

from __future__ import annotations

import re
import warnings
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE
from torch.utils.data import IterableDataset, get_worker_info

from threadloader import ClosedError, ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn


def rows(iterator: Any) -> list[int]:
    return [int(sample) for sample in iterator]


class Cursor(IterableDataset[Any]):
    """Reads by a cursor on itself, as users' datasets do."""

    def __iter__(self) -> Iterator[Any]:
        self.cursor = -1
        return self

    def __next__(self) -> int:
        if self.cursor == 8:
            raise StopIteration
        self.cursor += 1
        return self.cursor


@pytest.mark.parametrize("transform", [None, int], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_new_epoch_of_persistent_replicas_ends_the_one_before(
    threads: int, transform: Any, spawn: Spawn
) -> None:
    replicas = threads if transform is None else 1
    expected = [row for row in range(9) for _ in range(replicas)]
    with ThreadLoader(
        Cursor(),
        None,
        threads=threads,
        transform=transform,
        persistent_workers=True,
        prefetch=threads,
    ) as loader:
        for _ in range(5):
            before: Any = iter(loader)
            assert spawn(next, before).result(PATIENCE) == 0
            after = iter(loader)
            assert spawn(rows, after).result(PATIENCE) == expected
            with pytest.raises(ClosedError):
                spawn(next, before).result(PATIENCE)


class Blocked(IterableDataset[Any]):
    """Worker 0 waits for the gate; each of its 20 samples is a row, each of worker 1's, -row."""

    gate = Event()

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info().id == 0:
            assert self.gate.wait(2 * PATIENCE)
            return iter(range(1, 21))
        return iter(range(-20, 0))


@pytest.mark.parametrize("arguments", [{}, {"prefetch_factor": 1}, {"prefetch": 7}], ids=str)
def test_out_of_order_a_blocked_replica_holds_nobody_back(
    arguments: dict[str, Any], spawn: Spawn
) -> None:
    Blocked.gate = Event()
    iterator = iter(ThreadLoader(Blocked(), None, threads=2, in_order=False, **arguments))
    try:
        early = spawn(lambda: [int(next(iterator)) for _ in range(20)]).result(PATIENCE)
    finally:
        Blocked.gate.set()
    assert early == list(range(-20, 0))
    assert spawn(rows, iterator).result(PATIENCE) == list(range(1, 21))


class TooLong(IterableDataset[Any]):
    """Has more samples than its length; its name takes until another thread asks for it, too."""

    def __init__(self) -> None:
        self.counting = Lock()
        self.asked = 0
        self.another = Event()

    def __deepcopy__(self, memo: Any) -> TooLong:
        return TooLong()

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Any]:
        return iter(range(12))

    def __repr__(self) -> str:
        with self.counting:
            self.asked += 1
            if self.asked == 2:
                self.another.set()
        self.another.wait(0.05)
        with self.counting:
            self.asked -= 1
        return "TooLong"


def test_threads_that_share_an_iterator_are_warned_with_the_right_counts(spawn: Spawn) -> None:
    loader = ThreadLoader(TooLong(), None, threads=1)
    assert len(loader) == 2
    iterator = iter(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        consumers = [spawn(rows, iterator) for _ in range(4)]
        got = [row for consumer in consumers for row in consumer.result(PATIENCE)]
    assert sorted(got) == list(range(12))
    counts = [re.findall(r"but (\d+) samples", str(warning.message)) for warning in caught]
    assert counts == [[str(fetched)] for fetched in range(3, 13)]


class Told(IterableDataset[Any]):
    """Is told of the epoch through memory that worker processes share, as Hugging Face's are."""

    def __init__(self) -> None:
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[Any]:
        yield from range(10 * int(self.epoch), 10 * int(self.epoch) + 3)


@pytest.mark.parametrize("persistent", [False, True])
def test_what_processes_would_share_the_replicas_share(persistent: bool, spawn: Spawn) -> None:
    dataset = Told()
    with ThreadLoader(dataset, None, threads=1, persistent_workers=persistent) as loader:
        assert spawn(rows, loader).result(PATIENCE) == [0, 1, 2]
        dataset.epoch.fill_(4)
        assert spawn(rows, loader).result(PATIENCE) == [40, 41, 42]
