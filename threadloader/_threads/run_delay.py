"""How long a thread has waited for a core, as the system counts it.

Two things make a job take longer than its CPU time: it waits for something (a disk, a network, a
lock), or for a core that others use.  Only the first says something about the data.
"""

from __future__ import annotations

__all__ = ["run_delay"]


def run_delay() -> float:
    """Return the seconds that the calling thread was ready to run and did not; 0 if unknown.

    Source: "/proc/<pid>/schedstat" in the kernel's Documentation/scheduler/sched-stats.rst.
    """
    try:
        # Not by `pathlib`: it is called between two jobs.
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel that does not count it
        return 0.0
