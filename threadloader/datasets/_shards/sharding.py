"""Which replica reads: a worker of a rank, or one of the parts that a loader asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from threadloader._ranks.share import rank_and_world
from threadloader._threads.worker_info import get_worker_info

__all__ = ["Replica", "part_of_all", "this_replica"]


class Replica(NamedTuple):
    """A worker of a rank, which reads its share."""

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


def part_of_all(rank: int, world_size: int) -> Replica:
    """Return the replica that reads one part of several, and looks at no worker.

    Raises:
        ValueError: There is no such part.
    """
    if not 0 <= rank < world_size:
        msg = f"rank={rank} is none of world_size={world_size}"
        raise ValueError(msg)
    return Replica(rank, world_size, 0, 1)
