"""Random functions are redirected wherever code of the user's may draw."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader

each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 2])


class Switched:
    """Arrays, until ``augmented`` says that samples are to be drawn."""

    def __init__(self) -> None:
        self.rows = np.zeros((8, 2))
        self.augmented = False

    def gathered_arrays(self) -> tuple[Any, ...] | None:
        return None if self.augmented else (self.rows,)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any]:
        return (self.rows[index] + (random.random() if self.augmented else 0),)


def drawn(dataset: Any, threads: int, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"seed": 1, "output": "numpy", "threads": threads}
    return [np.asarray(x).tolist() for x in ThreadLoader(dataset, 2, **given, **options)]


@each_number_of_threads
def test_arrays_that_a_user_s_method_hands_out_may_become_samples_that_draw(
    threads: int, spawn: Spawn
) -> None:
    def load() -> list[Any]:
        dataset = Switched()
        before = random.getstate()
        options: Any = {"threads": threads, "prefetch": 1, "output": "numpy", "seed": 1}
        iterator = iter(ThreadLoader(dataset, 2, dataset_copy="shared", **options))
        next(iterator)
        dataset.augmented = True
        list(iterator)
        assert random.getstate() == before
        return drawn(dataset, threads)

    expected = Switched()
    expected.augmented = True
    assert spawn(load).result(PATIENCE) == drawn(expected, 0)
