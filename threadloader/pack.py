"""Several small batches that were made as one, and are returned one by one.

Handing a batch over costs as much as gathering some thousand short rows; so small batches of an
array dataset are planned, written and taken together, as views of one slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader.work import OpenBatch

__all__ = ["Pack"]


class Pack:
    """The batches of one pack.

    Args:
        batch: All of them, done without a failure.
        parts: Makes them, one after the other.

    Threads:
        all: consumer.
    """

    def __init__(self, batch: OpenBatch, parts: Iterator[Any]) -> None:
        self.batch = batch
        self.returned = 0
        self._parts = parts

    def take(self) -> Any:
        """Return the next batch."""
        part = next(self._parts)
        self.returned += 1
        return part

    @property
    def empty(self) -> bool:
        """Whether all were returned."""
        return self.returned == self.batch.plan.batches
