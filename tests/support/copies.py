"""Loaders that copy to a fake device, and what they deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.fake_device import FakeDevice
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 24  # samples


class Numbers:
    """Sample ``i`` has the number ``i``; some raise."""

    def __init__(self, size: int = SIZE, bad: frozenset[int] = frozenset()) -> None:
        self.size = size
        self.bad = bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise LookupError(index)
        return np.full(3, index)


def make(dataset: Any, device: Any = None, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": 3, "threads": 2, "output": "numpy"}
    return ThreadLoader(dataset, device=device or FakeDevice(), **(defaults | arguments))


def numbers(batch: Any) -> list[int]:
    """Return the samples' numbers."""
    return [row[0] for row in np.asarray(batch).tolist()]


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Return what each call of next() gives: numbers, or errors."""
    told: list[Any] = []
    while True:
        try:
            told.append(numbers(next(iterator)))
        except StopIteration:
            return told
        except Exception as error:  # noqa: BLE001  # what is told
            told.append(error)


def batches_of(rows: int, size: int = SIZE) -> list[list[int]]:
    return [list(range(size))[start : start + rows] for start in range(0, size, rows)]
