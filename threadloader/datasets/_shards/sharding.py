"""Which part is read, by a worker of a rank; and what its copies of a dataset share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from threadloader._ranks.share import Part, rank_and_world
from threadloader._threads.worker_info import get_worker_info


class Shared(SimpleNamespace):
    """The state that all copies of a dataset in one process share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


def ranks_here() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks.

    Raises:
        ValueError: The environment tells one of them only, or a rank that is not below the number.
    """
    rank, world = rank_and_world()
    check_rank(rank, world)
    return rank, world


def check_rank(rank: int, world: int) -> None:
    """Refuse a rank, or the number of a part, that is not below the number of all.

    Raises:
        ValueError: It is not.
    """
    if not 0 <= rank < world:
        msg = f"rank={rank} is none of world_size={world}"
        raise ValueError(msg)


def part_here() -> Part:
    """Return the part that the calling thread reads: that of a worker of a rank."""
    info: Any = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return Part.of(*ranks_here(), worker, workers, 0)
