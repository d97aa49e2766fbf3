"""`Points`: a dataset that knows whether workers made its samples, and a model to train on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Visits(list[bool]):
    """Whether each sample was made by a worker; one list for all, however a dataset is copied."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Visits:
        return self


class Points(Dataset):
    """Sample ``i`` is a point and its target, or what ``make`` makes; keeps who asked for it."""

    def __init__(self, size: int = 22, make: Callable[[int], Any] | None = None) -> None:
        self.size = size
        self.make = make or point
        self.visits = Visits()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.visits.append(get_worker_info() is not None)
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.make(index)

    @property
    def by_workers(self) -> bool:
        """Whether samples were made in this process, and all by workers.

        Those of torch's loader are in other processes.  A ThreadLoader's may be the calling thread,
        where that is faster, and is a worker then.
        """
        return bool(self.visits) and all(self.visits)


class Stream(IterableDataset):
    """The samples of `Points` one after the other, shared out among workers."""

    def __init__(self, size: int = 22) -> None:
        self.size = size
        self.visits = Visits()

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.size, step):
            self.visits.append(info is not None)
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
