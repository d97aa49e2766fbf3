"""``loader.trace``: what the file says is what the threads did, in a form that viewers open."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from textwrap import dedent
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.child import run_child
from support.chrome_format import read_trace
from support.fake_device import FakeDevice
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._trace.chrome import chrome_events
from threadloader._trace.recorder import Stage, ThreadEvents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.patience import Spawn

ROWS = [np.full(5, i, dtype=np.float32) for i in range(26)]


class Computed:
    """Samples that are worth a ticket."""

    def __init__(self, size: int = 26) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(5, index, dtype=np.float32)


class Ragged(Computed):
    def __getitem__(self, index: int) -> np.ndarray:
        return np.zeros(index % 3)


class Faulty(Computed):
    def __getitem__(self, index: int) -> np.ndarray:
        if index % 7 == 3:
            raise ValueError(index)
        return super().__getitem__(index)


class Stream:
    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(ROWS)


def as_list(samples: Any) -> Any:
    return list(samples)


KINDS: dict[str, dict[str, Any]] = {
    "map": {"threads": 2},
    "one thread": {"threads": 1},
    "no threads": {"threads": 0},
    "by itself": {},
    "arrays, no threads": {"dataset": np.arange(26), "threads": 0},
    "persistent": {"threads": 2, "persistent_workers": True},
    "out of order": {"threads": 3, "in_order": False},
    "collate_fn": {"threads": 2, "collate_fn": as_list},
    "collate_fn, no threads": {"threads": 0, "collate_fn": as_list},
    "ragged": {"dataset": Ragged(), "threads": 2, "collate_fn": as_list},
    "skipped": {"dataset": Faulty(), "threads": 2, "on_error": "skip"},
    "skipped, no threads": {"dataset": Faulty(), "threads": 0, "on_error": "skip"},
    "arrays in groups": {"dataset": np.arange(400), "threads": 2},
    "rows in a list": {"dataset": ROWS, "threads": 2},
    "single samples": {"batch_size": None, "threads": 2},
    "iterable": {"dataset": Stream(), "threads": 1},
    "iterable, no threads": {"dataset": Stream(), "threads": 0},
    "iterable, transform": {"dataset": Stream(), "threads": 3, "transform": np.sqrt},
}


def made(kind: str = "map", **options: Any) -> ThreadLoader[Any]:
    given = {"dataset": Computed(), "batch_size": 4, "output": "numpy"} | KINDS[kind] | options
    return ThreadLoader(given.pop("dataset"), **given)


@pytest.mark.filterwarnings("ignore:a sample was left out")
@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_one_that_viewers_accept(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made(kind) as loader, loader.trace(path):
        for _ in range(2):
            batches = len(list(loader))
    trace = read_trace(path)
    assert trace.about["dropped events"] == 0
    assert len(trace.of("next")) == 2 * (batches + 1)
    assert {event["args"]["epoch"] for event in trace.of("next")} == {1, 2}


@pytest.mark.filterwarnings("ignore:a sample was left out")
@pytest.mark.parametrize("kind", KINDS)
def test_a_traced_loader_gives_the_same_batches(kind: str, tmp_path: Path) -> None:
    with made(kind) as loader:
        plain = [repr(batch) for batch in loader]
    with made(kind) as loader, loader.trace(tmp_path / "trace.json"):
        traced = [repr(batch) for batch in loader]
    if kind == "out of order":
        plain, traced = sorted(plain), sorted(traced)
    assert traced == plain


def test_each_thread_has_a_row_of_its_name_and_the_consumers_comes_first(tmp_path: Path) -> None:
    here = threading.current_thread().name
    meeting = threading.Barrier(3)

    class Meeting(Computed):
        def __getitem__(self, index: int) -> np.ndarray:
            if index < 3:
                meeting.wait(PATIENCE)  # so that each has a ticket
            return super().__getitem__(index)

    path = tmp_path / "trace.json"
    with made(dataset=Meeting(), threads=3, batch_size=1) as loader, loader.trace(path):
        list(loader)
    names = list(read_trace(path).threads.values())
    assert names[0] == here
    assert [name.partition("-")[2] for name in names[1:]] == ["worker-0", "worker-1", "worker-2"]


def test_epochs_go_on_in_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made(threads=1) as loader, loader.trace(path):
        for _ in range(3):
            list(loader)
    assert len(read_trace(path).threads) == 2


def test_a_ticket_has_the_fetching_and_the_writing_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made() as loader, loader.trace(path):
        list(loader)
    trace = read_trace(path)
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


def test_each_batch_is_collated_in_its_last_ticket(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made("collate_fn") as loader, loader.trace(path):
        list(loader)
    trace = read_trace(path)
    assert sorted(event["args"]["batch"] for event in trace.of("collate")) == list(range(7))
    assert {trace.parent(event) for event in trace.of("collate")} == {"ticket"}


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("map", ["ticket", "deliver"]),
        ("collate_fn", ["ticket", "collate", "deliver"]),
        ("iterable", ["read", "ticket", "deliver"]),
        ("iterable, transform", ["read", "ticket", "deliver"]),
        ("out of order", ["ticket", "deliver"]),
    ],
)
def test_an_arrow_leads_from_a_batch_s_first_stage_to_its_delivery(
    kind: str, steps: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with made(kind) as loader, loader.trace(path):
        list(loader)
    trace = read_trace(path)
    led = [trace.steps(number) for number in trace.arrows]
    assert steps in led
    ends = {
        trace.enclosing(arrow[-1])[-1]["args"]["batch"]
        for number, arrow in trace.arrows.items()
        if trace.steps(number)[-1] == "deliver"
    }
    assert ends == set(range(7))


@pytest.mark.usefixtures("one_row_tickets")
def test_each_ticket_has_an_arrow(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made("collate_fn") as loader, loader.trace(path):
        list(loader)
    trace = read_trace(path)
    begun = [trace.enclosing(arrow[0])[-1]["args"] for arrow in trace.arrows.values()]
    # That of the last one, which collates, too, leads from it to a part of it.
    assert len({(one["batch"], one["first row"]) for one in begun}) == 26


def test_a_copy_to_a_device_is_a_stage_of_the_copier(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made(device=FakeDevice()) as loader, loader.trace(path):
        list(loader)
    trace = read_trace(path)
    assert sorted(event["args"]["batch"] for event in trace.of("copy")) == list(range(7))
    (thread,) = {event["tid"] for event in trace.of("copy")}
    assert trace.threads[thread].endswith("-copier-0")
    led = [trace.steps(number) for number in trace.arrows]
    assert ["ticket", "copy", "deliver"] in led


@pytest.mark.usefixtures("slots_for_all_leaves")
def test_counters_say_how_many_threads_run_and_how_full_window_and_ring_are(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made(threads=3, prefetch=5) as loader, loader.trace(path):
        list(loader)
    trace = read_trace(path)
    by_name: dict[str, list[dict[str, int]]] = {}
    for event in trace.counters:
        by_name.setdefault(event["name"], []).append(event["args"])
    assert set(by_name) == {"threads", "threads that may run", "window", "ring"}
    assert by_name["threads that may run"] == [{"at once": 3}]
    assert 1 <= max(one["running"] for one in by_name["threads"]) <= 3
    assert by_name["threads"][-1]["running"] == 0
    assert max(one["in flight"] for one in by_name["window"]) == 5 - 1  # as one is just taken
    assert all(one["ready"] <= one["in flight"] for one in by_name["window"])
    assert by_name["window"][-1] == {"in flight": 0, "ready": 0}
    assert max(sum(one.values()) for one in by_name["ring"]) > 0


def test_the_consumers_row_has_waiting_planning_and_the_loop_body(
    spawn: Spawn, tmp_path: Path
) -> None:
    gate = Event()

    class Late(Computed):
        def __getitem__(self, index: int) -> np.ndarray:
            assert gate.wait(PATIENCE)
            return super().__getitem__(index)

    def consume(loader: ThreadLoader[Any]) -> None:
        iterator = iter(loader)
        spawn(gate.set)
        list(iterator)

    path = tmp_path / "trace.json"
    with made(dataset=Late()) as loader, loader.trace(path):
        spawn(consume, loader).result(PATIENCE)
    trace = read_trace(path)
    assert {trace.parent(event) for event in trace.of("wait")} == {"next"}
    assert {trace.parent(event) for event in trace.of("deliver")} == {"next"}
    assert "deliver" in {trace.parent(event) for event in trace.of("plan")}
    assert {trace.parent(event) for event in trace.of("loop body")} == {None}
    assert len(trace.of("loop body")) == 7


def test_a_stage_that_ends_just_after_the_trace_does_not_outlast_its_ticket() -> None:
    lane = ThreadEvents()
    lane.open.append(("ticket", 1.0, (0, 0, 0, 4)))
    lane.events.append(Stage("fetch", 2.0, 9.0, (0, 0, 0, 4)))  # while the lists were read
    slices = [each for each in chrome_events([lane], 0.0, 5.0) if each["ph"] == "X"]
    assert [each["ts"] + each["dur"] for each in slices] == [5e6, 5e6]


def test_a_trace_may_begin_and_end_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made() as loader:
        iterator = iter(loader)
        list(itertools.islice(iterator, 2))
        with loader.trace(path):
            list(itertools.islice(iterator, 3))
        assert len(list(iterator)) == 2
    assert len(read_trace(path).of("next")) == 3


@pytest.mark.parametrize("threads", [0, 1])
def test_what_is_left_of_an_epoch_when_a_trace_begins_is_shown(
    threads: int, spawn: Spawn, tmp_path: Path
) -> None:
    gate, begun = Event(), Event()

    class Gated(Computed):
        def __getitem__(self, index: int) -> np.ndarray:
            if index == 8 and threads:
                begun.set()
                assert gate.wait(PATIENCE)
            return super().__getitem__(index)

    path = tmp_path / "trace.json"
    with made(dataset=Gated(), threads=threads, prefetch=4) as loader:
        iterator = iter(loader)
        list(itertools.islice(iterator, 2))
        assert not threads or begun.wait(PATIENCE)
        with loader.trace(path):
            spawn(gate.set)
            assert len(list(iterator)) == 5
    trace = read_trace(path)
    assert len(trace.of("next")) == 6
    # All but the one that was being made already.
    expected = set(range(3 if threads else 2, 7))
    assert {ticket["args"]["batch"] for ticket in trace.of("ticket")} >= expected
    assert {event["args"]["batch"] for event in trace.of("deliver")} == set(range(2, 7))


def test_an_epoch_has_other_parts_while_it_is_traced_and_then_those_of_before(
    tmp_path: Path,
) -> None:
    def parts() -> dict[str, Any]:
        of_epoch = vars(iterator)
        found = of_epoch | vars(of_epoch["_in_flight"])
        return {name: found[name] for name in ("_turn", "_feed", "_delivery")}

    with made() as loader:
        iterator = iter(loader)
        next(iterator)
        before = parts()
        with loader.trace(tmp_path / "trace.json"):
            next(iterator)
            assert all(part is not before[name] for name, part in parts().items())
        assert parts() == before
        assert len(list(iterator)) == 5


def test_an_epoch_that_nobody_traces_imports_nothing_of_it() -> None:
    code = """
        import sys
        from threadloader import ThreadLoader
        for threads in (0, 2, None):
            list(ThreadLoader(list(range(100)), batch_size=4, threads=threads, output="numpy"))
        print([name for name in sys.modules if name.endswith(("epoch_tracer", "._epoch.traced"))])
    """
    ended, printed, complaint = run_child(dedent(code))
    assert (ended, printed) == (0, "[]"), complaint


@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_in_a_traced_sample_ends_the_epoch_alone(threads: int, tmp_path: Path) -> None:
    class Interrupted(Computed):
        def __getitem__(self, index: int) -> np.ndarray:
            if index == 9:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    path = tmp_path / "trace.json"
    with made(dataset=Interrupted(), threads=threads) as loader:
        with loader.trace(path), pytest.raises(KeyboardInterrupt):
            list(loader)
        assert len(list(itertools.islice(loader, 2))) == 2
    trace = read_trace(path)
    assert {event["args"]["batch"] for event in trace.of("deliver")} >= {0, 1}


def test_threads_that_share_a_traced_iterator_take_turns(spawn: Spawn, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made(dataset=Computed(400)) as loader, loader.trace(path):
        iterator = iter(loader)
        counts = [spawn(lambda: sum(1 for _ in iterator)) for _ in range(3)]
        assert sum(count.result(PATIENCE) for count in counts) == 100
    assert len(read_trace(path).of("next")) == 103


@pytest.mark.parametrize("threads", [0, 1])
def test_a_warning_names_the_users_line_while_the_loader_is_traced(
    threads: int, tmp_path: Path
) -> None:
    used_up = (row for row in ROWS)
    path = tmp_path / "trace.json"
    with ThreadLoader(used_up, batch_size=4, threads=threads) as loader, loader.trace(path):
        list(loader)
        with pytest.warns(UserWarning, match="nothing was left") as warned:
            list(loader)
    assert {warning.filename for warning in warned} == {__file__}


def test_what_has_not_ended_is_shown_up_to_the_end(spawn: Spawn, tmp_path: Path) -> None:
    begun, gate = Event(), Event()

    class Hanging(Computed):
        def __getitem__(self, index: int) -> np.ndarray:
            begun.set()
            assert gate.wait(PATIENCE)
            return super().__getitem__(index)

    path = tmp_path / "trace.json"
    with made(dataset=Hanging(), threads=1) as loader:
        with loader.trace(path):
            spawn(list, loader)
            assert begun.wait(PATIENCE)
        gate.set()
    trace = read_trace(path)
    assert len(trace.of("fetch")) == 1
    assert len(trace.of("ticket")) == 1


def test_later_events_than_the_limit_allows_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.json"
    caplog.set_level(logging.WARNING, "threadloader")
    with made() as loader, loader.trace(path, limit=10):
        list(loader)
    trace = read_trace(path)
    recorded = [one for one in trace.slices if one["cat"] not in {"deliver", "loop body"}]
    assert len(recorded) <= 10
    assert trace.about["dropped events"] > 0
    assert str(trace.about["dropped events"]) in caplog.text


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    with made() as loader, pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        loader.trace(tmp_path / "trace.json", limit=0)


def test_a_path_that_cannot_be_written_fails_before_anything_is_recorded(tmp_path: Path) -> None:
    with made() as loader:
        trace = loader.trace(tmp_path / "missing" / "trace.json")
        with pytest.raises(FileNotFoundError):
            trace.__enter__()
        assert len(list(loader)) == 7


def test_the_file_is_written_after_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    loader = made("skipped", on_error="raise")
    with loader, pytest.raises(ValueError, match="3"), loader.trace(path):
        list(loader)
    assert read_trace(path).of("ticket")


def test_a_name_that_ends_with_gz_is_compressed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    with made() as loader, loader.trace(path):
        list(loader)
    assert len(read_trace(path).of("next")) == 8


def test_a_trace_can_be_recorded_once_at_a_time_and_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made() as loader:
        trace = loader.trace(path)
        with trace, pytest.raises(RuntimeError, match="is being recorded"):
            trace.__enter__()
        with trace:
            list(loader)
    assert read_trace(path).of("next")


def test_two_traces_of_one_loader_are_whole(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    with made() as loader, loader.trace(first), loader.trace(second):
        list(loader)
    assert len(read_trace(first).slices) == len(read_trace(second).slices)


def test_a_trace_is_of_its_loader_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made() as loader, made() as other, loader.trace(path):
        list(other)
        list(loader)
    assert len(read_trace(path).of("next")) == 8


def test_nobody_is_told_of_anything_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made("no threads") as loader:
        iterator = iter(loader)
        with loader.trace(path):
            next(iterator)
        written = path.read_bytes()
        list(iterator)
    assert path.read_bytes() == written
    assert json.loads(written)["otherData"]["program"] == "threadloader"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_writes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with made("no threads") as loader:
        trace = loader.trace(path)
        trace.__enter__()
        list(loader)
        child = os.fork()
        if not child:
            trace.__exit__(None, None, None)
            os._exit(path.stat().st_size > 0)
        assert os.waitpid(child, 0)[1] == 0
        trace.__exit__(None, None, None)
    assert len(read_trace(path).of("next")) == 8
