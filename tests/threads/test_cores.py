"""How many cores a process may use: affinity, quotas of cgroups, ranks on one host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from threadloader._threads.cores import default_threads, usable_cores

if TYPE_CHECKING:
    from pathlib import Path


class Machine:
    """The files of a Linux machine of sixteen cores, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cgroups = root / "cgroup"
        self.proc = root / "proc"
        self.cgroups.mkdir()
        (self.proc / "self").mkdir(parents=True)

    def belongs_to(self, *lines: str) -> None:
        """Put this process into a group of each hierarchy: ``id:controllers:path``."""
        text = "".join(f"{line}\n" for line in lines)
        (self.proc / "self" / "cgroup").write_text(text, encoding="utf-8")

    def v2(self, group: str, limit: str) -> None:
        """Write ``cpu.max`` of a group of the unified hierarchy."""
        self._write(self.cgroups / group / "cpu.max", limit)

    def v1(self, group: str, quota: int, period: int = 100_000) -> None:
        """Write the quota of a group of the ``cpu`` hierarchy."""
        self._write(self.cgroups / "cpu" / group / "cpu.cfs_quota_us", str(quota))
        self._write(self.cgroups / "cpu" / group / "cpu.cfs_period_us", str(period))

    def cores(self) -> int:
        return usable_cores(str(self.cgroups), str(self.proc))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return Machine(tmp_path)


def test_without_limits_the_affinity_counts(machine: Machine) -> None:
    machine.belongs_to("0::/")
    assert machine.cores() == 16


def test_without_affinity_the_machine_counts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.cores() == 6


def test_a_machine_that_does_not_tell_has_one_core(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_outside_linux_there_is_no_quota(machine: Machine) -> None:
    assert not (machine.proc / "self" / "cgroup").exists()
    machine.v2("", "100000 100000")
    assert machine.cores() == 16


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("6000000 100000", 16),
        ("50000 10000", 5),
    ],
)
def test_version_2_quotas_are_rounded_up_and_cap_the_affinity(
    machine: Machine, limit: str, cores: int
) -> None:
    machine.belongs_to("0::/job")
    machine.v2("job", limit)
    assert machine.cores() == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [(-1, 100_000, 16), (300_000, 100_000, 3), (50_000, 100_000, 1), (70_000, 20_000, 4)],
)
def test_version_1_quotas_are_rounded_up(
    machine: Machine, quota: int, period: int, cores: int
) -> None:
    machine.belongs_to("5:memory:/job", "4:cpu,cpuacct:/job", "1:name=systemd:/job")
    machine.v1("job", quota, period)
    assert machine.cores() == cores


@pytest.mark.parametrize(
    ("outer", "middle", "inner", "cores"),
    [
        ("max 100000", "max 100000", "300000 100000", 3),
        ("max 100000", "200000 100000", "300000 100000", 2),
        ("100000 100000", "max 100000", "300000 100000", 1),
        ("max 100000", "max 100000", "max 100000", 16),
    ],
)
def test_the_smallest_quota_on_the_way_up_counts(
    machine: Machine, outer: str, middle: str, inner: str, cores: int
) -> None:
    machine.belongs_to("0::/outer/middle/inner")
    machine.v2("outer", outer)
    machine.v2("outer/middle", middle)
    machine.v2("outer/middle/inner", inner)
    assert machine.cores() == cores


def test_a_group_beside_the_way_up_does_not_count(machine: Machine) -> None:
    machine.belongs_to("0::/mine")
    machine.v2("mine", "500000 100000")
    machine.v2("other", "100000 100000")
    assert machine.cores() == 5


@pytest.mark.parametrize("path", ["/docker/0123abcd", "/../../docker/0123abcd", "/.."])
def test_a_path_of_the_host_leads_to_the_containers_own_group(machine: Machine, path: str) -> None:
    machine.belongs_to(f"0::{path}")
    machine.v2("", "300000 100000")
    assert machine.cores() == 3


def test_a_path_of_the_host_leads_to_the_containers_own_version_1_group(
    machine: Machine,
) -> None:
    machine.belongs_to("4:cpu,cpuacct:/docker/0123abcd")
    machine.v1("", 300_000)
    assert machine.cores() == 3


def test_the_tighter_of_both_versions_counts(machine: Machine) -> None:
    machine.belongs_to("4:cpu:/job", "0::/job")
    machine.v1("job", 300_000)
    machine.v2("job", "700000 100000")
    assert machine.cores() == 3


def test_another_controllers_hierarchy_does_not_count(machine: Machine) -> None:
    machine.belongs_to("3:cpuset:/job", "2:cpuacct:/job")
    machine.v1("job", 100_000)
    assert machine.cores() == 16


def test_a_group_may_have_a_colon_in_its_name(machine: Machine) -> None:
    machine.belongs_to("0::/a:b/c")
    machine.v2("a:b/c", "200000 100000")
    assert machine.cores() == 2


@pytest.mark.parametrize("limit", ["", "max", "nonsense 100000", "100000 0"])
def test_a_file_that_makes_no_sense_is_no_limit(machine: Machine, limit: str) -> None:
    machine.belongs_to("0::/job")
    machine.v2("job", limit)
    assert machine.cores() == 16


def test_a_group_whose_name_is_not_utf8_is_no_error(machine: Machine) -> None:
    (machine.proc / "self" / "cgroup").write_bytes(b"0::/caf\xe9\n")
    machine.v2("", "300000 100000")
    assert machine.cores() == 3


@pytest.mark.parametrize(
    ("ranks", "threads"),
    [("1", 16), ("4", 4), ("5", 3), ("16", 1), ("100", 1), ("0", 16), ("", 16), ("many", 16)],
)
def test_the_ranks_on_a_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, ranks: str, threads: int
) -> None:
    monkeypatch.setattr("threadloader._threads.cores.usable_cores", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert default_threads() == threads


def test_without_a_launcher_every_usable_core_has_a_thread(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadloader._threads.cores.usable_cores", machine.cores)
    machine.belongs_to("0::/job")
    machine.v2("job", "250000 100000")
    assert default_threads() == 3


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the platform has no affinity")
def test_this_process_may_use_between_one_core_and_its_affinity() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
