"""Warnings of iterable datasets that give no samples where they should.

Either a replica or a rank has no share of the data, or an iterator was read to its end before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._ranks.share import named_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Shares", "empty_ranks", "used_up"]

MOST_NAMED = 8  # workers


class Shares:
    """Which replicas of an iterable dataset have given samples in an epoch.

    A replica that gives none has a thread for nothing, and the data is probably not shared out as
    it was meant to be.  If no other replica has a second batch, there is too little data to say so.

    Args:
        replicas: The number of replicas.

    Threads:
        all: consumer.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._unknown = set(range(replicas))
        self._empty: list[int] = []
        self._enough = False  # whether a replica has given a second batch

    def came(self, replica: int, number: int, *, exhausted: bool) -> None:
        """Note a batch of a replica.

        Args:
            replica: The number of the replica.
            number: The number of the batch in its replica, from 0.
            exhausted: Whether there is no such batch, since the replica has come to its end.
        """
        if exhausted and number == 0 and replica in self._unknown:
            self._empty.append(replica)
        self._unknown.discard(replica)
        self._enough |= number > 0 and not exhausted

    def warning(self) -> str | None:
        """Return the text of a warning of replicas without samples, once; None if it is not due."""
        if self._unknown or not (self._empty and self._enough):
            return None
        empty, self._empty = sorted(self._empty), []
        named = ", ".join(map(str, empty[:MOST_NAMED])) + ", ..." * (len(empty) > MOST_NAMED)
        workers = "worker" if len(empty) == 1 else "workers"
        return (
            "replicas of the iterable dataset gave nothing to load while others did: "
            f"{len(empty)} of {self._replicas} ({workers} {named}).  Each should give its own "
            "share (see get_worker_info); where there are fewer shards than workers, use fewer "
            "workers, or let one thread read and all others apply transform=f"
        )


def used_up(dataset: Any) -> str:
    """Return the text of a warning of an iterator that was read to its end before."""
    return (
        f"nothing was left to load: the {type(dataset).__name__} was read before, and an iterator "
        "can be read once.  Give the loader an object whose __iter__ starts afresh, or make a new "
        "iterator and loader for each epoch"
    )


def empty_ranks(ranks: Sequence[int], world_size: int) -> str:
    """Return the text of a warning of ranks that have no batch in an epoch.

    Args:
        ranks: These ranks.
        world_size: How many there are in all.
    """
    return (
        f"{named_ranks(ranks)} of {world_size} had no batch in this epoch: the dataset's "
        "shard() gave nothing there, or less than a batch.  Where files are shared out, have "
        "several for each worker of each rank"
    )
