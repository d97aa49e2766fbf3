"""How many cores this process may use, and so how many threads a loader starts.

``os.cpu_count()`` counts the machine's cores.  In a container, under ``taskset`` or as one of
several ranks on a host a process may use fewer, and threads beyond that only wait.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["default_threads", "usable_cores"]


def default_threads() -> int:
    """Return the number of threads that a loader starts by default, at least 1.

    Launchers (torchrun, Accelerate, DeepSpeed) set ``LOCAL_WORLD_SIZE`` to the number of ranks
    on this host; each takes its share of the cores.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = int(ranks) if ranks.isdecimal() else 1
    return max(1, usable_cores() // max(1, share))


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
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
    quota = _quota(cgroups, proc)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroups: Path, proc: Path) -> float | None:
    """Return the smallest CPU quota, in cores, on the way from this process's cgroup up.

    Source: "cpu.max" in the kernel's Documentation/admin-guide/cgroup-v2.rst and
    "cpu.cfs_quota_us" in Documentation/scheduler/sched-bwc.rst.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = cgroups
        elif "cpu" in controllers.split(","):
            mount = cgroups / "cpu"
        else:
            continue
        # In a container the path may be the host's, and missing here: its mount point is
        # then the container's own group, which the walk up reaches last.
        here = mount / path.lstrip("/")
        while True:
            quotas.append(_group_quota(here))
            if here == mount or mount not in here.parents:
                break
            here = here.parent
    return min((quota for quota in quotas if quota is not None), default=None)


def _group_quota(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such group or controller, or "max"
        return None
