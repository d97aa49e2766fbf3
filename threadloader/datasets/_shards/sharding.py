"""Streams that are shared out: which part is read, in which epoch, and what copies share."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Self

from threadloader._authors import IterableDataset, Part, check_rank, part_here


class Shared(SimpleNamespace):
    """The state that all copies of a dataset in one process share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


class SharedStream(IterableDataset[Any]):
    """A stream of which each replica reads a part, in an order that depends on the epoch.

    Args:
        shared: What all copies of the stream share.

    Raises:
        ValueError: The environment's ranks are none.
    """

    def __init__(self, **shared: Any) -> None:
        part_here()  # raises at once what the first epoch would
        # No epoch until `set_epoch` is called.
        self._shared = Shared(epoch=None, **shared)
        self._part: Part | None = None  # that was asked for, see `shard`

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order together with the seed."""
        self._shared.epoch = epoch

    def shard(self, rank: int, world_size: int, epoch: int) -> Self | None:
        """Return a part of the stream.

        A `ThreadLoader` with ``shard=`` calls it.  Without `set_epoch`, ``epoch`` decides the order
        together with ``seed``.

        Args:
            rank: Of the part.
            world_size: Number of parts.
            epoch: Its number, from 0.

        Raises:
            ValueError: There is no such part.
        """
        check_rank(rank, world_size)
        twin = copy.copy(self)
        twin._part = Part(rank, world_size, epoch)  # noqa: SLF001  # a copy of this
        return twin

    def _part_here(self) -> Part:
        """Return the part that is read next, with the epoch that decides its order."""
        part, told = self._part or part_here(), self._shared.epoch
        return part if told is None else part._replace(epoch=told)
