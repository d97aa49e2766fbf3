"""CPU time and page faults of this process and of its worker processes.

Worker processes that are still alive don't show in ``RUSAGE_CHILDREN``, so on
Linux their figures come from ``/proc``; elsewhere the total is not known.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if sys.platform == "win32":

    def _own_faults() -> int | None:
        return None

else:
    import resource

    def _own_faults() -> int | None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


__all__ = ["Usage", "measure_usage", "system_cpu_s"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What has been used since the processes started.

    Args:
        cpu_s: User and system time in seconds, None where it is not known.
        minor_faults: Page faults served without reading, None likewise.
    """

    cpu_s: float | None
    minor_faults: int | None


def measure_usage() -> Usage:
    """Add up this process and its live `multiprocessing` children."""
    cpu_s: float | None = time.process_time()
    faults = _own_faults()
    for child in multiprocessing.active_children():
        used = _usage_of(child.pid)
        if used is None:
            return Usage(None, None)
        cpu_s = cpu_s + used[0] if cpu_s is not None else None
        faults = faults + used[1] if faults is not None else None
    return Usage(cpu_s, faults)


def _usage_of(pid: int | None) -> tuple[float, int] | None:
    """Return CPU seconds and minor faults of one process, None where unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Source: proc_pid_stat(5). The name in parentheses may hold spaces; after it
    # come fields 3 (state), ..., 10 (minflt), ..., 14 (utime), 15 (stime).
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[7])


def system_cpu_s() -> float | None:
    """Return the CPU seconds that the whole machine has spent working."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    # Source: proc_stat(5): user nice system idle iowait irq softirq steal.
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK")
