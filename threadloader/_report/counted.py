"""What a loader has counted: all its epochs together, the last epoch, and the last seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadloader._batch.ring import RingStatistics
    from threadloader._report.interval import Interval
    from threadloader._work.snapshot import Totals

__all__ = ["Counted"]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a loader has done so far; stale as soon as returned."""

    workers: int  # threads of an epoch, or as many as run; 0 is the calling thread
    running: int  # of them that may run samples at once; found by trying, see docs/workers.md
    window: int  # batches that are planned ahead at the most, while they are as large as now
    planned: int  # batches that are planned now, and not delivered
    done: int  # of them that are done
    totals: Totals  # all epochs together
    epoch: Interval  # since the last ``iter()``
    recent: Interval  # the last five seconds or so of it, or the last batches if those are slower
    epochs: int  # that were begun
    slots: RingStatistics
    skipped_count: int  # samples left out
