"""Which of the processes that train together this one is."""

from __future__ import annotations

import os

from threadloader import _torch

__all__ = ["rank_and_world"]


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, at least 1.

    They are those of torch.distributed, where it is set up; else those in the environment's
    ``RANK`` and ``WORLD_SIZE``, as torchrun and others set them; else 0 and 1.

    Raises:
        ValueError: Only one of the two variables is set, or they are no numbers.
    """
    return _torch.rank_and_world() or _environment()


def _environment() -> tuple[int, int]:
    told = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if told == [None, None]:
        return 0, 1
    try:
        rank, world = map(int, filter(None, told))
    except ValueError:
        msg = (
            f"the environment has RANK={told[0]} and WORLD_SIZE={told[1]}: set both, to numbers, "
            "or neither, or give rank= and world_size="
        )
        raise ValueError(msg) from None
    return rank, world
