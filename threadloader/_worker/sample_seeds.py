"""Seeds whose children follow the sample that spawns them; imported where samples have some."""

from __future__ import annotations

from typing import Any

import numpy as np

from threadloader._worker.streams import here, sample_seed


class SampleSeeds(np.random.SeedSequence):
    """Seeds whose children follow the sample that spawns them, not the worker.

    A worker's copy counts its own children alone, so two workers would spawn the same.
    """

    @classmethod
    def of(cls, seeds: np.random.SeedSequence) -> SampleSeeds:
        """Return a copy of a seed sequence."""
        own = cls(
            seeds.entropy,
            spawn_key=seeds.spawn_key,
            pool_size=seeds.pool_size,
            n_children_spawned=seeds.n_children_spawned,
        )
        own.sample, own.spawned = None, 0
        return own

    sample: int | None
    spawned: int

    def spawn(self, n_children: int) -> list[Any]:
        """Return children, others for each sample."""
        if here.stream is None:
            return super().spawn(n_children)
        sample = sample_seed()
        first = self.spawned if sample == self.sample else 0
        self.sample, self.spawned = sample, first + n_children
        words = [sample & 0xFFFFFFFF, sample >> 32]
        return [
            np.random.SeedSequence(
                self.entropy,
                spawn_key=(*self.spawn_key, *words, first + number),
                pool_size=self.pool_size,
            )
            for number in range(n_children)
        ]
