"""The random state that torch's samplers draw from."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["draw_base_seed", "new_generator", "reseed"]


def draw_base_seed(generator: Any) -> int:
    """Draw one 64-bit number, as DataLoader does for its workers before the sampler draws.

    Drawn also where nobody uses it: the sampler's seed follows it in the random state.
    Source: ``_BaseDataLoaderIter.__init__`` in torch/utils/data/dataloader.py.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def new_generator() -> Any:
    """Return a generator for samplers."""
    return torch.Generator()


def reseed(generator: Any, seed: int) -> None:
    """Let ``generator`` draw what ``seed`` decides, from 0 to 2**63 - 1."""
    generator.manual_seed(seed)
