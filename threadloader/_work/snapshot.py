"""A snapshot: all that a loader has counted up to a moment, summed over its threads and epochs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Reading", "Snapshot", "Span", "Totals"]

_NOTHING = (0,) * 10  # an epoch without deliveries


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all threads and epochs of a loader; stale as soon as returned."""

    batches: int  # delivered, errors included
    tickets: int
    samples: int  # fetched
    fetch_seconds: float  # of all workers together, in the dataset
    collate_seconds: float  # of all workers together, writing rows and in the collate function
    wait_seconds: float  # in which the consumer waited for workers
    write_seconds: float  # the part of ``collate_seconds`` for writing rows
    copy_seconds: float  # in which batches were given to a device, by the copier or the consumer
    inline_seconds: float  # of fetching, writing and collating: in the calling thread
    loading_seconds: float  # of the consumer, in ``iter()`` and ``next()``
    nbytes: int  # bytes of the batches delivered, as far as that is known


class Snapshot(NamedTuple):
    """All that a loader has counted up to a moment; two of them make an interval."""

    at: float  # on the clock: seconds of `perf_counter`
    epochs: int  # that were begun
    # At this moment:
    running: int  # threads that may run samples at once; 0: the calling thread makes the batches
    planned: int  # batches that are planned, and not delivered
    done: int  # of them that are done
    # Of all epochs together, as `Deliveries`:
    batches: int  # delivered, errors included
    nbytes: int  # bytes of them, as far as that is known
    loading_seconds: float  # of the consumers, in ``iter()`` and ``next()``
    wait_seconds: float  # of these: for workers
    late_seconds: float  # of these: after the batch was done
    copy_wait_seconds: float  # of ``wait_seconds``: for batches that were done and not copied
    rank_wait_seconds: float  # of ``loading_seconds``: for other ranks
    waits: int  # batches that workers had not done when they were asked for
    seen: int  # batches that were planned, added up over the snapshots of the history
    seen_done: int  # of them that were done
    # Of all threads together, as `COUNTED`:
    tickets: int
    samples: int  # fetched
    fetch_seconds: float
    write_seconds: float
    collate_seconds: float
    timed_seconds: float  # of fetching and writing: that of the jobs whose CPU time was measured
    timed_cpu_seconds: float  # the part of it on a processor
    watched_seconds: float  # the same: of the jobs whose wait for a core was measured
    watched_delay_seconds: float  # the part of it in which a thread was ready, without one (Linux)
    first_use_seconds: float  # in samples that loaded data for all workers, on first use
    # The rest:
    inline_seconds: float  # of fetching, writing and collating: in the calling thread
    copy_seconds: float
    process_seconds: float  # CPU time of the whole process
    read_nbytes: int  # bytes that the process read from storage, past the page cache


class Reading(NamedTuple):
    """What a snapshot is added up from: the numbers of each thread and epoch at a moment."""

    at: float
    epochs: int
    moment: tuple[int, int, int]
    delivered: list[tuple[float, ...]]  # of each epoch that counts by itself
    calling: list[tuple[float, ...]]  # of the calling thread, in each of these
    counted: list[tuple[float, ...]]  # of each other thread
    copy_seconds: float
    used: tuple[float, int]  # as `process_use`

    def snapshot(self) -> Snapshot:
        """Add it all up."""
        inline = sum(sum(one[2:5]) for one in self.calling)  # fetch, write and collate
        delivered = map(sum, zip(_NOTHING, *self.delivered, strict=True))
        counted = map(sum, zip(*self.calling, *self.counted, strict=True))
        parts = (self.at, self.epochs), self.moment, delivered, counted, (inline, self.copy_seconds)
        return Snapshot._make(chain(*parts, self.used))


class Span(NamedTuple):
    """A part of a loader's run."""

    before: Snapshot
    after: Snapshot
    in_next: Sequence[int]  # calls of ``next()``, by the bucket of their time
    first_seconds: float = 0.0  # of the consumer, up to its first batch, if that is in it
    start_seconds: float = 0.0  # of these: for starting threads
