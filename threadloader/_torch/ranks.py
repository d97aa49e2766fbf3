"""Which of the processes this is that train together."""

from __future__ import annotations

import torch.distributed

__all__ = ["rank_and_world"]


def rank_and_world() -> tuple[int, int] | None:
    """Return the rank and the number of ranks; None where `torch.distributed` was not set up."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()
