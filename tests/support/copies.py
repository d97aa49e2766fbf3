"""Loaders that copy to a fake device, and what they deliver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from support.fake_device import FakeDevice
from support.faulty import Copied
from support.pictures import told_by
from threadloader import ThreadLoader

SIZE = 24  # samples


class Numbers(Copied):
    """Sample ``i`` has the number ``i``; some raise."""

    def __init__(self, size: int = SIZE, bad: frozenset[int] = frozenset()) -> None:
        super().__init__(bad, size)


def make(dataset: Any, device: Any = None, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": 3, "threads": 2, "output": "numpy"}
    return ThreadLoader(dataset, device=device or FakeDevice(), **(defaults | arguments))


def numbers(batch: Any) -> list[int]:
    """Return the samples' numbers."""
    return [row[0] for row in np.asarray(batch).tolist()]


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Return what each call of next() gives: numbers, or errors."""
    return told_by(iterator, numbers)


def batches_of(rows: int, size: int = SIZE) -> list[list[int]]:
    return [list(range(size))[start : start + rows] for start in range(0, size, rows)]
