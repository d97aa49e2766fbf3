"""How much memory this process may still take."""

from __future__ import annotations

import os

from threadloader._threads.cores import groups, ranks_of_host, read

__all__ = ["default_memory_budget", "free_memory"]

UNKNOWN_NBYTES = 2 << 30  # bytes that are taken to be free where the system does not say


def default_memory_budget() -> int:
    """Return half of what is free, in bytes; of several ranks on a host each has its share."""
    return free_memory() // 2 // ranks_of_host()


def free_memory(cgroups: str = "/sys/fs/cgroup", proc: str = "/proc") -> int:
    """Return the bytes that this process may still take: the machine's, or those of its cgroups.

    Args:
        cgroups: Where the cgroup file system is mounted.
        proc: Where the process file system is mounted.

    Source: "MemAvailable" in the kernel's Documentation/filesystems/proc.rst, "memory.max" in
    Documentation/admin-guide/cgroup-v2.rst, "memory.limit_in_bytes" in cgroup-v1/memory.rst.
    """
    left = [_group_left(group) for group in groups("memory", cgroups, proc)]
    return max(0, min([_machine_left(proc), *(nbytes for nbytes in left if nbytes is not None)]))


def _machine_left(proc: str) -> int:
    try:
        for line in read(f"{proc}/meminfo").splitlines():
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
            limit, used = read(f"{group}/memory.max"), read(f"{group}/memory.current")
        except FileNotFoundError:
            limit = read(f"{group}/memory.limit_in_bytes")
            used = read(f"{group}/memory.usage_in_bytes")
        return int(limit) - int(used) + _reclaimable(group)
    except (OSError, ValueError):  # no such group or controller, or "max"
        return None


def _reclaimable(group: str) -> int:
    """Return the bytes of files that the kernel keeps as long as nobody needs the memory."""
    for line in read(f"{group}/memory.stat").splitlines():
        name, _, nbytes = line.partition(b" ")
        if name in (b"inactive_file", b"total_inactive_file"):
            return int(nbytes)
    return 0
