"""``threadloader.profile`` and NVTX: stages are ranges in the thread that they ran in."""

from __future__ import annotations

import importlib.util
import json
import sys
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.child import run_child

import threadloader
from threadloader import ThreadLoader
from threadloader._trace import nvtx_ranges
from threadloader._trace.tracers import Tracers, trace_all, untrace_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAGES = {"ticket", "fetch", "write", "next", "plan"}


class Computed:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(5, index, dtype=np.float32)


def made(**options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(Computed(), batch_size=4, threads=2, **options)


class Noted:
    """A tracer that notes what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[None] = []  # appending is atomic on both builds

    def begin(self, stage: str, rows: Any = None) -> None:  # noqa: ARG002  # as a `Tracer`
        self.begun.append(stage)

    def end(self) -> None:
        self.ended.append(None)

    def broken_off(self) -> None:
        pass

    def taken(self, epoch: int, batch: int, running: int, planned: int, done: int) -> None:
        pass


@pytest.fixture
def noted() -> Iterator[Noted]:
    """A tracer of all loaders."""
    tracer = Noted()
    trace_all(tracer)
    yield tracer
    untrace_all(tracer)


def test_a_tracer_of_all_is_told_of_loaders_that_were_made_before_and_after() -> None:
    tracer = Noted()
    with made() as before:
        trace_all(tracer)
        list(before)
        told = len(tracer.begun)
        with made() as after:
            list(after)
        before.close()  # the last ticket ends after its batch was delivered
        untrace_all(tracer)
        assert told > 0
        assert len(tracer.begun) > told
        assert len(tracer.ended) == len(tracer.begun)
        told = len(tracer.begun)
        list(before)
        assert len(tracer.begun) == told


def test_two_tracers_are_told_the_same(noted: Noted, tmp_path: Path) -> None:
    with made() as loader, loader.trace(tmp_path / "trace.json"):
        list(loader)
    slices = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    recorded = [event["cat"] for event in slices if event["ph"] == "X"]
    derived = {"deliver", "loop body"}
    assert sorted(each for each in recorded if each not in derived) == sorted(noted.begun)


def test_loaders_that_are_gone_are_not_told_of_tracers(noted: Noted) -> None:
    tracers = Tracers()
    del tracers
    trace_all(noted)
    untrace_all(noted)


# In a process of its own: torch's profiler may import triton, which switches the GIL on.
PROFILED = """
import json, sys
import numpy as np, torch, threadloader
from threadloader import ThreadLoader

class Computed:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return np.full(5, index, dtype=np.float32)

activities = [torch.profiler.ProfilerActivity.CPU]
found = {}
with ThreadLoader(Computed(), batch_size=4, threads=2) as loader:
    with threadloader.profile(activities=activities) as prof:
        list(loader)
    prof.export_chrome_trace(sys.argv[1])
    with open(sys.argv[1], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    found["ranges"] = [
        (event["name"], event["tid"], event["cat"])
        for event in events
        if str(event.get("name")).startswith("threadloader: ")
    ]
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    seen = []
    with threadloader.profile(
        activities=activities, schedule=schedule, on_trace_ready=seen.append
    ) as prof:
        for _ in loader:
            prof.step()
    found["ready"] = seen == [prof] and isinstance(prof, torch.profiler.profile)
    try:
        with threadloader.profile(activities=activities):
            1 // 0
    except ZeroDivisionError:
        pass
    with torch.profiler.profile(activities=activities) as prof:
        list(loader)
    names = [each.key for each in prof.key_averages()]
    found["afterwards"] = [name for name in names if name.startswith("threadloader: ")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script above found."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    path = tmp_path_factory.mktemp("profiled") / "profile.json"
    code, printed, complained = run_child(PROFILED.replace("sys.argv[1]", repr(str(path))))
    assert code == 0, complained
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def test_torchs_profiler_shows_the_stages_of_all_threads(profiled: dict[str, Any]) -> None:
    ranges = profiled["ranges"]
    assert {name.removeprefix("threadloader: ") for name, _, _ in ranges} >= STAGES
    consumer = {thread for name, thread, _ in ranges if name == "threadloader: next"}
    workers = {thread for name, thread, _ in ranges if name == "threadloader: fetch"}
    assert len(consumer) == 1
    assert workers
    assert not workers & consumer


def test_stages_are_ranges_of_record_function(profiled: dict[str, Any]) -> None:
    assert {category for _, _, category in profiled["ranges"]} == {"user_annotation"}


def test_the_profile_takes_torchs_arguments(profiled: dict[str, Any]) -> None:
    assert profiled["ready"]


def test_after_a_profile_nothing_is_a_range_any_more(profiled: dict[str, Any]) -> None:
    assert profiled["afterwards"] == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_error_names_what_works_without_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"needs torch.*loader\.trace"):
        threadloader.profile()


class FakeNvtx(ModuleType):
    """The package ``nvtx``: notes the ranges."""

    def __init__(self) -> None:
        super().__init__("nvtx")
        self.pushed: list[str] = []
        self.popped: list[None] = []  # appending is atomic on both builds

    def push_range(self, message: str, *, domain: str) -> None:
        assert domain == "threadloader"
        self.pushed.append(message)

    def pop_range(self, domain: str) -> None:
        assert domain == "threadloader"
        self.popped.append(None)


@pytest.mark.parametrize("value", [None, "", "0", "1"])
def test_the_environment_variable_switches_nvtx_ranges_on(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, added = FakeNvtx(), []
    monkeypatch.setitem(sys.modules, "nvtx", package)
    monkeypatch.setattr(nvtx_ranges, "_of_torch", lambda: None)
    monkeypatch.setattr(
        nvtx_ranges, "trace_all", lambda tracer: (added.append(tracer), trace_all(tracer))
    )
    if value is None:
        monkeypatch.delenv("THREADLOADER_NVTX", raising=False)
    else:
        monkeypatch.setenv("THREADLOADER_NVTX", value)
    nvtx_ranges.trace_with_nvtx.cache_clear()
    try:
        with made() as loader, made() as other:
            list(loader)
            list(other)
    finally:
        for tracer in added:
            untrace_all(tracer)
        nvtx_ranges.trace_with_nvtx.cache_clear()
    assert len(added) == (value == "1")
    assert len(package.popped) == len(package.pushed)
    names = {name.removeprefix("threadloader: ") for name in package.pushed}
    assert names >= STAGES if value == "1" else not names


def test_without_a_package_for_nvtx_the_variable_does_nothing() -> None:
    script = """
        import os, sys
        os.environ["THREADLOADER_NVTX"] = "1"
        sys.modules["nvtx"] = None
        from threadloader import ThreadLoader
        from threadloader._trace import nvtx_ranges
        nvtx_ranges._of_torch = lambda: None
        print(len(list(ThreadLoader([1, 2, 3], threads=1))))
    """
    assert run_child(dedent(script))[:2] == (0, "3")
