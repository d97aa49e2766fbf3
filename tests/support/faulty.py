"""Datasets some samples of which raise, and loaders that leave those out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.patience import PATIENCE, Spawn
from support.streams import make, outcomes
from threadloader import ThreadLoader

SIZE = 12
ROWS = 3


class Faulty:
    """Sample ``i`` is ``i``; some raise."""

    def __init__(
        self,
        bad: Any = (),
        size: int = SIZE,
        make_error: Callable[[int], BaseException] = LookupError,
    ) -> None:
        self.bad = frozenset(bad)
        self.size = size
        self.make_error = make_error

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.make_error(index)
        return self.sample(index)

    def sample(self, index: int) -> Any:
        return index


class Whole(Faulty):
    """The same, and whole batches."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


def skipping(dataset: Any, batch_size: int | None = ROWS, **arguments: Any) -> ThreadLoader[Any]:
    return make(dataset, batch_size, **({"on_error": "skip"} | arguments))


def survivors(bad: Any, *, size: int = SIZE, rows: int = ROWS, drop_last: bool = False) -> Any:
    """Return the batches that are to come: of those without an error nothing is missing."""
    planned = [list(range(start, min(size, start + rows))) for start in range(0, size, rows)]
    if drop_last:
        planned = [batch for batch in planned if len(batch) == rows]
    left = [[index for index in batch if index not in bad] for batch in planned]
    return [batch for batch in left if batch]


def run(spawn: Spawn, loader: ThreadLoader[Any]) -> list[Any]:
    """Return what each next() of an epoch gives; the loader's threads end."""
    with loader:
        told: list[Any] = spawn(outcomes, loader).result(PATIENCE)
    return told


def texts(told: list[Any]) -> list[Any]:
    """Return outcomes that can be compared."""
    return [repr(each) if isinstance(each, BaseException) else each for each in told]


class Copied(Faulty):
    def sample(self, index: int) -> Any:
        return np.full(3, index)
