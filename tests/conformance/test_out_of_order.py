"""in_order=False with replicas: whichever batch is ready comes first, and each comes once."""

from __future__ import annotations

import multiprocessing
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from torch.utils.data import IterableDataset, get_worker_info

from conformance.loading import ours, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

SIZES = [[0], [5], [0, 0], [7, 1], [2, 9, 0], [0, 1, 0, 6]]

each_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
each_way_of_batching = pytest.mark.parametrize("batch_size", [None, 2])


class Shard(IterableDataset[Any]):
    """Worker ``w`` yields ``sizes[w]`` samples of its own; worker 0 waits for the gate."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.gate = multiprocessing.get_context("fork").Event()  # threads share it too

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info().id
        if worker == 0:
            assert self.gate.wait(PATIENCE)
        for row in range(self.sizes[worker]):
            yield 100 * worker + row


def epoch(
    make_loader: Callable[..., Any], sizes: list[int], batch_size: int | None, early: int = 0
) -> list[list[Any]]:
    """Return the batches that come before the gate opens, and those that come after."""
    dataset = Shard(sizes)
    iterator = iter(make_loader(dataset, batch_size, in_order=False))
    told = [list(islice(iterator, early))]
    dataset.gate.set()
    told.append(list(iterator))
    return [[batch if batch_size is None else batch.tolist() for batch in part] for part in told]


@each_size
@each_way_of_batching
def test_every_batch_comes_once_and_the_epoch_ends(
    batch_size: int | None, sizes: list[int], spawn: Spawn
) -> None:
    told = spawn(epoch, ours(len(sizes)), sizes, batch_size).result(PATIENCE)
    assert sorted(told[1]) == sorted(epoch(processes(len(sizes)), sizes, batch_size)[1])


@each_size
def test_batches_of_one_replica_stay_in_order(sizes: list[int], spawn: Spawn) -> None:
    _, told = spawn(epoch, ours(len(sizes)), sizes, None).result(PATIENCE)
    for worker, size in enumerate(sizes):
        mine = [row for row in told if row // 100 == worker]
        assert mine == [100 * worker + row for row in range(size)]


@each_way_of_batching
def test_a_replica_that_is_ready_does_not_wait_for_a_slow_one(
    batch_size: int | None, spawn: Spawn
) -> None:
    sizes, early = [6, 6], 2
    told = spawn(epoch, ours(2), sizes, batch_size, early).result(PATIENCE)
    expected = epoch(processes(2), sizes, batch_size, early)
    assert told[0] == expected[0]
    assert sorted(told[1]) == sorted(expected[1])


def test_exhausted_replicas_are_skipped_while_another_is_slow(spawn: Spawn) -> None:
    told = spawn(epoch, ours(3), [3, 1, 0], None, 1).result(PATIENCE)
    assert told == [[100], [0, 1, 2]]
