"""``loader.trace``: what the file says is what the threads did, in a form that viewers open."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.fake_device import FakeDevice
from support.patience import PATIENCE, Spawn, becomes

from threadloader import ThreadLoader

# What a file in Chrome's trace event format must be, checked event by event.
#
# Source: "Trace Event Format", Google.  Perfetto asks for more than that document: slices of a
# thread nest perfectly (its reference of synthetic track events), and what does not is dropped.

Mark = dict[str, Any]  # an event of the file
PHASES = {"X", "M", "C"}
TOLERANCE = 1e-6  # microseconds; sums of two times that are whole nanoseconds


class Trace:
    """A trace that was read and checked; its events by kind."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self.about = whole["otherData"]
        self.events: list[Mark] = whole["traceEvents"]
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.counters = [event for event in self.events if event["ph"] == "C"]
        self.threads: dict[int, str] = {
            event["tid"]: event["args"]["name"]
            for event in self.events
            if event["name"] == "thread_name"
        }

    def of(self, stage: str) -> list[Mark]:
        """Return the slices of a stage."""
        return [event for event in self.slices if event["cat"] == stage]

    def parent(self, event: Mark) -> str | None:
        """Return the stage that a slice is a part of: the innermost that is open at its time."""
        found = [
            one
            for one in self.slices
            if one["tid"] == event["tid"]
            and one is not event
            and one["ts"] <= event["ts"] + TOLERANCE
            and _end(event) <= _end(one) + TOLERANCE
        ]
        inner = max(found, key=lambda one: (one["ts"], -one["dur"]), default=None)
        return None if inner is None else inner["cat"]

    def check(self) -> None:
        """Fail for anything that a viewer would refuse, or drop, or show in the wrong place."""
        for event in self.events:
            _check_event(event)
        times = [event["ts"] for event in self.slices]
        assert times == sorted(times)
        assert {event["tid"] for event in self.slices} == set(self.threads)
        assert len(set(self.threads.values())) == len(self.threads)
        for thread in self.threads:
            _check_nesting([event for event in self.slices if event["tid"] == thread])


def _check_event(event: Mark) -> None:
    assert event["ph"] in PHASES
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int)
    if event["ph"] == "X":
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0 <= event["dur"]
    if event["ph"] == "C":
        assert all(isinstance(count, int) and count >= 0 for count in event["args"].values())


def _check_nesting(slices: Sequence[Mark]) -> None:
    ends: list[float] = []
    for event in slices:  # by their start
        while ends and ends[-1] <= event["ts"] + TOLERANCE:
            ends.pop()
        assert not ends or _end(event) <= ends[-1] + TOLERANCE, "slices nest"
        ends.append(_end(event))


def _end(event: Mark) -> float:
    end: float = event["ts"] + event.get("dur", 0.0)
    return end


def read_trace(path: Path) -> Trace:
    """Return a trace, checked."""
    written = path.read_bytes()
    trace = Trace(json.loads(gzip.decompress(written) if path.suffix == ".gz" else written))
    trace.check()
    return trace


# Loaders that are traced


def row(index: int) -> np.ndarray:
    return np.full(5, index, dtype=np.float32)


def ragged(index: int) -> np.ndarray:
    return np.zeros(index % 3)


class Stream:
    def __iter__(self) -> Iterator[np.ndarray]:
        return map(row, range(26))


def fails(index: int) -> None:
    if index % 7 == 3:
        raise ValueError(index)


def as_list(samples: Any) -> Any:
    return list(samples)


KINDS: dict[str, dict[str, Any]] = {
    "map": {"threads": 2},
    "no threads": {"threads": 0},
    "persistent": {"threads": 2, "persistent_workers": True},
    "out of order": {"threads": 3, "in_order": False},
    "collate_fn, no threads": {"threads": 0, "collate_fn": as_list},
    "ragged": {"dataset": Acting(26, sample=ragged), "threads": 2, "collate_fn": as_list},
    "skipped": {"dataset": Acting(26, fails, row), "threads": 2, "on_error": "skip"},
    "arrays in groups": {"dataset": np.arange(400), "threads": 2},
    "iterable": {"dataset": Stream(), "threads": 1},
    "iterable, transform": {"dataset": Stream(), "threads": 3, "transform": np.sqrt},
    "device": {"threads": 2, "device": FakeDevice()},
}


