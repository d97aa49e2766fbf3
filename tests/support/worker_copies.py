"""Datasets and transforms whose copies show: rows that all workers load at once."""

from __future__ import annotations

from threading import Barrier, Lock
from typing import Any

import numpy as np

from support.patience import PATIENCE
from threadloader import ThreadLoader
from threadloader._worker.copy_rules import copy_of

THREADS = 4


class Meeting:
    """A barrier in samples; the first of all pass, as no other is begun before they end.

    Args:
        parties: Samples that wait for one another.
        first: That pass: two where the first one loads something.
    """

    def __init__(self, parties: int = THREADS, first: int = 1) -> None:
        self._others = Barrier(parties)
        self._lock = Lock()  # so all copies of a dataset have the same
        self._first = first

    def __copy__(self) -> Meeting:
        return self

    def wait(self) -> None:
        """Wait for the others."""
        with self._lock:
            self._first -= 1
            waits = self._first < 0
        if waits:
            self._others.wait(PATIENCE)


def together(dataset: Any, first: int = 1, **options: Any) -> list[Any]:
    """Load batches of one row, each of which is loaded by a thread of its own, all at once.

    ``first`` batches come before, see `Meeting`.  No thread can take a second row, because the
    samples wait for each other.
    """
    rows = [[row] for row in range(min(THREADS, len(dataset)))]
    batches = [*rows[:1] * first, *rows]
    with ThreadLoader(dataset, batch_sampler=batches, threads=THREADS, **options) as loader:
        return [row for batch in list(loader)[first:] for row in np.asarray(batch).tolist()]


def auto_copy(dataset: Any) -> Any:
    return copy_of(dataset, "auto")[0]


class Mapped:
    """A dataset: numbers that go through a transform."""

    def __init__(self, transform: Any, size: int = THREADS) -> None:
        self.transform = transform
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


def racing_transform(first: int = 1) -> Any:
    """Return a transform that is wrong if two threads use it at once."""
    drawn = Meeting(first=first)  # in a closure, hence one for all copies

    class Shift:
        amount = 0

        def __call__(self, value: int) -> int:
            self.amount = 10 * value
            drawn.wait()
            return value + self.amount

    return Shift()


SHIFTED = [0, 11, 22, 33]


class Compose:
    """Applies the transforms of any container, one after the other."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        parts = self.transforms
        for part in parts.values() if isinstance(parts, dict) else parts:
            value = part(value)
        return value
