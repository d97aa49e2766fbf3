"""What this process may use of the machine: cores, memory, and how long a thread waits for a core.

``os.cpu_count()`` counts the machine's cores.  In a container, under ``taskset`` or as one of
several ranks on a host a process may use fewer, and threads beyond that only wait.
"""

from __future__ import annotations

import math
import os

UNKNOWN_NBYTES = 2 << 30  # bytes that are taken to be free where the system does not say


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

    Source: "cpu.max" in the kernel's Documentation/admin-guide/cgroup-v2.rst and
    "cpu.cfs_quota_us" in Documentation/scheduler/sched-bwc.rst.
    """
    quotas = [_group_quota(group) for group in _groups("cpu", cgroups, proc)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(controller: str, cgroups: str, proc: str) -> list[str]:
    """Return the folders of this process's groups, from its own up; none where there are none.

    Args:
        controller: ``"cpu"`` or ``"memory"``; of the first version of cgroups each has a tree.
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1.
    """
    try:
        lines = _read(f"{proc}/self/cgroup").splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(b":", 2)
        if controllers == b"":
            mount = cgroups
        elif controller.encode() in controllers.split(b","):
            mount = f"{cgroups}/{controller}"
        else:
            continue
        # In a container the path may be the host's, and missing here: its mount point is
        # then the container's own group, which the walk up reaches last.
        group = os.fsdecode(path).strip("/")
        while group:
            found.append(f"{mount}/{group}")
            group = group.rpartition("/")[0]
        found.append(mount)
    return found


def _group_quota(group: str) -> float | None:
    try:
        try:
            quota, period = _read(f"{group}/cpu.max").split()
        except FileNotFoundError:
            quota = _read(f"{group}/cpu.cfs_quota_us")
            period = _read(f"{group}/cpu.cfs_period_us")
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such group or controller, or "max"
        return None


def default_memory_budget() -> int:
    """Return half of what is free, in bytes; of several ranks on a host each has its share."""
    return free_memory() // 2 // _ranks_of_host()


def free_memory(cgroups: str = "/sys/fs/cgroup", proc: str = "/proc") -> int:
    """Return the bytes that this process may still take: the machine's, or those of its cgroups.

    Args:
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.

    Source: "MemAvailable" in the kernel's Documentation/filesystems/proc.rst, "memory.max" in
    Documentation/admin-guide/cgroup-v2.rst, "memory.limit_in_bytes" in cgroup-v1/memory.rst.
    """
    left = [_group_left(group) for group in _groups("memory", cgroups, proc)]
    return max(0, min([_machine_left(proc), *(nbytes for nbytes in left if nbytes is not None)]))


def _machine_left(proc: str) -> int:
    try:
        for line in _read(f"{proc}/meminfo").splitlines():
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:  # not Linux
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows; macOS
        return UNKNOWN_NBYTES


def _group_left(group: str) -> int | None:
    try:
        try:
            limit, used = _read(f"{group}/memory.max"), _read(f"{group}/memory.current")
        except FileNotFoundError:
            limit = _read(f"{group}/memory.limit_in_bytes")
            used = _read(f"{group}/memory.usage_in_bytes")
        return int(limit) - int(used) + _reclaimable(group)
    except (OSError, ValueError):  # no such group or controller, or "max"
        return None


def _reclaimable(group: str) -> int:
    """Return the bytes of files that the kernel keeps as long as nobody needs the memory."""
    for line in _read(f"{group}/memory.stat").splitlines():
        name, _, nbytes = line.partition(b" ")
        if name in (b"inactive_file", b"total_inactive_file"):
            return int(nbytes)
    return 0


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
