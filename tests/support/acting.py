"""A dataset whose samples do what a test says: wait, fail, or let the test's clock go on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from support.patience import PATIENCE
from support.shared import SharedList

__all__ = ["Acting", "Gated"]


class Acting:
    """Some samples, for each of which a function is called first.

    Args:
        size: Samples.
        act: Called with the index.
        sample: Returns the sample of an index; by default the index.
    """

    def __init__(
        self, size: int, act: Callable[[int], object] = int, sample: Callable[[int], Any] = int
    ) -> None:
        self.size = size
        self.act = act
        self.sample = sample

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.act(index)
        return self.sample(index)


class Gated:
    """Samples that are their indices, some of which wait until a test opens the gate.

    Args:
        size: Samples.
        waits: Indices of those that wait.
    """

    def __init__(self, size: int, *waits: int) -> None:
        self.size = size
        self.waits = waits
        self.asked: list[int] = SharedList()  # indices
        self.entered, self.gate, self.ended = Event(), Event(), Event()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index in self.waits:
            self._wait()
        return index

    def _wait(self) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        self.ended.set()
