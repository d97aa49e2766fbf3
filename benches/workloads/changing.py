"""Data that changes in mid-epoch: samples of two kinds, in phases that the consumer begins.

A sample is its value and the number of the phase that it was made in, so that the consumer can
count the samples of each phase, whatever was made ahead.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHANGING", "LAST", "Changing", "begin_phase"]

READ_SECONDS = 0.005
TAIL_SECONDS = 0.1  # of one read in a hundred
SORTED = 60_000  # numbers: some 0.3 ms
ENDLESS = 1 << 40  # samples: an epoch ends by time
LAST = -1  # a phase of samples that cost nothing, after all others

_numbers = np.random.default_rng(0).random(SORTED)
_phase = [0]  # of the process, as each worker has a copy of the dataset


def begin_phase(number: int) -> None:
    """Let the samples that are made from here on be of a phase: even ones of the first kind."""
    _phase[0] = number


def _read(index: int) -> np.float64:
    time.sleep(READ_SECONDS)
    return np.float64(index)


def _read_with_tails(index: int) -> np.float64:
    time.sleep(TAIL_SECONDS if index % 100 == 7 else READ_SECONDS)
    return np.float64(index)


def _return_at_once(index: int) -> np.float64:
    return np.float64(index)


def _work(index: int) -> Any:
    """Work some 0.3 ms on one core, without the GIL."""
    return np.sort(np.roll(_numbers, index)).sum()


class Changing:
    """A dataset of one or two kinds of samples.

    Args:
        kinds: What returns a sample's value, by the name of the kind.
        waits: Whether more threads than cores may be the best for one of them.
    """

    def __init__(self, kinds: dict[str, Callable[[int], Any]], *, waits: bool) -> None:
        self.kinds, self.waits = tuple(kinds), waits
        self._make = tuple(kinds.values())

    def __len__(self) -> int:
        """Return the number of samples."""
        return ENDLESS

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return the value and the phase."""
        phase = _phase[0]
        if phase == LAST:
            return np.float64(index), phase
        return self._make[phase % len(self._make)](index), phase


CHANGING = {
    "cache_fills": Changing({"reads": _read, "cached": _return_at_once}, waits=True),
    "rows_then_images": Changing({"rows": _return_at_once, "images": _work}, waits=False),
    "reads_then_work": Changing({"reads": _read, "work": _work}, waits=True),
    "tails": Changing({"reads": _read_with_tails}, waits=True),
}
