"""transform= over torch's IterableDataset: the reader has a replica of its own, set up once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE
from torch.utils.data import IterableDataset, get_worker_info

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

each_crew = pytest.mark.parametrize("threads", [1, 2, 3])


def same(sample: Any) -> Any:
    return sample


class Cursor(IterableDataset[Any]):
    """Reads by a cursor on itself, as users' datasets do; ``set_up`` moves the first row."""

    start = 0
    cursor = -1
    passes = 0

    def set_up(self, worker: int) -> None:
        self.start = 100 * (worker + 1)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        self.cursor = self.start
        return self

    def __next__(self) -> int:
        if self.cursor == self.start + 12:
            raise StopIteration
        self.cursor += 1
        return self.cursor - 1


def rows(loader: Any) -> list[int]:
    return [int(sample) for sample in loader]


def touched(dataset: Cursor) -> bool:
    return bool(vars(dataset))


@each_crew
@pytest.mark.parametrize("how", ["auto", "deep"])
def test_the_reader_has_a_copy_and_the_user_s_dataset_is_left_alone(
    how: Any, threads: int, spawn: Spawn
) -> None:
    dataset = Cursor()
    loader = ThreadLoader(dataset, None, threads=threads, transform=same, dataset_copy=how)
    for _ in range(2):
        assert spawn(rows, loader).result(PATIENCE) == list(range(12))
    assert not touched(dataset)


@each_crew
def test_a_function_says_what_the_reader_reads(threads: int, spawn: Spawn) -> None:
    dataset, given, made = Cursor(), [], []

    def copied(original: Any) -> Any:
        given.append(original)
        made.append(Cursor())
        return made[-1]

    loader = ThreadLoader(dataset, None, threads=threads, transform=same, dataset_copy=copied)
    assert spawn(rows, loader).result(PATIENCE) == list(range(12))
    assert given == [dataset]
    assert [twin.passes for twin in made] == [1]
    assert not touched(dataset)


@each_crew
def test_a_shared_dataset_is_read_itself(threads: int, spawn: Spawn) -> None:
    dataset = Cursor()
    loader = ThreadLoader(dataset, None, threads=threads, transform=same, dataset_copy="shared")
    assert spawn(rows, loader).result(PATIENCE) == list(range(12))
    assert dataset.passes == 1


@each_crew
def test_an_epoch_after_a_break_is_whole(threads: int, spawn: Spawn) -> None:
    loader = ThreadLoader(Cursor(), None, threads=threads, transform=same)
    for _ in range(10):
        assert spawn(lambda: next(iter(loader))).result(PATIENCE) == 0
        assert spawn(rows, loader).result(PATIENCE) == list(range(12))


@each_crew
@pytest.mark.parametrize(
    "how", ["auto", "deep", lambda _: Cursor()], ids=["auto", "deep", "function"]
)
def test_a_method_of_the_dataset_sets_up_the_reader_s_replica_by_worker_0_alone(
    how: Any, threads: int, spawn: Spawn
) -> None:
    dataset = Cursor()
    loader = ThreadLoader(
        dataset,
        None,
        threads=threads,
        transform=same,
        dataset_copy=how,
        worker_init_fn=dataset.set_up,
    )
    for _ in range(3):
        assert spawn(rows, loader).result(PATIENCE) == list(range(100, 112))
    assert not touched(dataset)


def test_a_shuffled_data_pipe_has_one_order_at_every_number_of_workers(spawn: Spawn) -> None:
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")

    def order(workers: int) -> list[int]:
        torch.manual_seed(0)
        pipe = pipes.IterableWrapper(range(30)).shuffle().sharding_filter()
        loader = ThreadLoader(pipe, 30, num_workers=workers, transform=same)
        return [row for batch in loader for row in batch.tolist()]

    alone = spawn(order, 0).result(PATIENCE)
    assert sorted(alone) == list(range(30))
    assert alone != list(range(30))
    assert [spawn(order, workers).result(PATIENCE) for workers in (0, 1, 2)] == [alone] * 3


def test_the_reader_is_alone_for_a_dataset_that_shards_itself(spawn: Spawn) -> None:
    class Shards(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            return iter(range(info.id, 12, info.num_workers))

    loader = ThreadLoader(Shards(), None, threads=3, transform=same)
    assert spawn(rows, loader).result(PATIENCE) == list(range(12))
