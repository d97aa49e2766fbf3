"""Where the seed of each epoch comes from: the random state that torch draws from, or ``seed=``.

One number an epoch decides everything that its workers draw.  With ``seed`` the order is decided
by it, too, and nobody's random state is touched.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from threadloader import _torch
from threadloader.rng import epoch_seed

__all__ = ["Seeds", "draw_seed"]


class Seeds:
    """The seeds of one loader's epochs.

    Args:
        seed: What all of them follow from, with the number of the epoch; None to draw them.

    Threads:
        all: planner only.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._own = None if seed is None else _torch.new_generator()
        self.epoch = 0  # that starts next
        self._base = 0
        self._since = 0  # epochs since the base seed was drawn

    def generator(self, given: Any) -> Any:
        """Return what draws order and seeds: the seed's own generator, or else the user's."""
        return given if self._own is None else self._own

    def begin_epoch(self) -> None:
        """Go on to the next epoch, before anything is drawn for it."""
        if self._seed is not None:
            _torch.reseed(self._own, epoch_seed(self._seed, self.epoch))
        self.epoch += 1

    def draw(self, generator: Any, *, fresh: bool) -> tuple[int, int]:
        """Return the base seed of the workers, and the seed of the epoch's samples.

        Args:
            generator: As `generator` returned it; None for the process's own random state.
            fresh: Whether there are new workers: torch draws a base seed for them alone.
        """
        if fresh or self._seed is not None:
            self._base, self._since = draw_seed(generator), 0
        else:
            self._since += 1
        return self._base, epoch_seed(self._base, self._since) if self._since else self._base


def draw_seed(generator: Any) -> int:
    """Draw 63 bits from ``generator``; None for the process's own random state."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    return _torch.draw_base_seed(generator)
