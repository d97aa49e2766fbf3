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

from threadloader._trace.stages import add_listener, remove_listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from threading import Thread

    from threadloader._trace.stages import Counts, Rows


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


class _Recorder:
    """Keeps the stages of one loader; `opened` is a `Listener`.

    Args:
        loader: See `EpochKey`.
        limit: Stages that are kept; later ones are counted, and dropped.

    Threads:
        opened: shared; without a lock, since a finalizer may call it in its middle.
        slices: the one that has removed it from the listeners.
    """

    def __init__(self, loader: object, limit: int) -> None:
        self._loader = loader
        self._limit = limit
        self._stages: list[Slice] = []  # appending is atomic on both builds
        self._dropped: list[None] = []  # the same

    def opened(self, stage: str, rows: Rows | None, counts: Counts | None) -> Callable[[], object]:
        """Keep a stage; see `Listener`."""
        if rows is None or rows.epoch[0] is not self._loader:
            return bool
        if len(self._stages) >= self._limit:
            self._dropped.append(None)
            return bool
        kept = Slice(stage, rows, counts, current_thread(), perf_counter())
        self._stages.append(kept)
        return kept.end

    def slices(self) -> tuple[list[Slice], int]:
        """Return what was kept, what goes on cut off now, and how much was dropped."""
        stages, now = self._stages.copy(), perf_counter()
        kept = [replace(stage, ended=min(stage.ended, now)) for stage in stages[: self._limit]]
        return kept, len(self._dropped) + len(stages) - len(kept)


@contextmanager
def recorded(path: str | os.PathLike[str], loader: object, limit: int) -> Iterator[None]:
    """Record, and write the file at the end, also after an error; but not in a forked child.

    Args:
        path: Of the file; one that ends with ``.gz`` is compressed.
        loader: See `EpochKey`.
        limit: Stages that are recorded.

    Raises:
        OSError: The file can't be written.
    """
    recorder, pid, name = _Recorder(loader, limit), os.getpid(), os.fspath(path)
    about: dict[str, object] = {"program": "threadloader", "python": platform.python_version()}
    with open(path, "wb") as file:  # noqa: PTH123  # now: a wrong path is not to cost an epoch
        about["began"], began = datetime.now(UTC).isoformat(), perf_counter()
        add_listener(recorder.opened)
        try:
            yield
        finally:
            remove_listener(recorder.opened)
            if pid == os.getpid():
                slices, about["dropped events"] = recorder.slices()
                if about["dropped events"]:
                    lacks = "%s lacks the last %d events: there was room for %d (limit=)"
                    _log.warning(lacks, name, about["dropped events"], limit)
                with gzip.open(file, "wb", 6) if name.endswith(".gz") else nullcontext(file) as out:
                    out.write(b'{"displayTimeUnit":"ms","otherData":' + _encode(about).encode())
                    out.write(b',"traceEvents":[')
                    for number, event in enumerate(_events(slices, began)):
                        line = _encode({"pid": 1} | event)  # a trace is of one process
                        out.write(b",\n"[not number :] + line.encode())
                    out.write(b"\n]}\n")


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
