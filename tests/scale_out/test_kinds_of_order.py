"""Mixtures and batches by cost on several ranks: shared out and resumed as any other order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from threadloader import ThreadLoader, TokenBatches
from threadloader.datasets import Mixture

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = np.random.default_rng(0).integers(5, 200, 600)


class Drawing:
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, np.random.rand()  # noqa: NPY002


def by_cost(shard: tuple[int, int]) -> ThreadLoader[Any]:
    batches = TokenBatches(LENGTHS, 1000, pool_size=100, seed=3)
    return ThreadLoader(
        Drawing(),
        batch_sampler=batches,
        seed=1,
        shard=shard,
        uneven="short",
        threads=0,
        output="numpy",
    )


def mixed(shard: tuple[int, int]) -> ThreadLoader[Any]:
    sources = {"many": (range(1000), 0.7), "few": (range(1000, 1100), 0.3)}
    return ThreadLoader(
        Mixture(sources, seed=2, stop="all"),
        8,
        seed=1,
        shard=shard,
        uneven="short",
        threads=0,
        output="numpy",
    )


each_kind = pytest.mark.parametrize("made", [by_cost, mixed])


def taken(
    made: Callable[[tuple[int, int]], ThreadLoader[Any]],
    world_size: int,
    state: dict[str, Any] | None = None,
    steps: int | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Return what all ranks load in some steps, sorted, and the state after them."""
    got: list[Any] = []
    states = []
    for rank in range(world_size):
        loader = made((rank, world_size))
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        for step, batch in enumerate(loader, 1):
            parts = batch if isinstance(batch, (list, tuple)) else [batch]
            got += zip(*(part.tolist() for part in parts), strict=True)
            if step == steps:
                break
        states.append(loader.state_dict())
    assert steps is None or all(each == states[0] for each in states)
    return sorted(got), states[0]


@each_kind
def test_all_ranks_together_load_what_one_loads(made: Any) -> None:
    one, _ = taken(made, 1)
    assert all(taken(made, world_size)[0] == one for world_size in (2, 4, 8))


@each_kind
def test_a_run_goes_on_with_any_number_of_ranks(made: Any) -> None:
    first, state = taken(made, 4, steps=5)
    assert len(json.dumps(state)) < 500
    second, state = taken(made, 3, state, steps=4)
    assert len(json.dumps(state)) < 500
    rest, _ = taken(made, 2, state)
    assert sorted(first + second + rest) == taken(made, 1)[0]
