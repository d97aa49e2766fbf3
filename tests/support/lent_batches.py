"""Arrays that tell their epoch and index, and the slots of the loaders that lend them out."""

from __future__ import annotations

from threading import Event
from typing import Any

import numpy as np
import pytest

from support.patience import PATIENCE
from support.workers import join_workers
from threadloader import ThreadLoader

SIZE = 24  # samples
ROWS = 3  # samples in a batch
WINDOW = 2  # batches

each_kind_of_threads = pytest.mark.parametrize(
    "workers",
    [{"threads": 2}, {"threads": 2, "persistent_workers": True}],
    ids=["", "persistent"],
)


def sample(epoch: int, index: int) -> Any:
    """Return what no other sample of any other epoch has."""
    return 10_000 * epoch + 100 * index + np.arange(6).reshape(2, 3)


def batch_of(epoch: int, number: int) -> Any:
    return np.stack([sample(epoch, ROWS * number + row) for row in range(ROWS)])


class Epochs:
    """Arrays that tell their epoch and their index; some samples of some epochs raise."""

    def __init__(self, bad: int | None = None) -> None:
        self.epoch = 0
        self.bad = bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise LookupError(index)
        return sample(self.epoch, index)


class Late(Epochs):
    """In epoch 0 one sample waits until the test lets it go on."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.late = late
        self.entered = Event()
        self.gate = Event()

    def __getitem__(self, index: int) -> Any:
        if self.epoch == 0 and index == self.late:
            self.entered.set()
            assert self.gate.wait(PATIENCE)
        return super().__getitem__(index)


def make(dataset: Any, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": ROWS, "prefetch": WINDOW, "threads": 2, "output": "numpy"}
    return ThreadLoader(dataset, **(defaults | arguments))


def held(loader: ThreadLoader[Any]) -> int:
    """Return how many slots are not free once the workers have ended.

    Called by the consumer: on a free-threaded build it is the thread which made an object that
    finalises it, when it next runs.
    """
    join_workers()
    slots = loader.statistics().slots
    return slots.leased + slots.filling


def slots_of(loader: ThreadLoader[Any]) -> int:
    """Return how many slots there are."""
    slots = loader.statistics().slots
    return slots.free + slots.filling + slots.leased


def plain_loops(loader: ThreadLoader[Any], epochs: int) -> list[int]:
    """Return how many slots there are at each batch of a plain for loop."""
    made = []
    for _ in range(epochs):
        for batch in loader:
            assert len(batch)
            made.append(slots_of(loader))
    return made
