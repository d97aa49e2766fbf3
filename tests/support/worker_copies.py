"""Datasets over what workers have copies of: rows that all workers load at once."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError, Lock
from typing import Any

import numpy as np

from support.patience import PATIENCE
from threadloader import ThreadLoader

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
        self.error: BaseException | None = None

    def __copy__(self) -> Meeting:
        return self

    def wait(self) -> None:
        """Wait for the others."""
        with self._lock:
            self._first -= 1
            waits = self._first < 0
        if waits:
            self._others.wait(PATIENCE)

    def give_up(self, error: BaseException) -> None:
        """Let nobody wait for a sample that fails."""
        if not isinstance(error, BrokenBarrierError):
            self.error = error
        self._others.abort()


def together(dataset: Any) -> list[Any]:
    """Load batches of one row, each of which is loaded by a thread of its own, all at once.

    One batch comes before, see `Meeting`.  No thread can take a second row, because the samples
    wait for each other.
    """
    rows = [[row] for row in range(min(THREADS, len(dataset)))]
    with ThreadLoader(dataset, batch_sampler=[*rows[:1], *rows], threads=THREADS) as loader:
        return [row for batch in list(loader)[1:] for row in np.asarray(batch).tolist()]


class Mapped:
    """A dataset: numbers that go through a transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return THREADS

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)
