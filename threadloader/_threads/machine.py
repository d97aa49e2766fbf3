"""What this process may use of the machine: cores, how long it waits for one, and memory.

``os.cpu_count()`` counts the machine's cores.  In a container, under ``taskset`` or as one of
several ranks on a host a process may use fewer, and threads beyond that only wait.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress


def default_threads() -> int:
    """Return the number of threads that a loader begins with by default, at least 1.

    Launchers (torchrun, Accelerate, DeepSpeed) set ``LOCAL_WORLD_SIZE`` to the number of ranks
    on this host; each takes its share of the cores.
    """
    return max(1, usable_cores() // _ranks_of_host())


def _ranks_of_host() -> int:
    """Return the number of ranks on this host, at least 1, as far as a launcher says it."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


def usable_cores(cgroups: str = "/sys/fs/cgroup", proc: str = "/proc") -> int:
    """Return the number of cores that this process may use: its affinity, or its cgroup's quota.

    Args:
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.

    Returns:
        Cores, at least 1; a fractional quota is rounded up.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cpu_quota(cgroups, proc)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota(cgroups: str = "/sys/fs/cgroup", proc: str = "/proc") -> float | None:
    """Return the smallest CPU quota, in cores, on the way from this process's cgroup up.

    Args:
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.

    Source: "cpu.max" in the kernel's Documentation/admin-guide/cgroup-v2.rst.  The first version of
    cgroups is not read: as many threads as cores begin there, and fewer stay if they are as fast.
    """
    quotas = [_group_quota(group) for group in _groups(cgroups, proc)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(cgroups: str, proc: str) -> list[str]:
    """Return the folders of this process's groups, from its own up; none where there are none.

    Args:
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.
    """
    try:
        lines = _read(f"{proc}/self/cgroup").splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in lines:
        if line.startswith(b"0::"):
            # In a container the path may be the host's, and missing here: its mount point is
            # then the container's own group, which the walk up reaches last.
            group = os.fsdecode(line[3:]).strip("/")
            while group:
                found.append(f"{cgroups}/{group}")
                group = group.rpartition("/")[0]
            found.append(cgroups)
    return found


def _group_quota(group: str) -> float | None:
    try:
        quota, period = _read(f"{group}/cpu.max").split()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such group or controller, or "max"
        return None


def free_memory(cgroups: str = "/sys/fs/cgroup", proc: str = "/proc") -> int | None:
    """Return the bytes that this process may still take without swapping; None if unknown.

    What the system caches of files it gives back when it is asked.

    Args:
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.

    Source: "memory.max" in the kernel's Documentation/admin-guide/cgroup-v2.rst.
    """
    free = [_group_memory(group) for group in _groups(cgroups, proc)]
    with suppress(OSError, ValueError):  # not Linux
        free.append(1024 * _numbers(f"{proc}/meminfo", b"MemAvailable:"))
    return min((each for each in free if each is not None), default=None)


def _group_memory(group: str) -> int | None:
    try:
        most, used = (int(_read(f"{group}/memory.{name}")) for name in ("max", "current"))
        return most - used + _numbers(f"{group}/memory.stat", b"active_file", b"inactive_file")
    except (OSError, ValueError):  # no such group or controller, or "max"
        return None


def _numbers(path: str, *names: bytes) -> int:
    """Return the sum of some numbers in a file of names and numbers.

    Raises:
        OSError: It can't be read.
        ValueError: It has none of them.
    """
    lines = map(bytes.split, _read(path).splitlines())
    found = [int(line[1]) for line in lines if line and line[0] in names]
    if not found:
        raise ValueError("no such number")
    return sum(found)


def run_delay() -> float:
    """Return the seconds that the calling thread was ready to run and did not; 0 if unknown.

    Two things make a job take longer than its CPU time: it waits for something (a disk, a network,
    a lock), or for a core that others use.  Only the first says something about the data.

    Source: "/proc/<pid>/schedstat" in the kernel's Documentation/scheduler/sched-stats.rst.
    """
    try:
        return int(_read("/proc/thread-self/schedstat").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel that does not count it
        return 0.0


def _read(path: str) -> bytes:
    """Return what a small file holds.

    Raises:
        OSError: It can't be read.
    """
    # Not by `pathlib`: it is called between two jobs.
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()
