"""The part of an iterable dataset that one replica reads: the dataset is asked for it.

    rank r of R, worker w of W -> part w * R + r of R * W -> ``dataset.shard(part, R * W, epoch)``

So the parts of a rank together are its share, with any number of workers, and ranks that deal out
files have as many as one another, to one file.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

__all__ = ["PROTOCOL", "Part", "asked", "check_askable", "has_share", "is_askable"]

PROTOCOL = "shard(rank, world_size, epoch)"


class Part(NamedTuple):
    """What a dataset is asked for."""

    number: int  # from 0, below ``parts``
    parts: int  # of all workers of all ranks
    epoch: int

    @classmethod
    def of(cls, rank: int, world_size: int, worker: int, workers: int, epoch: int) -> Part:
        """Return the part of a worker of a rank."""
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
