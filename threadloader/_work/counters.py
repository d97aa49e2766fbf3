"""Counters: one set for each thread, which nobody else writes.

A counter that all threads write would be the most contended object of a free-threaded process.  So
each worker has its own; `Stats` adds them up when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from time import thread_time
from typing import Any

from threadloader._threads.run_delay import run_delay

__all__ = ["COUNTED", "Counters"]

TIMING_SECONDS = 0.02  # from one job of a thread that is measured to the next
# What is added up, of one thread.  Unlocked: each is one attribute load, atomic on both builds, and
# at most one ticket old.
COUNTED = attrgetter(
    "tickets",
    "samples",
    "fetch_seconds",
    "write_seconds",
    "collate_seconds",
    "timed_seconds",
    "timed_cpu_seconds",
    "timed_delay_seconds",
)


@dataclass(slots=True, eq=False)
class Counters:
    """The work of one thread.  That thread alone writes it; any thread reads it."""

    tickets: int = 0
    samples: int = 0
    fetch_seconds: float = 0.0  # in the dataset
    collate_seconds: float = 0.0  # in the collate function
    write_seconds: float = 0.0  # writing samples into their rows
    # Of fetching and writing: that of the jobs that were measured, and its CPU time.
    timed_seconds: float = 0.0
    timed_cpu_seconds: float = 0.0
    timed_delay_seconds: float = 0.0  # of the same: in which the thread waited for a core
    # What is not added up.
    timing_due: float = 0.0  # on the clock: the next job after it is measured
    thread: int = 0  # its identifier
    number: int | None = None  # of the worker; None for the calling thread
    task: Any = None  # the ticket or batch that it is in, or the name of a function; None for none
    task_began: float = 0.0  # on the clock

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the thread made samples and batches."""
        return self.fetch_seconds + self.write_seconds + self.collate_seconds

    def begin_timing(self) -> tuple[float, float]:
        """Return what `timed` takes, for a job that begins; call it if ``timing_due`` has come.

        To ask for CPU time takes half a microsecond, and for the wait for a core some 10 us, which
        short jobs would notice.  So one job is measured, and then no other that begins in the next
        20 ms.  How long a job takes has no part in that choice, so the shares of CPU time and
        waiting in these jobs are those in all.
        """
        return run_delay(), thread_time()

    def timed(self, now: float, wall: float, begun: tuple[float, float]) -> None:
        """Count a job that was measured.

        Args:
            now: On the clock.
            wall: Seconds that it took.
            begun: As `begin_timing` returned it.
        """
        self.timed_cpu_seconds += thread_time() - begun[1]
        self.timed_delay_seconds += run_delay() - begun[0]
        self.timed_seconds += wall
        self.timing_due = now + TIMING_SECONDS
