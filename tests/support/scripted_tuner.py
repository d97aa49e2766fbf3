"""A number of threads that changes when a test says so, whatever anything takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from threadloader import ThreadLoader
from threadloader._threads.tuner import Tuner

__all__ = ["script"]


class ScriptedTuner(Tuner):
    """Goes from one number to the next at each look, which comes with each batch.

    Args:
        numbers: In this order, again and again; 0 for the calling thread.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self._numbers = cycle(numbers)
        self.seen: list[int] = []  # each number that there was

    def _set(self, number: int) -> None:
        super()._set(number)
        self.due = 0.0

    def stay(self) -> None:
        """Try again with the next batch."""
        self._set(0)

    def look(self, *_: Any) -> int:
        """Return the next number."""
        self.number = max(self.limits.least, next(self._numbers))
        self.seen.append(self.number)
        self.prefers_inline, self.due = not self.number, 0.0
        return self.number


def script(loader: ThreadLoader[Any], *numbers: int) -> list[int]:
    """Let a loader's number of threads follow a script; return the numbers as they come."""
    tuner = ScriptedTuner(numbers)
    loader._session.kept.tuner = tuner  # noqa: SLF001  # it has no public name
    return tuner.seen
