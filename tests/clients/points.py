"""`Points`: a dataset that knows which threads made its samples, and a model to train on it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

WORKER = re.compile(r"tl\d+-worker-\d+")


class Visitors(list[str]):
    """Names of threads; one list for all, however a dataset is copied."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Visitors:
        return self


class Points(Dataset):
    """Sample ``i`` is a point and its target; keeps the names of the threads that were here."""

    def __init__(self, size: int = 22) -> None:
        self.size = size
        self.visitors = Visitors()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.visitors.append(threading.current_thread().name)
        if not 0 <= index < self.size:
            raise IndexError(index)
        return point(index)

    @property
    def by_workers(self) -> bool:
        """Whether samples were made, and all by threads of a ThreadLoader's."""
        return bool(self.visitors) and all(map(WORKER.fullmatch, self.visitors))


class Stream(IterableDataset):
    """The samples of `Points` one after the other, shared out among workers."""

    def __init__(self, size: int = 22) -> None:
        self.size = size
        self.visitors = Visitors()

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.size, step):
            self.visitors.append(threading.current_thread().name)
            yield point(index)

    by_workers = Points.by_workers


def point(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sample ``index``."""
    values = torch.arange(4 * index, 4 * index + 4, dtype=torch.float32).sin()
    return values, values.sum(0, keepdim=True) + index % 3


def model() -> torch.nn.Linear:
    """Return a model with the same weights at each call."""
    line = torch.nn.Linear(4, 1)
    with torch.no_grad():
        line.weight.fill_(0.1)
        line.bias.zero_()
    return line


def lists(batches: Iterable[Any]) -> list[Any]:
    """Return batches as lists, which ``==`` compares."""
    return [[column.tolist() for column in batch] for batch in batches]


def stopped(loader: Any, batches: int) -> Any:
    """Return the state of a loader after some batches; after StopIteration if it has fewer."""
    iterator = iter(loader)
    for _ in islice(iterator, batches):
        pass
    return loader.state_dict()
