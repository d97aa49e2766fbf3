"""What one call of ``next()`` returns or raises."""

from __future__ import annotations

from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from threadloader._lifetime.dropping import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._epoch.feed import Receipt
    from threadloader._fetch.failure import Failure
    from threadloader._work.counters import Deliveries
    from threadloader._work.open_batch import OpenBatch
    from threadloader._work.progress import Progress
    from threadloader._work.stats import Stats

__all__ = ["CLOSED", "FORKED", "Delivery", "abandon", "deliveries_of", "moved"]

FORKED = (
    "this iterator was made before a fork and has no threads here; iter(loader) starts a new one"
)
CLOSED = (
    "this iterator was closed, by close() or, where one iterator at a time reads an iterable, by a "
    "later iter(); iter(loader) starts a new one"
)

# A function that returns the batch, once; the receipt of the batch; and the error in its place, or
# None.
Delivery: TypeAlias = "tuple[Callable[[], Any], Receipt, Failure | None]"


def deliveries_of(group: OpenBatch, receipts: Sequence[Receipt]) -> deque[Delivery]:
    """Return the deliveries of several batches that were made as one."""
    make = None
    deliveries: deque[Delivery] = deque()
    try:
        make = group.take()
        for number, receipt in enumerate(receipts):
            deliveries.append((partial(_take_part, group, make, number), receipt, None))
        return deliveries
    finally:
        group = receipts = make = deliveries = DROPPED  # this frame stays with an error


def moved(take: Callable[[], Any], move: Callable[[Any], Any], stats: Stats) -> Any:
    """Return a batch on a device without streams.

    Args:
        take: Returns the batch.
        move: Moves it.
        stats: Counts the time of that.
    """
    batch, started = take(), perf_counter()
    try:
        return move(batch)
    finally:
        stats.copied(perf_counter() - started)
        take = batch = DROPPED  # an error keeps this frame


def _take_part(group: OpenBatch, make: Callable[[int], Any], number: int) -> Any:
    """Return one batch of a group.  Its memory is the group's, which must live until then."""
    try:
        return make(number)
    finally:
        group = make = DROPPED  # noqa: F841  # the same


def abandon(progress: Progress, counted: Deliveries, signals: list[Callable[[], None]]) -> None:
    """End an epoch whose iterator was dropped; waits for nobody."""
    progress.cancel()
    counted.end()
    for signal in signals:
        signal()
