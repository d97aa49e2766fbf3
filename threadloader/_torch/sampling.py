"""torch's samplers and the random state that they draw from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

__all__ = ["draw_base_seed", "make_batch_sampler", "make_sampler"]


def make_sampler(dataset: Sized, *, shuffle: bool, generator: Any) -> Iterable[Any]:
    """Return the sampler that DataLoader makes of ``shuffle``."""
    if shuffle:
        return RandomSampler(dataset, generator=generator)
    return SequentialSampler(dataset)


def make_batch_sampler(
    sampler: Iterable[Any], batch_size: int, *, drop_last: bool
) -> Iterable[list[Any]]:
    """Return the batch sampler that DataLoader makes."""
    return BatchSampler(sampler, batch_size, drop_last)


def draw_base_seed(generator: Any) -> int:
    """Draw one 64-bit number, as DataLoader does for its workers before the sampler draws.

    Drawn also where nobody uses it: the sampler's seed follows it in the random state.
    Source: ``_BaseDataLoaderIter.__init__`` in torch/utils/data/dataloader.py.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
