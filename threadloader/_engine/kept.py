"""What lasts from one epoch of a loader to the next, beside its threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._engine.skipped import SkippedSamples
    from threadloader._order.tickets import TicketSize
    from threadloader._report.stats import Stats
    from threadloader._threads.tuner import Tuner


@dataclass(slots=True)
class Kept:
    """What the epochs of a loader have in common: what was counted, and what was found by it.

    Threads:
        all: shared; an epoch goes on with the collation that it began with.
    """

    stats: Stats
    skipped: SkippedSamples
    tuner: Tuner
    ticket_size: TicketSize
    collation: Collation  # another one where the function or the memory was changed
