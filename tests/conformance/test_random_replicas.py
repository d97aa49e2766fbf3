"""Replicas draw what torch's worker processes draw; pipes, nested loaders and threads besides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.patience import PATIENCE, Spawn
from support.pictures import picture
from torch import nn
from torch.utils.data import IterableDataset

from conformance.loading import MakeLoader, processes
from threadloader import ThreadLoader

Draw = Callable[[], Any]

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

legacy = np.random  # its old functions are what is tested
SEED = 11


def told(loader: Any, epochs: int = 2) -> list[Any]:
    """Return the pictures of the batches, epoch by epoch, as ``torch.manual_seed`` decides them."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    legacy.seed(SEED)
    return [[picture(batch) for batch in loader] for _ in range(epochs)]


def draw_all() -> list[Any]:
    return [torch.rand(2), random.random(), legacy.rand()]


class Replica(IterableDataset[Any]):
    """Yields what it draws, and drew at first."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[Any]:
        first = self.draw()
        for _ in range(5):
            yield first, self.draw()


DRAWS: dict[str, Draw] = {
    "random": lambda: [random.random(), random.gauss(0, 1), random.randint(0, 1 << 30)],
    "numpy": lambda: [legacy.rand(), legacy.normal(), legacy.randint(1 << 30)],
    "torch": lambda: [torch.rand(2), torch.randn(3), torch.randperm(9)],
    "dropout": lambda: nn.functional.dropout(torch.ones(20)),
    "Normal": lambda: torch.distributions.Normal(0.0, 1.0).sample((3,)),
    "initial_seed": torch.initial_seed,
    "get_rng_state": torch.get_rng_state,
    "random.getstate": lambda: torch.tensor(random.getstate()[1]),
    "np.random.get_state": lambda: legacy.get_state()[1].astype(np.int64),
}


@pytest.mark.parametrize("case", DRAWS)
def test_replicas_draw_what_torchs_worker_processes_draw(case: str, spawn: Spawn) -> None:
    dataset = Replica(DRAWS[case])
    for workers, persistent in ((1, False), (2, True)):
        arguments: dict[str, Any] = {"batch_size": 2, "persistent_workers": persistent}
        expected = told(processes(workers)(dataset, **arguments))
        with ThreadLoader(dataset, threads=workers, **arguments) as loader:
            assert spawn(told, loader).result(PATIENCE) == expected
    if case != "initial_seed":  # without workers it is the process's own
        expected = told(ThreadLoader(dataset, 2, threads=1))
        assert spawn(told, ThreadLoader(dataset, 2, threads=0)).result(PATIENCE) == expected


def test_collating_and_worker_init_fn_draw_what_they_draw_in_processes(
    alike_workers: Callable[..., Any],
) -> None:
    def seed_worker(_: int) -> None:  # of torch's notes on reproducibility
        seed = torch.initial_seed() % 2**32
        legacy.seed(seed)
        random.seed(seed)

    def run(make: MakeLoader) -> Any:
        arguments = {"collate_fn": lambda samples: (samples, draw_all())}
        return told(make(Replica(draw_all), 2, worker_init_fn=seed_worker, **arguments))

    alike_workers(run, 1, 2)
