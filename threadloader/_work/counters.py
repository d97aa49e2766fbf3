"""Counters: one set for each thread, which nobody else writes.

A counter that all threads write would be the most contended object of a free-threaded process.  So
each worker has its own; `Stats` adds them up when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from threadloader._threads.concurrency import gil_is_enabled
from threadloader._threads.run_delay import run_delay

__all__ = ["COUNTED", "Counters", "JobTiming"]

TIMING_SECONDS = 0.02  # from one job of a thread that is measured to the next, in the mean
GOLDEN = 0.618034  # its multiples, without their whole parts, fill the numbers from 0 to 1 evenly
GIVEN_AWAY_SECONDS = 1e-3  # asking for the wait takes 20 us, if nobody takes the GIL meanwhile
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
    "watched_seconds",
    "watched_delay_seconds",
    "first_use_seconds",
)


class JobTiming(NamedTuple):
    """What is known as a job begins that is measured; None for what is not asked."""

    asked: float  # when ``delay`` was about to be asked for, on the clock
    delay: float | None  # seconds in which the thread waited for a core, so far
    cpu: float | None  # its CPU time, in seconds
    began: float  # on the clock


@dataclass(slots=True, eq=False)
class Counters:
    """The work of one thread.  That thread alone writes it; any thread reads it."""

    tickets: int = 0
    samples: int = 0
    fetch_seconds: float = 0.0  # in the dataset
    collate_seconds: float = 0.0  # in the collate function
    write_seconds: float = 0.0  # writing samples into their rows
    # Of fetching and writing: that of the jobs whose CPU time was measured, and that.
    timed_seconds: float = 0.0
    timed_cpu_seconds: float = 0.0
    # The same of the jobs whose wait for a core was measured, with the measuring; and that.
    watched_seconds: float = 0.0
    watched_delay_seconds: float = 0.0
    first_use_seconds: float = 0.0  # in samples that loaded data for all workers, on first use
    # What is not added up.
    timing_due: float = 0.0  # on the clock: the next job after it is measured
    measured: int = 0  # jobs
    watches: bool = True  # whether the next job that is measured is asked for its wait
    thread: int = 0  # its identifier
    number: int | None = None  # of the worker; None for the calling thread
    task: Any = None  # the ticket or batch that it is in, or the name of a function; None for none
    task_began: float = 0.0  # on the clock

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the thread made samples and batches."""
        return self.fetch_seconds + self.write_seconds + self.collate_seconds

    def begin_timing(self) -> JobTiming:
        """Return what `timed` takes, for a job that begins; call it if ``timing_due`` has come.

        To ask for CPU time takes half a microsecond, and for the wait for a core some 10 us, which
        short jobs would notice.  So one job is measured, and then no other that begins in the next
        20 ms or so.  How long a job takes has no part in that choice, so the shares of CPU time and
        waiting in these jobs are those in all.

        To ask for the wait reads a file, and gives the GIL away for that.  Where threads compute it
        comes back 5 ms later, and stays for 5 ms, so a short job waits for it longer than ever, or
        never.  If so, this job is asked for its wait alone, and the next one for its CPU time.
        """
        asked, watches = perf_counter(), self.watches
        delay = run_delay() if watches else None
        cpu, began = thread_time(), perf_counter()
        taken = watches and began - asked > GIVEN_AWAY_SECONDS and gil_is_enabled()
        self.watches = not taken
        return JobTiming(asked, delay, None if taken and self.measured else cpu, began)

    def timed(self, now: float, begun: JobTiming) -> None:
        """Count a job that was measured.

        Args:
            now: When it ended, on the clock.
            begun: As `begin_timing` returned it.
        """
        if begun.cpu is not None:
            self.timed_cpu_seconds += thread_time() - begun.cpu
            self.timed_seconds += now - begun.began
        if begun.delay is not None:
            self.watched_delay_seconds += run_delay() - begun.delay
            self.watched_seconds += perf_counter() - begun.asked
        self.measured += 1
        # Not evenly: threads that take turns do so every 5 ms.
        self.timing_due = now + TIMING_SECONDS * (0.5 + GOLDEN * self.measured % 1.0)
