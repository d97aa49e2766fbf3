"""Counters: one set for each thread, added up when they are read.

A counter that all threads write would be the most contended object of a free-threaded process.  So
each worker has its own, and nobody else writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

__all__ = ["Counters", "Stats", "Totals"]


@dataclass(slots=True, eq=False)
class Counters:
    """The work of one thread.  That thread alone writes it; any thread reads it."""

    tickets: int = 0
    samples: int = 0
    fetch_seconds: float = 0.0  # in the dataset
    collate_seconds: float = 0.0  # writing rows, and in the collate function

    def add(self, other: Counters) -> None:
        """Add another thread's counters to these."""
        # Unlocked reads of another thread's numbers: each is one attribute load, atomic on both
        # builds, and at most one ticket old.
        self.tickets += other.tickets
        self.samples += other.samples
        self.fetch_seconds += other.fetch_seconds
        self.collate_seconds += other.collate_seconds


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all threads and epochs of a loader; stale as soon as returned."""

    batches: int  # delivered, errors included
    tickets: int
    samples: int  # fetched
    fetch_seconds: float  # of all workers together, in the dataset
    collate_seconds: float  # of all workers together, writing rows and in the collate function
    wait_seconds: float  # in which the consumer waited for batches


class Stats:
    """Hands out counters to worker threads and adds them up.

    Invariants, whenever ``_lock`` is not held:
        1. Each open set of counters belongs to one thread that has not called `retire`.

    Threads:
        open, total: shared.
        retire: the worker that owns the counters, once, as its last act.
        delivered: consumer.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # All below: guarded by _lock.
        self._open: list[Counters] = []
        self._retired = Counters()
        self._batches = 0
        self._wait_seconds = 0.0

    def open(self) -> Counters:
        """Return counters for a new thread."""
        counters = Counters()
        with self._lock:
            self._open.append(counters)
        return counters

    def retire(self, counters: Counters) -> None:
        """Fold the counters of a thread that ends into the totals."""
        with self._lock:
            self._open.remove(counters)
            self._retired.add(counters)

    def delivered(self, wait_seconds: float) -> None:
        """Count a batch, and the seconds that the consumer waited for it."""
        with self._lock:
            self._batches += 1
            self._wait_seconds += wait_seconds

    def total(self) -> Totals:
        """Add up the counters of all threads, also of those that have ended."""
        total = Counters()
        with self._lock:
            for counters in (self._retired, *self._open):
                total.add(counters)
            return Totals(
                batches=self._batches,
                tickets=total.tickets,
                samples=total.samples,
                fetch_seconds=total.fetch_seconds,
                collate_seconds=total.collate_seconds,
                wait_seconds=self._wait_seconds,
            )
