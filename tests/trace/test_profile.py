"""``threadloader.profile`` and NVTX: stages are ranges in the thread that they ran in."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from support.child import run_child

import threadloader

STAGES = {"ticket", "fetch", "write", "next", "plan"}


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
with ThreadLoader(Computed(), batch_size=4, threads=2, worker_init_fn=int) as loader:
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


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchs_profiler_shows_the_stages_of_all_threads_while_it_profiles(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    code, printed, complained = run_child(PROFILED.replace("sys.argv[1]", repr(str(path))))
    assert code == 0, complained
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    ranges = found["ranges"]
    assert {name.removeprefix("threadloader: ") for name, _, _ in ranges} >= STAGES
    assert {category for _, _, category in ranges} == {"user_annotation"}
    consumer = {thread for name, thread, _ in ranges if name == "threadloader: next"}
    workers = {thread for name, thread, _ in ranges if name == "threadloader: fetch"}
    assert len(consumer) == 1
    assert workers
    assert not workers & consumer
    assert found["ready"]  # torch's arguments are taken
    assert found["afterwards"] == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_error_names_what_works_without_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"needs torch.*loader\.trace"):
        threadloader.profile()


# The package ``nvtx`` stands in for torch's own ranges, which need CUDA.
MARKED = """
import json, sys, types
from contextlib import contextmanager

begun, ended = [], []  # appending is atomic on both builds

@contextmanager
def annotate(message, *, domain):
    begun.append((domain, message))
    yield
    ended.append((domain, message))

sys.modules["torch"] = None  # its import takes seconds
sys.modules["nvtx"] = types.SimpleNamespace(annotate=annotate) if PACKAGE else None
from threadloader import ThreadLoader
with ThreadLoader(range(24), batch_size=4, threads=2) as loader:
    with ThreadLoader(range(24), batch_size=4, threads=0) as other:
        loaded = len(list(loader)) + len(list(other))
print(json.dumps([loaded, begun, sorted(begun) == sorted(ended)]))
"""


@pytest.mark.parametrize(
    ("value", "package", "marks"),
    [(None, 1, False), ("", 1, False), ("0", 1, False), ("1", 1, True), ("1", 0, False)],
)
def test_the_environment_variable_switches_nvtx_ranges_on_where_there_is_a_package(
    value: str | None, package: int, marks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THREADLOADER_NVTX", raising=False)
    if value is not None:
        monkeypatch.setenv("THREADLOADER_NVTX", value)
    code, printed, complained = run_child(MARKED.replace("PACKAGE", str(package)))
    assert code == 0, complained
    loaded, begun, balanced = json.loads(printed)
    assert (loaded, balanced) == (12, True)
    names = {name.removeprefix("threadloader: ") for _, name in begun}
    assert names >= STAGES if marks else not names
    assert {domain for domain, _ in begun} <= {"threadloader"}
