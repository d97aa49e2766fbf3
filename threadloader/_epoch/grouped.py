"""Several small batches that were made as one, and are returned one by one.

Handing a batch over costs as much as gathering some thousand short rows; so small batches of an
array dataset are planned and written together, and copied out one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._work.open_batch import OpenBatch

__all__ = ["GroupedBatches"]


class GroupedBatches:
    """The batches of one pack.

    Args:
        batch: All of them, done without a failure.
        make: Makes one, of its number.

    Threads:
        all: consumer.
    """

    def __init__(self, batch: OpenBatch, make: Callable[[int], Any]) -> None:
        self.batch = batch
        self.make = make
        self._next = 0

    def next_number(self) -> tuple[int, bool]:
        """Return the number of the batch that is returned next, and whether it is the last."""
        number, self._next = self._next, self._next + 1
        return number, self._next == self.batch.plan.batches
