"""CPU time, page faults and memory of this process and of all that it has started.

Worker processes that are still alive don't show in ``RUSAGE_CHILDREN``, so their figures come from
``/proc``: on another system than Linux the total is not known, and on Windows no bench runs.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Meter", "measure_pss_mib"]


class Meter:
    """Measures from here on: time, CPU time, page faults, and what others use meanwhile."""

    def __init__(self) -> None:
        self._usage, self._system = _measure_usage(), _system_cpu_s()
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds since it was made."""
        return time.perf_counter() - self._started

    def figures(self, samples: int, batches: int) -> dict[str, Any]:
        """Return the figures of an `Answer`, of so many samples and batches."""
        elapsed = self.seconds()
        used, system = _measure_usage(), _system_cpu_s()
        cpu, faults, others = None, None, None
        if used is not None and self._usage is not None:
            cpu = used.cpu_s - self._usage.cpu_s
            faults = used.minor_faults - self._usage.minor_faults
            if system is not None and self._system is not None:
                others = max(0.0, (system - self._system - cpu) / elapsed)
        return {
            "rate": samples / elapsed,
            "cpu_us_per_sample": None if cpu is None else cpu / samples * 1e6,
            "faults_per_batch": None if faults is None else faults / batches,
            "other_cores_busy": others,
        }


@dataclass(frozen=True, slots=True)
class _Usage:
    """What has been used since the processes started."""

    cpu_s: float  # user and system time
    minor_faults: int  # page faults served without reading


def _measure_usage() -> _Usage | None:
    """Add up this process, its descendants, and those that have ended and were waited for."""
    import resource  # not on Windows

    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = os.times()
    cpu_s = time.process_time() + times.children_user + times.children_system
    for pid in _descendants():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # Source: proc_pid_stat(5). The name in parentheses may hold spaces; after it come fields 3
        # (state), ..., 10 (minflt), ..., 14 to 17 (utime, stime, and those of waited-for children).
        fields = text.rpartition(")")[2].split()
        cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        faults += int(fields[7])
    return _Usage(cpu_s, faults)


def _descendants() -> list[int]:
    """Return the process ids of the live children, their children, and so on.

    Where ``/proc`` does not list them, only those that `multiprocessing` knows.
    """
    if not any(Path(f"/proc/{os.getpid()}/task").glob("*/children")):
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
    for pid in (os.getpid(), *_descendants()):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            return None
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def _system_cpu_s() -> float | None:
    """Return the CPU seconds that the whole machine has spent working."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    # Source: proc_stat(5): user nice system idle iowait irq softirq steal.
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK")
