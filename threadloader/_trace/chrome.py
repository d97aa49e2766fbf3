"""A trace in Chrome's trace event format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format", Google, and the importer of Perfetto's trace processor.  Slices are
complete events (``X``), and all times are microseconds since the trace began.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from operator import attrgetter, itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from threading import Thread

    from _typeshed import SupportsWrite

    from threadloader._trace.stages import Counts, Rows


Event: TypeAlias = dict[str, Any]

_JOBS = {"read", "ticket"}  # the stages in which a thread runs
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True, eq=False)
class Slice:
    """A stage of one thread."""

    stage: str
    rows: Rows
    counts: Counts | None
    thread: Thread
    started: float  # seconds of `perf_counter`
    ended: float = inf  # the same

    def end(self) -> None:
        """Note that the stage ends now."""
        self.ended = perf_counter()


def write_chrome(
    file: SupportsWrite[bytes], slices: list[Slice], began: float, about: Mapping[str, object]
) -> None:
    """Write a trace, one event a line.

    Args:
        file: Gets it.
        slices: All have ended; those of each thread in the order in which they began.
        began: When the trace did, in seconds of `perf_counter`.
        about: Is added to the file.
    """
    file.write(b'{"displayTimeUnit":"ms","otherData":' + _encode(about).encode())
    file.write(b',"traceEvents":[')
    between = b"\n"
    for event in _events(slices, began):
        file.write(between + _encode({"pid": 1} | event).encode())  # a trace is of one process
        between = b",\n"
    file.write(b"\n]}\n")


def _events(slices: list[Slice], began: float) -> Iterator[Event]:
    """Yield the events of a trace one by one: there may be a million."""
    # Stable: what encloses another slice of the same begin stays before it.
    slices = sorted([*slices, *_loop_bodies(slices)], key=attrgetter("started"))
    rows = _rows(slices)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(rows.values()), 1)}
    tids = {thread: numbers[name] for thread, name in rows.items()}
    order = sorted({each.rows.epoch for each in slices}, key=itemgetter(1))
    epochs = {epoch: number for number, epoch in enumerate(order, 1)}

    def at(seconds: float) -> float:
        return round((seconds - began) * 1e9) / 1e3  # microseconds, to the nanosecond

    yield {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": "threadloader"}}
    for name, tid in numbers.items():
        yield {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "tid": tid, "args": {"sort_index": tid}}
    for each in slices:
        yield {
            "ph": "X",
            "name": f"batch {each.rows.batch}" if each.stage == "ticket" else each.stage,
            "cat": each.stage,
            "tid": tids[each.thread],
            "ts": at(each.started),
            "dur": round(at(each.ended) - at(each.started), 3),
            "args": {"epoch": epochs[each.rows.epoch]} | _args(each.rows),
        }
    for name, seconds, values in _counters(slices):
        yield {"ph": "C", "name": name, "ts": at(seconds), "args": values}


def _args(rows: Rows) -> dict[str, int]:
    """Return what a viewer shows of a slice, beside its epoch."""
    args = {} if rows.batch < 0 else {"batch": rows.batch}
    if rows.after > rows.first:
        args |= {"first row": rows.first, "rows": rows.after - rows.first}
    return args


def _loop_bodies(slices: Iterable[Slice]) -> Iterator[Slice]:
    """Yield a slice for each loop body: from one ``next()`` of a thread to the next one."""
    before: dict[Thread, Slice] = {}
    for each in slices:
        if each.stage == "next":
            last = before.get(each.thread)
            if last is not None and last.rows == each.rows:
                yield replace(each, stage="loop body", started=last.ended, ended=each.started)
            before[each.thread] = each


def _rows(slices: Iterable[Slice]) -> dict[Thread, str]:
    """Return the name of each thread's row, in the viewer's order: consumers first.

    The workers of the next epoch have the names of those before, and go on in their rows, unless
    one of those was still running.
    """
    started: dict[Thread, float] = {}
    ended: dict[Thread, float] = {}
    for each in slices:
        started.setdefault(each.thread, each.started)
        ended[each.thread] = max(each.ended, ended.get(each.thread, 0.0))
    names: dict[Thread, str] = {}
    taken: dict[str, float] = {}  # until when, by the name
    for thread, begun in started.items():
        name, copies = thread.name, 1
        while taken.get(name, begun) > begun:
            copies += 1
            name = f"{thread.name} ({copies})"
        names[thread], taken[name] = name, ended[thread]
    consumers = {names[each.thread] for each in slices if each.stage == "next"}

    def place(thread: Thread) -> tuple[bool, int, str]:
        name = names[thread]
        return name not in consumers, len(name), name  # worker 10 comes behind worker 9

    return {thread: names[thread] for thread in sorted(names, key=place)}


def _counters(slices: Iterable[Slice]) -> Iterator[tuple[str, float, dict[str, int]]]:
    """Yield what is counted over time: the counter's name, seconds, and the counts from then on."""
    changes = [
        change
        for each in slices
        if each.stage in _JOBS
        for change in ((each.started, 1), (each.ended, -1))
    ]
    changes.sort(key=itemgetter(0))
    running = accumulate(change for _, change in changes)
    for (seconds, _), threads in zip(changes, running, strict=True):
        yield "threads", seconds, {"running": threads}
    for each in slices:
        if each.counts is not None:
            allowed, planned, done, free, filling, leased = each.counts
            yield "threads that may run", each.started, {"at once": allowed}
            yield "window", each.started, {"in flight": planned, "ready": done}
            yield "ring", each.started, {"free": free, "filling": filling, "leased": leased}
