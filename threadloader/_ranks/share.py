"""Which rank this process is, and what a rank loads of each global batch.

A global batch is what all ranks together load for one step.  It consists of *units*: the indices
that a sampler yields, or the batches of a user's batch sampler.  A rank's share of it is
consecutive, so the order of all units is the same for any number of ranks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Share", "Uneven", "named_ranks", "no_answer", "rank_and_world"]

_MOST_NAMED = 8  # ranks, in a message

Uneven: TypeAlias = Literal["drop", "pad", "short"]


class Share(NamedTuple):
    """The share of one rank."""

    rank: int
    world_size: int  # ranks that share the data
    # The last global batch: "drop" leaves out what can't be divided, "pad" adds units that were in
    # the epoch before, "short" gives some ranks one unit less, or none.
    uneven: Uneven

    def of(self, units: int, size: int) -> range:
        """Return which units of a global batch are this rank's, from 0.

        Args:
            units: In the global batch; fewer than it has room for only in the last one.
            size: Units that each rank has of a whole one, at least 1.

        Returns:
            Empty if there are none.  With ``"pad"`` it may go on beyond ``units``.
        """
        rank, world_size = self.rank, self.world_size
        if units >= size * world_size:
            return range(rank * size, (rank + 1) * size)
        each, more = divmod(units, world_size)
        if self.uneven == "short":
            start = rank * each + min(rank, more)
            return range(start, start + each + (rank < more))
        if self.uneven == "pad" and more:
            each += 1
        return range(rank * each, (rank + 1) * each)

    def steps(self, units: int, size: int, *, drop_last: bool) -> int:
        """Return how many batches this rank has of so many units.

        Args:
            units: Of all ranks.
            size: As in `of`.
            drop_last: Whether a last global batch that is not whole is left out.
        """
        whole, rest = divmod(units, size * self.world_size)
        return whole + bool(rest and not drop_last and self.of(rest, size))


def named_ranks(ranks: Sequence[int]) -> str:
    """Return the subject of a message about some ranks: "rank 1", or "ranks 1, 2"."""
    more = f" and {len(ranks) - _MOST_NAMED} more" * (len(ranks) > _MOST_NAMED)
    names = ", ".join(map(str, ranks[:_MOST_NAMED])) + more
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def no_answer(error: BaseException) -> str:
    """Return what it means for the ranks that their store raised an error."""
    return (
        "ranks can't agree any more, as their store does not answer (as a rule it is in the "
        f"process of rank 0, which may have ended): {type(error).__name__}: {error}"
    )


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
