"""Loaders of random arguments: the batches of torch, and its draws from the program's state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    dataloader,
    get_worker_info,
)

from threadloader._replacement import methods
from threadloader._replacement.digest import digest
from threadloader._replacement.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on few cores
]
SEEDS = 40


class Mapped(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {"a": torch.full((3,), float(index)), "b": str(index)}


class Whole(Mapped):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[float]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.size, step):
            yield number + random.random() + torch.rand(()).item()


class AtFirstIndex(Sampler):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def drawn(self) -> list[int]:
        indices: list[int] = torch.randperm(self.size).tolist()
        random.shuffle(indices)
        return indices

    def __iter__(self) -> Iterator[int]:
        yield from self.drawn()


class AtOnce(AtFirstIndex):
    def __iter__(self) -> Iterator[int]:
        return iter(self.drawn())


class PieceByPiece(AtFirstIndex):
    def __iter__(self) -> Iterator[int]:
        for _ in range(self.size):
            yield random.randrange(self.size)


def loader(choose: random.Random) -> Any:
    """Return a loader of torch's with random arguments."""
    size, workers = choose.choice([1, 5, 17, 40]), choose.choice([0, 0, 1, 2, 3])
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options["persistent_workers"] = choose.random() < 0.4
        options["prefetch_factor"] = choose.choice([None, 1, 3])
    if choose.random() < 0.15:
        return DataLoader(Stream(size), choose.choice([None, 1, 4]), **options)
    if choose.random() < 0.3:
        options["generator"] = torch.Generator().manual_seed(choose.randrange(99))
    dataset = choose.choice([Mapped, Whole])(size)
    own = choose.choice([AtFirstIndex, AtOnce, PieceByPiece])(size)
    rows, generator = choose.choice([1, 3, 8]), options.get("generator")
    repeated = RandomSampler(dataset, choose.random() < 0.5, 50, generator)
    order = choose.choice(
        [
            {"batch_size": rows},
            {"batch_size": rows, "shuffle": True, "drop_last": choose.random() < 0.5},
            {"batch_size": rows, "sampler": own},
            {"batch_size": rows, "sampler": repeated},
            {"batch_size": None, "sampler": choose.choice([None, own])},
            {"batch_sampler": BatchSampler(own, rows, drop_last=False)},
        ]
    )
    return DataLoader(dataset, **order, **options)


def trained(seed: int) -> Any:
    """Return what a program sees of a loader in three passes, and of its own random state."""
    made = loader(random.Random(seed))
    random.seed(seed)
    torch.manual_seed(seed)
    passes = [[(digest(batch), torch.rand(()).item()) for batch in made] for _ in range(3)]
    return passes, random.random(), torch.rand(()).item()


def test_random_loaders_give_the_batches_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [trained(seed) for seed in range(SEEDS)]
    for owner, name in (
        (DataLoader, "__init__"),
        (DataLoader, "__iter__"),
        (DataLoader, "_get_iterator"),
        (dataloader._BaseDataLoaderIter, "__next__"),  # noqa: SLF001
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    report = Report()
    methods.exchange(dataloader, report, threads=None, replace=True)
    for seed in range(SEEDS):
        assert trained(seed) == expected[seed], f"seed {seed}"
    assert {row.reason is None for row in report.rows} == {True, False}
