"""How much memory a process may still take: the machine's, its groups', its rank's share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from threadloader._threads import free_memory as free_memory_module
from threadloader._threads.free_memory import default_memory_budget, free_memory

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


class Machine:
    """The files of a Linux machine with 4 GiB of free memory, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB")
        self.write("proc/self/cgroup", "0::/job/step\n4:memory:/old")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", encoding="utf-8")

    def v2(self, group: str, limit: str, used: int, files: int = 0) -> None:
        """Write the limit, use and files of a group of the unified hierarchy."""
        self.write(f"cgroup/{group}/memory.max", limit)
        self.write(f"cgroup/{group}/memory.current", str(used))
        self.write(f"cgroup/{group}/memory.stat", f"anon 1\ninactive_file {files}")

    def free(self) -> int:
        return free_memory(str(self.root / "cgroup"), str(self.root / "proc"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_limits_it_is_the_machines(machine: Machine) -> None:
    assert machine.free() == 4096 * MIB


def test_a_group_leaves_what_it_does_not_use_but_for_files(machine: Machine) -> None:
    machine.v2("job/step", str(1024 * MIB), 900 * MIB, files=200 * MIB)
    assert machine.free() == 324 * MIB


def test_a_group_above_counts_too(machine: Machine) -> None:
    machine.v2("job/step", "max", 900 * MIB)
    machine.v2("job", str(1024 * MIB), 1000 * MIB)
    assert machine.free() == 24 * MIB


def test_a_group_of_the_old_hierarchy_counts_too(machine: Machine) -> None:
    machine.write("cgroup/memory/old/memory.limit_in_bytes", str(512 * MIB))
    machine.write("cgroup/memory/old/memory.usage_in_bytes", str(500 * MIB))
    machine.write("cgroup/memory/old/memory.stat", f"cache 7\ntotal_inactive_file {10 * MIB}")
    assert machine.free() == 22 * MIB


def test_nothing_is_left_where_more_is_used_than_allowed(machine: Machine) -> None:
    machine.v2("job", str(10 * MIB), 11 * MIB)
    assert machine.free() == 0


@pytest.mark.parametrize("pages", [{"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}, {}])
def test_elsewhere_the_system_is_asked(
    pages: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sysconf(name: str) -> int:
        if name not in pages:
            msg = "unrecognized configuration name"
            raise ValueError(msg)
        return pages[name]

    monkeypatch.setattr(os, "sysconf", sysconf, raising=False)
    expected = 4_096_000 if pages else free_memory_module.UNKNOWN_NBYTES
    assert free_memory(str(tmp_path), str(tmp_path)) == expected


@pytest.mark.parametrize(("ranks", "nbytes"), [("", 2048 * MIB), ("4", 512 * MIB)])
def test_the_ranks_of_a_host_share_half_of_it(
    ranks: str, nbytes: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_memory_module, "free_memory", machine.free)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert default_memory_budget() == nbytes
