"""Sharding: which shards one replica of a stream reads, and in which order.

Each rank and each worker takes every n-th shard.  If all ranks know one seed, shards are shuffled
before that, so that a rank reads other shards in each epoch.  If not, shards are shuffled after
that: ranks that shuffle differently would read some shards twice and others never.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from threadloader._ranks.rank import rank_and_world
from threadloader._threads.worker_info import get_worker_info, pass_seed_here

__all__ = ["Replica", "check_shards", "part_of_all", "pass_seed", "shards_of", "this_replica"]


class Replica(NamedTuple):
    """A worker of a rank, which reads its share of the shards."""

    rank: int
    world: int
    worker: int
    workers: int

    @property
    def number(self) -> int:
        """Its number among the workers of all ranks, from 0."""
        return self.rank * self.workers + self.worker

    @property
    def replicas(self) -> int:
        """The workers of all ranks."""
        return self.world * self.workers


def this_replica(rank: int | None = None, world: int | None = None) -> Replica:
    """Return the replica that the calling thread reads.

    Args:
        rank: Given by the user; None asks torch.distributed, then the environment's ``RANK`` and
            ``WORLD_SIZE``.
        world: Number of ranks; given or found in the same way.

    Raises:
        ValueError: One is given without the other, or ``rank`` is not below ``world``.
    """
    if (rank is None) != (world is None):
        msg = f"rank={rank} and world_size={world}: give both or neither"
        raise ValueError(msg)
    if rank is None or world is None:
        rank, world = rank_and_world()
    if not 0 <= rank < world:
        msg = f"rank={rank} is none of world_size={world}"
        raise ValueError(msg)
    info: Any = get_worker_info()
    if info is None:
        return Replica(rank, world, 0, 1)
    return Replica(rank, world, info.id, info.num_workers)


def check_shards(shards: int, world: int) -> None:
    """Refuse to share out fewer shards than there are ranks.

    Args:
        shards: Number of all shards.
        world: Number of ranks.
    """
    if shards < world:
        msg = f"{shards} shards for {world} ranks: each needs one of its own"
        raise ValueError(msg)


def part_of_all(rank: int, world_size: int) -> Replica:
    """Return the replica that reads one part of several, and looks at no worker.

    Raises:
        ValueError: There is no such part.
    """
    if not 0 <= rank < world_size:
        msg = f"rank={rank} is none of world_size={world_size}"
        raise ValueError(msg)
    return Replica(rank, world_size, 0, 1)


def pass_seed() -> int:
    """Return a seed of this epoch that all workers of a loader share.

    Without a `ThreadLoader` the seed follows from the worker's seed, or is drawn from `random`.
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
        replica: Reads the shards.
        shards: Number of all shards.
        shuffle: Shuffles the shards; the same for all workers of a rank.
        common: Whether ``shuffle`` is the same for all ranks, too.

    """
    order = list(range(shards))
    if shuffle is not None and common:
        shuffle.shuffle(order)
    order = order[replica.rank :: replica.world]
    if shuffle is not None and not common:
        shuffle.shuffle(order)
    return order[replica.worker :: replica.workers]
