"""Which rank this process is, and what a rank loads: of each global batch, or of an iterable.

A global batch is what all ranks together load for one step.  It consists of *units*: the indices
that a sampler yields, or the batches of a user's batch sampler.  A rank's share of it is
consecutive, so the order of all units is the same for any number of ranks.

An iterable dataset is asked for a part by each replica:

    rank r of R, worker w of W -> part w * R + r of R * W -> ``dataset.shard(part, R * W, epoch)``

So the parts of a rank together are its share, with any number of workers, and ranks that deal out
files have as many as one another, to one file.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    told = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    joined = _torch.rank_and_world()
    if joined is not None or told == [None, None]:
        return joined or (0, 1)
    try:
        rank, world = map(int, filter(None, told))
    except ValueError:
        msg = (
            f"the environment has RANK={told[0]} and WORLD_SIZE={told[1]}: set both, to numbers, "
            "or neither, or give rank= and world_size="
        )
        raise ValueError(msg) from None
    return rank, world


PROTOCOL = "shard(rank, world_size, epoch)"


class Part(NamedTuple):
    """What a dataset is asked for."""

    number: int  # from 0, below ``parts``
    parts: int  # of all workers of all ranks
    epoch: int

    @classmethod
    def of(cls, rank: int, world_size: int, worker: int, workers: int, epoch: int) -> Part:
        """Return the part of a worker of a rank.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= rank < world_size:
            msg = f"rank={rank} is none of world_size={world_size}"
            raise ValueError(msg)
        return cls(worker * world_size + rank, workers * world_size, epoch)


def is_askable(dataset: Any) -> bool:
    """Whether a dataset can be asked for a part; Hugging Face's ``shard`` is something else."""
    shard = getattr(dataset, "shard", None)
    if not callable(shard):
        return False
    try:
        parameters = list(inspect.signature(shard).parameters)
    except (TypeError, ValueError):  # of a class written in C
        return False
    return parameters[:3] == ["rank", "world_size", "epoch"]


def has_share(dataset: Any) -> bool:
    """Whether a dataset of Hugging Face was shared out by its own ``split_dataset_by_node``."""
    told = getattr(dataset, "_distributed", None)
    return all(type(getattr(told, name, None)) is int for name in ("rank", "world_size"))


def check_askable(dataset: Any) -> None:
    """Refuse a dataset that can't be shared out.

    Raises:
        TypeError: It can't be asked for a part, and has no share.
    """
    if is_askable(dataset) or has_share(dataset):
        return
    has = "another shard()" if callable(getattr(dataset, "shard", None)) else "none"
    msg = (
        f"shard needs an iterable dataset with a method {PROTOCOL}, parameters of these names, "
        "which returns a share of it, or None if it shares itself out; and "
        f"{type(dataset).__name__} has {has}"
    )
    if type(dataset).__module__.partition(".")[0] == "datasets":
        msg += (
            ".  Give the loader split_dataset_by_node(dataset, rank, world_size), of "
            "datasets.distributed"
        )
    raise TypeError(msg)


def asked(dataset: Any, part: Part) -> Any:
    """Ask a dataset for a part.

    Returns:
        What to iterate over; None if the dataset shares itself out, by ranks and workers.

    Raises:
        TypeError: It can't be asked.
    """
    check_askable(dataset)
    if not is_askable(dataset):
        return None
    return dataset.shard(part.number, part.parts, part.epoch)
