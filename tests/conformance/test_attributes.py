"""What is assigned to a loader's attributes counts from the next epoch on, as with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.shared import SharedList

from conformance.loading import MakeLoader
from threadloader import ThreadLoader, get_worker_info

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def worker(_: int) -> tuple[int, int] | None:
    """Return who made a sample."""
    info = get_worker_info()
    return None if info is None else (info.num_workers, info.seed - info.id)


def told(loader: Any) -> set[Any]:
    return {sample and tuple(sample) for sample in loader}


def test_a_worker_init_fn(spawn: Spawn) -> None:
    begun: list[int] = SharedList()
    loader: Any = ThreadLoader(range(4), num_workers=2)
    spawn(list, loader).result(PATIENCE)
    loader.worker_init_fn = begun.append
    spawn(list, loader).result(PATIENCE)
    loader.worker_init_fn = None
    spawn(list, loader).result(PATIENCE)
    assert sorted(begun) == [0, 1]


def test_a_generator(alike_workers: Callable[..., Any]) -> None:
    def seeds(make: MakeLoader) -> set[Any]:
        loader = make(Acting(4, sample=worker), None)
        loader.generator = torch.Generator().manual_seed(7)
        return told(loader)

    alike_workers(seeds, 1)


def test_the_workers_seed_is_new_each_epoch_and_follows_from_a_numpy_generator(
    spawn: Spawn,
) -> None:
    def seeds(seed: int | None) -> list[Any]:
        generator = None if seed is None else np.random.default_rng(seed)
        loader = ThreadLoader(Acting(4, sample=worker), None, num_workers=2, generator=generator)
        return [told(loader) for _ in range(4)]

    first, again, other, free = (spawn(seeds, seed).result(PATIENCE) for seed in (5, 5, 6, None))
    assert first == again != other
    assert len(set.union(*first)) == len(set.union(*free)) == 4
