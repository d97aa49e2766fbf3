"""The random state that torch's samplers draw from."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BATCHING",
    "DRAWING",
    "SEEDED",
    "SEQUENTIAL",
    "draw_base_seed",
    "generator_state",
    "new_generator",
    "set_generator_state",
]

BATCHING: tuple[Any, ...] = (BatchSampler,)  # have a ``sampler``
DRAWING: tuple[Any, ...] = (  # have a ``generator``
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
SEEDED: tuple[Any, ...] = (RandomSampler,)  # without a generator, draw one number for it
SEQUENTIAL: tuple[Any, ...] = (SequentialSampler,)


def draw_base_seed(generator: Any) -> int:
    """Draw one 64-bit number, as DataLoader does for its workers before the sampler draws.

    Drawn also where nobody uses it: the sampler's seed follows it in the random state.
    Source: ``_BaseDataLoaderIter.__init__`` in torch/utils/data/dataloader.py.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def new_generator(seed: int) -> Any:
    """Return a generator for samplers that draws what ``seed`` decides."""
    return torch.Generator().manual_seed(seed)


def generator_state(generator: Any) -> bytes:
    """Return the state of a generator; of the process's default one for None."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return state.numpy().tobytes()


def set_generator_state(generator: Any, state: bytes) -> None:
    """Give a generator a state that `generator_state` returned.

    Raises:
        RuntimeError: It is of another kind of generator.
    """
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
