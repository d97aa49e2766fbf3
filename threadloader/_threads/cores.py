"""How many cores this process may use, and so how many threads a loader starts.

``os.cpu_count()`` counts the machine's cores.  In a container, under ``taskset`` or as one of
several ranks on a host a process may use fewer, and threads beyond that only wait.
"""

from __future__ import annotations

import math
import os

__all__ = ["cpu_quota", "default_threads", "usable_cores"]


def default_threads() -> int:
    """Return the number of threads that a loader starts by default, at least 1.

    Launchers (torchrun, Accelerate, DeepSpeed) set ``LOCAL_WORLD_SIZE`` to the number of ranks
    on this host; each takes its share of the cores.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = int(ranks) if ranks.isdecimal() else 1
    return max(1, usable_cores() // max(1, share))


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
    try:
        lines = _read(f"{proc}/self/cgroup").splitlines()
    except OSError:  # not Linux
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(b":", 2)
        if controllers == b"":
            mount = cgroups
        elif b"cpu" in controllers.split(b","):
            mount = f"{cgroups}/cpu"
        else:
            continue
        # In a container the path may be the host's, and missing here: its mount point is
        # then the container's own group, which the walk up reaches last.
        group = os.fsdecode(path).strip("/")
        while group:
            quotas.append(_group_quota(f"{mount}/{group}"))
            group = group.rpartition("/")[0]
        quotas.append(_group_quota(mount))
    return min((quota for quota in quotas if quota is not None), default=None)


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


def _read(path: str) -> bytes:
    # Not by `pathlib`: a loader that is made for one small batch would take a third longer.
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()
