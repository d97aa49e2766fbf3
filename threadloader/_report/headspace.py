"""Headspace: how much faster a loop would be if loading took no time.

It is measured in the loop itself.  Blocks of steps with loaded batches alternate with blocks of
steps that get batches again which were delivered before: for them nobody waits, and once the window
is full no thread works.  So what the loop does with a batch is the same in both.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Iterator, MutableMapping
from statistics import median
from time import perf_counter
from typing import Any

ROUNDS = 5  # of two blocks each: what changes slowly, a clock rate say, is in both
KEPT = 4  # batches, to be delivered again
MOST_FRUITLESS = 3  # epochs in a row that are too short to measure anything
MOST_SETTLING = 64  # steps until the window is full, at the most: the loop may be faster than that


class Headspace:
    """What is measured of one loader, and the result.

    Args:
        steps: Steps of each kind.

    Threads:
        all: consumer.
    """

    def __init__(self, steps: int) -> None:
        if steps < 1:
            msg = f"steps must be at least 1, but got {steps}"
            raise ValueError(msg)
        self.steps = steps
        self.block = -(-steps // ROUNDS)  # steps
        self._loaded: list[float] = []  # seconds a step, of each block
        self._replayed: list[float] = []
        self._fruitless = 0  # epochs in a row in which no block was measured
        self._longest = 0  # batches that were loaded in one of them
        self._batches = 0  # loaded in the present epoch
        self._is_fruitless = True  # whether no block was measured in it

    def __str__(self) -> str:
        if self._gave_up:
            return (
                f"Not measured: {MOST_FRUITLESS} epochs in a row were too short, the longest of "
                f"{self._longest} steps, of which {2 * self.block + 1} are needed. {self._advice()}"
            )
        if self.share is None:
            done = self.block * min(len(self._loaded), len(self._replayed))
            return f"Not measured yet: {done} of {self.steps} steps."
        loaded, replayed = 1e3 * median(self._loaded), 1e3 * median(self._replayed)
        return (
            f"Loading that takes no time would save {self.share:.0%} of a step "
            f"({replayed:.1f} ms instead of {loaded:.1f} ms); the rest is your loop."
        )

    __repr__ = __str__

    @property
    def _measured(self) -> bool:
        return len(self._replayed) * self.block >= self.steps

    @property
    def _gave_up(self) -> bool:
        return self._fruitless >= MOST_FRUITLESS

    @property
    def finished(self) -> bool:
        """Whether all steps were measured, or it was given up, as epochs are too short."""
        return self._measured or self._gave_up

    @property
    def share(self) -> float | None:
        """The share of a step's time that would be saved, from 0 to 1; None if not measured."""
        if not self._measured:
            return None
        loaded = median(self._loaded)
        return max(0.0, 1.0 - median(self._replayed) / loaded) if loaded else 0.0

    def measured(self, seconds: float, *, replayed: bool) -> None:
        """Note the seconds a step of one block."""
        self._fruitless = self._longest = 0
        self._is_fruitless = False
        (self._replayed if replayed else self._loaded).append(seconds)
        if replayed and self._measured:
            logging.getLogger("threadloader").info("%s", self)

    def loaded(self) -> None:
        """Note that a batch was loaded."""
        self._batches += 1

    def epoch_ended(self) -> None:
        """Note the end of an epoch, if there was one; give up if nothing comes of several."""
        batches, self._batches = self._batches, 0
        fruitless, self._is_fruitless = self._is_fruitless, True
        if not (batches and fruitless) or self.finished:
            return
        self._fruitless += 1
        self._longest = max(self._longest, batches)
        if self._gave_up:
            logging.getLogger("threadloader").warning("%s", self)

    def _advice(self) -> str:
        most = (self._longest - 1) // 2  # steps of a block
        if most < 1:
            return "It needs epochs of more batches."
        return f"Ask for fewer steps: loader.headspace(steps={ROUNDS * most})."


def _as_delivered(batch: Any) -> Any:
    """Return a batch in dicts and lists of its own, from which the loop may take parts."""
    if isinstance(batch, dict | list):
        twin = copy.copy(batch)
        places = list(batch) if isinstance(batch, dict) else range(len(batch))
        for place in places:
            twin[place] = _as_delivered(batch[place])
        return twin
    if isinstance(batch, MutableMapping):
        return copy.copy(batch)
    return tuple(map(_as_delivered, batch)) if type(batch) is tuple else batch


class Replaying(Iterator[Any]):
    """An epoch that delivers some batches a second time, until the headspace is measured.

    Args:
        epoch: Delivers the batches.
        headspace: Gets what is measured.

    Threads:
        all: consumer.
    """

    def __init__(self, epoch: Any, headspace: Headspace) -> None:
        self._epoch = epoch
        self._headspace = headspace
        self._kept: deque[Any] = deque(maxlen=KEPT)
        self._replays = False  # whether the present block is of batches that are delivered again
        self._settling = 1 + headspace.block  # steps until the block is measured
        self._steps = 0  # measured in this block
        self._began = 0.0  # when the measured part of the block did, on the clock

    def __len__(self) -> int:
        return len(self._epoch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoch, name)

    def __next__(self) -> Any:
        if self._headspace.finished:
            return next(self._epoch)
        if self._replays:
            batch = _as_delivered(self._kept[0])
            self._kept.rotate(-1)
        else:
            batch = self._next_loaded()
            self._kept.append(_as_delivered(batch))
            self._headspace.loaded()
        self._returns()
        return batch

    def _next_loaded(self) -> Any:
        """Return the epoch's next batch; note its end."""
        try:
            return next(self._epoch)
        except StopIteration:
            self._kept.clear()
            self._headspace.epoch_ended()
            raise

    def _returns(self) -> None:
        """Note that a batch is about to be returned, and change over at the end of a block."""
        if self._settling > 0:
            self._settling -= 1
            _, planned, done = self._epoch.moment()
            if self._replays and done == planned:
                self._settling = 0
            self._steps, self._began = 0, perf_counter()
            return
        self._steps += 1
        if self._steps < self._headspace.block:
            return
        seconds = (perf_counter() - self._began) / self._steps
        self._headspace.measured(seconds, replayed=self._replays)
        if self._headspace.finished:
            self._kept.clear()
        # What is in the window by now was loaded meanwhile: steps that say nothing.
        self._settling = 1 + self._epoch.moment()[1] if self._replays else MOST_SETTLING
        self._replays = not self._replays
