"""Where the seed of each epoch comes from: the random state that torch draws from, or ``seed=``.

One number an epoch decides everything that its workers draw.  With ``seed`` the order is decided
by it, too, and nobody's random state is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from threadloader import _torch
from threadloader.rng import epoch_seed

__all__ = ["EpochSeeds", "Seeds", "draw_seed"]


@dataclass(frozen=True, slots=True)
class EpochSeeds:
    """What the random numbers of one epoch follow from."""

    workers: int  # the base seed; a worker's own is this plus its number
    samples: int  # of the streams of samples and batches


class Seeds:
    """The seeds of one loader's epochs.

    Threads:
        all: planner only.
    """

    def __init__(self) -> None:
        self.epoch = 0  # that starts next
        self._base = 0
        self._since = 0  # epochs since the base seed was drawn

    def begin_epoch(self, seed: int | None, given: Any) -> Any:
        """Go on to the next epoch; return what draws its seeds and its order.

        Args:
            seed: What all epochs follow from, with their numbers; None to draw from ``given``.
            given: The user's generator; None for the process's own random state.
        """
        epoch, self.epoch = self.epoch, self.epoch + 1
        return given if seed is None else _torch.new_generator(epoch_seed(seed, epoch))

    def draw(self, generator: Any, *, fresh: bool) -> EpochSeeds:
        """Return the seeds of the epoch that has begun.

        Args:
            generator: As `begin_epoch` returned it.
            fresh: Whether to draw a base seed: torch does for new workers alone.
        """
        if fresh:
            self._base, self._since = draw_seed(generator), 0
        else:
            self._since += 1
        samples = epoch_seed(self._base, self._since) if self._since else self._base
        return EpochSeeds(self._base, samples)


def draw_seed(generator: Any) -> int:
    """Draw 63 bits from ``generator``; None for the process's own random state."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    return _torch.draw_base_seed(generator)
