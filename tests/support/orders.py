"""Samples that draw, and samplers of a user's, for ranks that load them together."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

__all__ = ["Counted", "Drawing", "Growing", "Striding"]


class Drawing:
    """Sample ``i`` is ``i``, and what it draws from all kinds of random state."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        assert type(index) is int
        return index, random.random(), np.random.rand()  # noqa: NPY002


class Counted:
    """A sampler, or a batch sampler, that counts what is drawn from it."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self.entries = list(entries)
        self.drawn = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        for entry in self.entries:
            self.drawn += 1
            yield entry


class Striding:
    """A sampler of the user's, without a state."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return (index * 7 % self.samples for index in range(self.samples))

    def __len__(self) -> int:
        return self.samples


class Growing:
    """A batch sampler of the user's: its batches have 1, 2 ... ``most`` indices, and 1 again."""

    def __init__(self, batches: int, most: int) -> None:
        self.batches, self.most = batches, most

    def __iter__(self) -> Iterator[range]:
        start = 0
        for number in range(self.batches):
            yield range(start, start := start + 1 + number % self.most)

    def __len__(self) -> int:
        return self.batches
