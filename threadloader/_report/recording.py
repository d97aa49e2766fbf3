"""A trace of one loader, in Chrome's trace event format, which Perfetto and chrome://tracing open.

It is recorded while its context is entered, and written as it is left.  Slices are complete events
(``X``), and all times are microseconds since the trace began.

Source: "Trace Event Format", Google, and the importer of Perfetto's trace processor.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import platform
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from math import inf
from operator import attrgetter, itemgetter
from threading import current_thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from threadloader._report.stages import add_listener, remove_listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from threading import Thread

    from _typeshed import SupportsWrite

    from threadloader._report.stages import Counts, Rows


Event: TypeAlias = dict[str, Any]

_JOBS = {"read", "ticket"}  # the stages in which a thread runs
_encode = json.JSONEncoder(separators=(",", ":")).encode
_log = logging.getLogger("threadloader")


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


@contextmanager
def recorded(path: str | os.PathLike[str], loader: object, limit: int) -> Iterator[None]:
    """Record, and write the file at the end, also after an error; but not in a forked child.

    Args:
        path: Of the file; one that ends with ``.gz`` is compressed.
        loader: See `EpochKey`.
        limit: Stages that are recorded; later ones are counted, and dropped.

    Raises:
        OSError: The file can't be written.
    """
    pid, name = os.getpid(), os.fspath(path)
    # Appending is atomic on both builds; a finalizer may call in the middle of another call.
    stages: list[Slice] = []
    dropped: list[None] = []

    def opened(stage: str, rows: Rows | None, counts: Counts | None) -> Callable[[], object]:
        """Keep a stage; a `Listener`."""
        if rows is None or rows.epoch[0] is not loader:
            return bool
        if len(stages) >= limit:
            dropped.append(None)
            return bool
        kept = Slice(stage, rows, counts, current_thread(), perf_counter())
        stages.append(kept)
        return kept.end

    with open(path, "wb") as file:  # noqa: PTH123  # now: a wrong path is not to cost an epoch
        date, began = datetime.now(UTC).isoformat(), perf_counter()
        add_listener(opened)
        try:
            yield
        finally:
            remove_listener(opened)
            if pid == os.getpid():
                kept, now = stages[:limit], perf_counter()
                lost = len(dropped) + len(stages) - len(kept)
                if lost:
                    lacks = "%s lacks the last %d events: there was room for %d (limit=)"
                    _log.warning(lacks, name, lost, limit)
                about: Event = {"program": "threadloader", "python": platform.python_version()}
                about |= {"began": date, "dropped events": lost}
                # What goes on is cut off now.
                cut = [replace(each, ended=min(each.ended, now)) for each in kept]
                with gzip.open(file, "wb", 6) if name.endswith(".gz") else nullcontext(file) as out:
                    _write(out, about, _events(cut, began))


def _write(file: SupportsWrite[bytes], about: Event, events: Iterable[Event]) -> None:
    """Write a trace, one event a line: there may be a million."""
    file.write(b'{"displayTimeUnit":"ms","otherData":' + _encode(about).encode())
    file.write(b',"traceEvents":[')
    for number, event in enumerate(events):
        line = _encode({"pid": 1} | event)  # a trace is of one process
        file.write(b",\n"[not number :] + line.encode())
    file.write(b"\n]}\n")


def _events(slices: list[Slice], began: float) -> Iterator[Event]:
    """Yield the events of a trace.

    Args:
        slices: All have ended; those of each thread in the order in which they began.
        began: When the trace did, in seconds of `perf_counter`.
    """
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
        batch, first, after = each.rows[1:]
        args = {"epoch": epochs[each.rows.epoch]} | ({"batch": batch} if batch >= 0 else {})
        if after > first:
            args |= {"first row": first, "rows": after - first}
        yield {
            "ph": "X",
            "name": f"batch {each.rows.batch}" if each.stage == "ticket" else each.stage,
            "cat": each.stage,
            "tid": tids[each.thread],
            "ts": at(each.started),
            "dur": round(at(each.ended) - at(each.started), 3),
            "args": args,
        }
    for name, seconds, values in _counters(slices):
        yield {"ph": "C", "name": name, "ts": at(seconds), "args": values}


def _loop_bodies(slices: Iterable[Slice]) -> Iterator[Slice]:
    """Yield a slice for each loop body: from one ``next()`` of a thread to the next one."""
    before: dict[Thread, Slice] = {}
    for each in slices:
        if each.stage == "next":
            last = before.get(each.thread)
            if last is not None and last.rows == each.rows:
                yield replace(each, stage="loop body", started=last.ended, ended=each.started)
            before[each.thread] = each


def _rows(slices: list[Slice]) -> dict[Thread, str]:
    """Return the name of each thread's row, in the viewer's order: consumers first.

    The workers of the next epoch have the names of those before, and go on in their rows, unless
    one of those was still running.
    """
    began = {each.thread: each.started for each in slices[::-1]}
    ended = {each.thread: each.ended for each in sorted(slices, key=attrgetter("ended"))}
    names: dict[Thread, str] = {}
    taken: dict[str, float] = {}  # until when, by the name
    for thread in sorted(began, key=lambda thread: began[thread]):
        name, copies = thread.name, 1
        while taken.get(name, -inf) > began[thread]:
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
