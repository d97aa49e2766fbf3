"""Which shards one replica of a stream reads, and in which order.

Ranks and workers each take every n-th shard.  Where all ranks know one seed, the shards are
shuffled before that, so that a rank sees others in each epoch; where they don't, after: ranks
that shuffle differently would else read some shards twice and others never.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

from threadloader import _torch
from threadloader._threads.worker_info import get_worker_info, pass_seed_here

__all__ = ["Replica", "pass_seed", "shards_of", "this_replica"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One of those that share the shards."""

    rank: int
    world: int
    worker: int
    workers: int


def this_replica(rank: int | None = None, world: int | None = None) -> Replica:
    """Return which replica the calling thread reads.

    Args:
        rank: As the user gave it; else torch.distributed is asked, then the environment's
            ``RANK`` and ``WORLD_SIZE``.
        world: Number of ranks, the same.

    Raises:
        ValueError: One is given without the other, or the rank is none of them.
    """
    if (rank is None) != (world is None):
        msg = f"rank={rank} and world_size={world}: give both or neither"
        raise ValueError(msg)
    if rank is None or world is None:
        rank, world = _torch.rank_and_world() or _environment()
    if not 0 <= rank < world:
        msg = f"rank={rank} is none of world_size={world}"
        raise ValueError(msg)
    info: Any = get_worker_info()
    if info is None:
        return Replica(rank, world, 0, 1)
    return Replica(rank, world, info.id, info.num_workers)


def pass_seed() -> int:
    """Return a seed that all workers of a loader have in common for this epoch.

    Without a `ThreadLoader` it follows from the worker's seed, or is drawn from `random`.
    """
    seed = pass_seed_here()
    if seed is not None:
        return seed
    info: Any = get_worker_info()
    if info is None:
        return random.getrandbits(62)
    return int(info.seed) - int(info.id)


def shards_of(
    replica: Replica, shards: int, shuffle: random.Random | None, *, common: bool
) -> list[int]:
    """Return the numbers of the shards that a replica reads, in order.

    Args:
        replica: Which.
        shards: How many there are.
        shuffle: Shuffles them; the same for all workers of a rank.
        common: Whether it is the same for all ranks, too.

    Raises:
        ValueError: There are fewer shards than ranks.
    """
    if shards < replica.world:
        msg = f"{shards} shards for {replica.world} ranks: each needs one of its own"
        raise ValueError(msg)
    order = list(range(shards))
    if shuffle is not None and common:
        shuffle.shuffle(order)
    order = order[replica.rank :: replica.world]
    if shuffle is not None and not common:
        shuffle.shuffle(order)
    return order[replica.worker :: replica.workers]


def _environment() -> tuple[int, int]:
    """Return what torchrun and others tell the processes that they start.

    Raises:
        ValueError: They tell one of two, or no numbers.
    """
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
