"""The random state that torch's samplers draw from."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = ["BATCHING", "DRAWING", "draw_base_seed", "new_generator"]

BATCHING: tuple[Any, ...] = (BatchSampler,)  # have a ``sampler``
DRAWING: tuple[Any, ...] = (  # have a ``generator``
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def draw_base_seed(generator: Any) -> int:
    """Draw one 64-bit number, as DataLoader does for its workers before the sampler draws.

    Drawn also where nobody uses it: the sampler's seed follows it in the random state.
    Source: ``_BaseDataLoaderIter.__init__`` in torch/utils/data/dataloader.py.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def new_generator(seed: int) -> Any:
    """Return a generator for samplers that draws what ``seed`` decides."""
    return torch.Generator().manual_seed(seed)