def made(kind: str = "map", **options: Any) -> ThreadLoader[Any]:
    given = (
        {"dataset": Acting(26, sample=row), "batch_size": 4, "output": "numpy"}
        | KINDS[kind]
        | options
    )
    return ThreadLoader(given.pop("dataset"), **given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def traced(path: Path, kind: str = "map", **options: Any) -> Trace:
    """Return the trace of one epoch."""
    needs_threads = {} if kind == "no threads" else {"worker_init_fn": lambda _: None}
    with made(kind, **needs_threads | options) as loader, loader.trace(path):
        list(loader)
    return read_trace(path)


@pytest.mark.filterwarnings("ignore:a sample was left out")
@pytest.mark.parametrize("kind", KINDS)
def test_viewers_accept_every_event_and_the_batches_are_those_without_a_trace(
    kind: str, path: Path
) -> None:
    with made(kind) as loader:
        plain = [repr(batch) for batch in loader]
    with made(kind) as loader, loader.trace(path):
        epochs = [[repr(batch) for batch in loader] for _ in range(2)]
    order = sorted if kind == "out of order" else list
    assert [order(epoch) for epoch in epochs] == [order(plain)] * 2
    trace = read_trace(path)
    assert trace.about["dropped events"] == 0
    assert len(trace.of("next")) == 2 * (len(plain) + 1)
    assert {event["args"]["epoch"] for event in trace.of("next")} == {1, 2}


@pytest.mark.usefixtures("first_sample_waits")
def test_each_thread_has_a_row_of_its_name_and_the_consumers_comes_first(path: Path) -> None:
    meeting = threading.Barrier(3)  # so that each has a ticket
    met = Acting(26, lambda index: index < 3 and meeting.wait(PATIENCE), row)
    names = list(traced(path, dataset=met, threads=3, batch_size=1).threads.values())
    assert names[0] == threading.current_thread().name
    assert [name.partition("-")[2] for name in names[1:]] == ["worker-0", "worker-1", "worker-2"]


def test_a_ticket_has_the_fetching_and_the_writing_of_its_rows(path: Path) -> None:
    trace = traced(path)
    rows = {
        (ticket["args"]["batch"], ticket["args"]["first row"] + row)
        for ticket in trace.of("ticket")
        for row in range(ticket["args"]["rows"])
    }
    assert rows == {(index // 4, index % 4) for index in range(26)}
    for stage in ("fetch", "write"):
        assert len(trace.of(stage)) == len(trace.of("ticket"))
        assert {trace.parent(event) for event in trace.of(stage)} == {"ticket"}
    assert {event["name"] for event in trace.of("ticket")} == {f"batch {n}" for n in range(7)}


@pytest.mark.parametrize("kind", ["no threads", "collate_fn, no threads"])
def test_a_batch_that_the_calling_thread_makes_is_in_its_row(kind: str, path: Path) -> None:
    trace = traced(path, kind)
    assert list(trace.threads.values()) == [threading.current_thread().name]
    assert {trace.parent(ticket) for ticket in trace.of("ticket")} == {"next"}
    assert {ticket["args"]["batch"] for ticket in trace.of("ticket")} == set(range(7))
    assert {trace.parent(event) for event in trace.of("fetch")} == {"ticket"}
    running = [event["args"]["running"] for event in trace.counters if event["name"] == "threads"]
    assert set(running) == {0, 1}


@pytest.mark.parametrize(
    ("kind", "stage", "parent", "row"),
    [
        ("ragged", "collate", "ticket", "worker"),
        ("device", "copy", None, "copier-0"),
        ("iterable", "read", None, "worker-0"),
        ("out of order", "deliver", "next", threading.current_thread().name),
    ],
)
def test_each_batch_has_its_stages_in_the_rows_of_their_threads(
    kind: str, stage: str, parent: str | None, row: str, path: Path
) -> None:
    trace = traced(path, kind)
    found = [event for event in trace.of(stage) if "batch" in event["args"]]
    assert {event["args"]["batch"] for event in found} >= set(range(7))
    assert {trace.parent(event) for event in found} == {parent}
    assert all(row in trace.threads[event["tid"]] for event in found)


@pytest.mark.usefixtures("slots_for_all_leaves")
def test_counters_say_how_many_threads_run_and_how_full_window_and_ring_are(path: Path) -> None:
    trace = traced(path, threads=3, prefetch=5)
    by_name: dict[str, list[dict[str, int]]] = {}
    for event in trace.counters:
        by_name.setdefault(event["name"], []).append(event["args"])
    assert set(by_name) == {"threads", "threads that may run", "window", "ring"}
    assert {one["at once"] for one in by_name["threads that may run"]} == {3}
    assert 1 <= max(one["running"] for one in by_name["threads"]) <= 3
    assert by_name["threads"][-1]["running"] == 0
    assert max(one["in flight"] for one in by_name["window"]) == 5 - 1  # as one is just taken
    assert all(one["ready"] <= one["in flight"] for one in by_name["window"])
    assert by_name["window"][-1] == {"in flight": 0, "ready": 0}
    assert max(sum(one.values()) for one in by_name["ring"]) > 0


def test_the_consumers_row_has_waiting_planning_and_the_loop_body(spawn: Spawn, path: Path) -> None:
    gate = Event()

    def consume(loader: ThreadLoader[Any]) -> None:
        iterator = iter(loader)
        spawn(lambda: becomes(lambda: loader.statistics().epoch.wait_seconds > 0) and gate.set())
        list(iterator)

    late = Acting(26, lambda _: gate.wait(PATIENCE), row)
    with made(dataset=late) as loader, loader.trace(path):
        spawn(consume, loader).result(PATIENCE)
    trace = read_trace(path)
    assert {trace.parent(event) for event in trace.of("wait")} == {"next"}
    assert {trace.parent(event) for event in trace.of("deliver")} == {"next"}
    assert "deliver" in {trace.parent(event) for event in trace.of("plan")}
    assert {trace.parent(event) for event in trace.of("loop body")} == {None}
    assert len(trace.of("loop body")) == 7


def test_a_trace_may_begin_and_end_in_the_middle_of_an_epoch(path: Path) -> None:
    with made() as loader:
        iterator = iter(loader)
        list(itertools.islice(iterator, 2))
        with loader.trace(path):
            list(itertools.islice(iterator, 3))
        written = path.read_bytes()
        assert len(list(iterator)) == 2
    assert path.read_bytes() == written
    assert len(read_trace(path).of("next")) == 3


def test_later_events_than_the_limit_allows_are_dropped_and_counted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = len(traced(path, threads=1, prefetch=1).slices)
    caplog.set_level(logging.WARNING, "threadloader")
    with made(threads=1) as loader, loader.trace(path, limit=10):
        list(loader)
    trace = read_trace(path)
    assert len([one for one in trace.slices if one["cat"] != "loop body"]) == 10
    assert 0 < trace.about["dropped events"] < whole
    assert str(trace.about["dropped events"]) in caplog.text


def test_traces_at_once_are_whole_and_each_of_its_loader_and_may_be_compressed(
    tmp_path: Path,
) -> None:
    first, second, third = (tmp_path / f"{name}.json.gz" for name in "abc")
    with (
        made() as loader,
        made("no threads") as other,
        loader.trace(first),
        loader.trace(second),
        other.trace(third),
    ):
        list(loader)
        list(other)
    found = [read_trace(each) for each in (first, second, third)]
    assert [len(trace.of("next")) for trace in found] == [8, 8, 8]
    assert len(found[0].slices) == len(found[1].slices)
