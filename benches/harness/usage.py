"""CPU time, page faults and memory of this process and of all that it has started.

Worker processes that are still alive don't show in ``RUSAGE_CHILDREN``, so on
Linux their figures come from ``/proc``; elsewhere the total is not known.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform == "win32":

    def _own_faults() -> int | None:
        return None

else:
    import resource

    def _own_faults() -> int | None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


__all__ = ["Usage", "descendants", "measure_pss_mib", "measure_usage", "system_cpu_s"]


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
    """Add up this process, its descendants, and those that have ended and were waited for."""
    times = os.times()
    cpu_s: float | None = time.process_time() + times.children_user + times.children_system
    faults = _own_faults()
    for pid in descendants():
        used = _usage_of(pid)
        if used is None:
            return Usage(None, None)
        cpu_s = cpu_s + used[0] if cpu_s is not None else None
        faults = faults + used[1] if faults is not None else None
    return Usage(cpu_s, faults)


def descendants() -> list[int]:
    """Return the process ids of the live children, their children, and so on.

    Where ``/proc`` does not list them, only those that `multiprocessing` knows.
    """
    own = Path(f"/proc/{os.getpid()}/task")
    if not any(own.glob("*/children")):
        return [child.pid for child in multiprocessing.active_children() if child.pid]
    found: list[int] = []
    new = [os.getpid()]
    while new:
        new = [child for pid in new for child in _children(pid)]
        found += new
    return found


def _children(pid: int) -> list[int]:
    """Return a process' children; none if it has ended meanwhile."""
    children: list[int] = []
    with suppress(OSError):
        # A child is listed at the thread that started it.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return children


def measure_pss_mib() -> float | None:
    """Return the memory of this process and its descendants, shared pages shared out, in MiB.

    Source: ``smaps_rollup`` in proc_pid_smaps(5).
    """
    total = 0
    for pid in (os.getpid(), *descendants()):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            return None
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def _usage_of(pid: int | None) -> tuple[float, int] | None:
    """Return CPU seconds and minor faults of one process, None where unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Source: proc_pid_stat(5). The name in parentheses may hold spaces; after it come fields 3
    # (state), ..., 10 (minflt), ..., 14 to 17 (utime, stime, and those of waited-for children).
    fields = text.rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
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
