"""What a process may use of the machine: affinity, quotas of cgroups, ranks on one host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from threadloader._threads import machine as machine_module
from threadloader._threads.machine import default_threads, free_memory, usable_cores


class Machine:
    """The files of a Linux machine of 16 cores, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("latin-1") + b"\n")

    def cores(self) -> int:
        return usable_cores(str(self.root / "cgroup"), str(self.root / "proc"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return Machine(tmp_path)


def v2(**groups: str) -> dict[str, str]:
    """Return the files of groups of the unified hierarchy; ``_`` stands for a slash."""
    return {f"{name.replace('_', '/')}/cpu.max".lstrip("/"): each for name, each in groups.items()}


QUOTAS = {  # the process's groups, None outside Linux; files of the cgroup file system; cores
    "no limit": ("0::/", {}, 16),
    "outside Linux": (None, {"cpu.max": "100000 100000"}, 16),
    "a group without a limit": ("0::/job", v2(job="max 100000"), 16),
    "a limit": ("0::/job", v2(job="400000 100000"), 4),
    "at least one": ("0::/job", v2(job="10000 100000"), 1),
    "at most the affinity": ("0::/job", v2(job="6000000 100000"), 16),
    "of a group above": ("0::/a/b", v2(a="100000 100000", a_b="300000 100000"), 1),
    "of a group beside": ("0::/a", v2(a="500000 100000", b="100000 100000"), 5),
    "a path of the host": ("0::/../../docker/01", {"cpu.max": "300000 100000"}, 3),
    "of the first version": ("4:cpu:/job\n0::/", {"cpu/job/cpu.cfs_quota_us": "100000"}, 16),
    "a colon in the name": ("0::/a:b", {"a:b/cpu.max": "200000 100000"}, 2),
    "a name that is not UTF-8": ("0::/caf\xe9", {"cpu.max": "300000 100000"}, 3),
    "an empty file": ("0::/job", v2(job=""), 16),
    "a period of 0": ("0::/job", v2(job="100000 0"), 16),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_a_quota_bounds_the_cores(case: str, machine: Machine) -> None:
    groups, files, cores = QUOTAS[case]
    if groups is not None:
        machine.write("proc/self/cgroup", groups)
    for path, text in files.items():
        machine.write(f"cgroup/{path}", text)
    assert machine.cores() == cores


MEMORY = {  # the process's groups, None outside Linux; the group's limit and use; bytes free
    "no group": ("0::/", {}, 8 << 20),
    "outside Linux": (None, {}, None),
    "no limit": ("0::/job", {"max": "max", "current": "5"}, 8 << 20),
    "a limit": ("0::/job", {"max": "9000", "current": "7000", "stat": "inactive_file 0"}, 2000),
    "files in it": (
        "0::/job",
        {"max": "9000", "current": "7000", "stat": "anon 5\ninactive_file 20\nactive_file 300"},
        2320,
    ),
}


@pytest.mark.parametrize("case", MEMORY)
def test_what_is_free_is_that_of_the_machine_and_of_the_group(case: str, machine: Machine) -> None:
    groups, files, free = MEMORY[case]
    if groups is not None:
        machine.write("proc/self/cgroup", groups)
        machine.write("proc/meminfo", "MemFree: 1024 kB\nMemAvailable: 8192 kB\nSwapFree: 99 kB")
    for name, text in files.items():
        machine.write(f"cgroup/job/memory.{name}", text)
    assert free_memory(str(machine.root / "cgroup"), str(machine.root / "proc")) == free


@pytest.mark.parametrize(
    ("ranks", "threads"),
    [("1", 16), ("4", 4), ("5", 3), ("16", 1), ("100", 1), ("0", 16), ("", 16), ("many", 16)],
)
def test_the_ranks_on_a_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, ranks: str, threads: int
) -> None:
    monkeypatch.setattr(machine_module, "usable_cores", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert default_threads() == threads
