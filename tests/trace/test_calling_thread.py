"""A trace of what the calling thread makes, and of threads that start while it is recorded."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.chrome_format import Trace, read_trace
from support.patience import PATIENCE

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from pathlib import Path

ROWS = np.arange(400, dtype=np.float32).reshape(100, 4)
LOADERS: dict[str, dict[str, Any]] = {
    "no threads": {"threads": 0},
    "collate_fn": {"threads": 0, "collate_fn": list},
    "single samples": {"threads": 0, "batch_size": None},
}

every_loader = pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)


def traced(path: Path, dataset: Any, **options: Any) -> tuple[Trace, int]:
    """Return the trace of an epoch, and its batches."""
    options = {"batch_size": 10, "output": "numpy"} | options
    with ThreadLoader(dataset, **options) as loader, loader.trace(path):
        batches = len(list(loader))
    return read_trace(path), batches


@every_loader
def test_a_batch_that_the_calling_thread_makes_is_in_its_row(
    options: dict[str, Any], tmp_path: Path
) -> None:
    trace, batches = traced(tmp_path / "trace.json", ROWS, **options)
    here = threading.current_thread().name
    assert list(trace.threads.values()) == [here]
    assert {trace.parent(ticket) for ticket in trace.of("ticket")} == {"next"}
    assert {ticket["args"]["batch"] for ticket in trace.of("ticket")} == set(range(batches))
    for part in ("fetch", "collate"):
        assert {trace.parent(event) for event in trace.of(part)} <= {"ticket"}
    assert len(trace.of("fetch")) >= batches


@every_loader
def test_an_arrow_leads_from_its_making_to_its_delivery(
    options: dict[str, Any], tmp_path: Path
) -> None:
    trace, batches = traced(tmp_path / "trace.json", ROWS, **options)
    ends = [
        trace.enclosing(arrow[-1])[-1]["args"]["batch"]
        for number, arrow in trace.arrows.items()
        if trace.steps(number)[0] == "ticket" and trace.steps(number)[-1] == "deliver"
    ]
    assert set(ends) == set(range(batches))


def test_a_loader_that_chooses_begins_in_the_row_of_the_calling_thread(tmp_path: Path) -> None:
    trace, batches = traced(tmp_path / "trace.json", ROWS)
    here = threading.current_thread().name
    first = min(trace.of("ticket"), key=lambda ticket: ticket["ts"])
    assert trace.threads[first["tid"]] == here
    assert trace.parent(first) == "next"
    assert len(trace.of("next")) == batches + 1


def test_the_calling_thread_is_counted_while_it_makes_a_batch(tmp_path: Path) -> None:
    trace, _ = traced(tmp_path / "trace.json", ROWS, threads=0)
    running = [event["args"]["running"] for event in trace.counters if event["name"] == "threads"]
    assert set(running) == {0, 1}
    allowed = [event["args"] for event in trace.counters if "may run" in event["name"]]
    assert allowed == [{"at once": 0}]


def test_a_batch_whose_samples_fail_is_made_in_two_tickets(tmp_path: Path) -> None:
    class Faulty:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> np.ndarray:
            if index == 25:
                raise ValueError(index)
            return ROWS[index]

    with pytest.warns(UserWarning, match="left out"):
        trace, batches = traced(tmp_path / "trace.json", Faulty(), threads=0, on_error="skip")
    assert batches == 4
    rows = [ticket["args"]["batch"] for ticket in trace.of("ticket")]
    assert rows[-3:] == [2, 2, 3]
    assert {trace.parent(event) for event in trace.of("fetch")} == {"ticket"}


def test_threads_that_start_later_have_rows(tmp_path: Path) -> None:
    names = set()

    class Reads:
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> int:
            names.add(threading.current_thread().name)
            time.sleep(0.002)
            return index

    path, end = tmp_path / "trace.json", time.perf_counter() + PATIENCE
    with ThreadLoader(Reads(), 16, output="numpy") as loader:
        cores = loader.num_workers
        with loader.trace(path):
            for _ in loader:
                if len(names) > 2 * cores:
                    break
                assert time.perf_counter() < end
            running = loader.statistics().running
    trace = read_trace(path)
    # The last ones may have begun their first job just as the trace ended.
    assert len(names & set(trace.threads.values())) > cores
    allowed = [event["args"]["at once"] for event in trace.counters if "may run" in event["name"]]
    assert cores < max(allowed) <= max(running, max(names_to_numbers(names)) + 1)
    assert len(set(allowed)) > 1


def names_to_numbers(names: set[str]) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in names if "-worker-" in name]
