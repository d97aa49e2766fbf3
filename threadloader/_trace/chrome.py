"""A recorded trace in Chrome's trace event format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format", Google, and the importer of Perfetto's trace processor.  Slices are
complete events (``X``), arrows are flow events (``s``, ``t``, ``f``) bound to the slices that
enclose them, and all times are microseconds since the trace began.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from threadloader._trace.counters import (
    SERIES,
    allowed_threads,
    in_flight_and_ready,
    running_threads,
    slots,
)
from threadloader._trace.recorder import Stage, Taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from threadloader._trace.recorder import ThreadEvents

__all__ = ["Event", "chrome_events"]

Event: TypeAlias = dict[str, Any]

PROCESS = 1  # a trace is of one process; its number says nothing
ARROWS = "batch"  # the category of flow events
# The order of stages along the arrows of a batch.
READ, TICKET, COLLATE, COPY, DELIVER = range(5)
_STEPS = {"read": READ, "ticket": TICKET, "collate": COLLATE, "copy": COPY}


class _Row(NamedTuple):
    """A row of the viewer: the lanes of one thread after another that had the same name."""

    name: str
    stages: list[Stage]  # by start; what began first encloses what began at the same time
    taken: list[Taken]


class _End(NamedTuple):
    """Where an arrow begins, goes on or ends."""

    arrow: int  # its number
    phase: str


class _Count(NamedTuple):
    """What a counter says from a moment on."""

    name: str
    values: tuple[int, ...]  # in the order of `SERIES`


# When, in seconds; the row's number; and what.
_Entry: TypeAlias = "tuple[float, int, Stage | _End | _Count]"


class _Step(NamedTuple):
    """A place that arrows lead to or from."""

    at: float  # seconds
    thread: int  # the row's number


def chrome_events(lanes: Iterable[ThreadEvents], started: float, ended: float) -> Iterator[Event]:
    """Yield the events of a trace, metadata first.

    Args:
        lanes: What the threads recorded.
        started: When the trace began, in seconds of `perf_counter`.
        ended: When it ended, the same.
    """
    rows = _rows(lanes, ended)
    yield _metadata("process_name", 0, name="threadloader")
    for thread, row in enumerate(rows, 1):
        yield _metadata("thread_name", thread, name=row.name)
        yield _metadata("thread_sort_index", thread, sort_index=thread)
    epochs = _epoch_numbers(rows)
    clock = _Clock(started)
    # As tuples until each is written: there may be a million.
    entries: list[_Entry] = []
    for thread, row in enumerate(rows, 1):
        entries += ((stage.started, thread, stage) for stage in row.stages)
    for number, steps in enumerate(_arrows(rows), 1):
        last = len(steps) - 1
        for index, step in enumerate(steps):
            phase = "s" if not index else "f" if index == last else "t"
            entries.append((step.at, step.thread, _End(number, phase)))
    entries += _counts(rows)
    # Stable: slices stay before the arrows that begin or end in them at the same time.
    entries.sort(key=itemgetter(0))
    for at, thread, entry in entries:
        if isinstance(entry, Stage):
            yield _slice(entry, thread, clock, epochs)
        elif isinstance(entry, _End):
            yield _flow(entry, thread, clock.at(at))
        else:
            yield _counter(entry, clock.at(at))


class _Clock(NamedTuple):
    """Converts times to those of the trace."""

    started: float  # seconds

    def at(self, seconds: float) -> float:
        """Return microseconds since the beginning, to the nanosecond."""
        return round((seconds - self.started) * 1e9) / 1e3

    def between(self, first: float, last: float) -> float:
        """Return the microseconds from one moment to another, such that the two add up."""
        nanoseconds = round((last - self.started) * 1e9) - round((first - self.started) * 1e9)
        return nanoseconds / 1e3


def _metadata(kind: str, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": PROCESS, "tid": thread, "args": args}


def _slice(stage: Stage, thread: int, clock: _Clock, epochs: dict[int, int]) -> Event:
    event: Event = {
        "ph": "X",
        "name": stage.name,
        "cat": stage.name,
        "pid": PROCESS,
        "tid": thread,
        "ts": clock.at(stage.started),
        "dur": clock.between(stage.started, stage.ended),
    }
    if stage.rows is not None:
        epoch, batch, first, after = stage.rows
        if stage.name == "ticket":
            event["name"] = f"batch {batch}"
        event["args"] = args = {"epoch": epochs[epoch]}
        if batch >= 0:
            args["batch"] = batch
        if after > first:
            args |= {"first row": first, "rows": after - first}
    return event


def _flow(end: _End, thread: int, at: float) -> Event:
    event: Event = {
        "ph": end.phase,
        "name": ARROWS,
        "cat": ARROWS,
        "id": end.arrow,
        "pid": PROCESS,
        "tid": thread,
        "ts": at,
    }
    if end.phase != "s":
        event["bp"] = "e"  # the slice that encloses it, not the next one
    return event


def _counter(count: _Count, at: float) -> Event:
    args = dict(zip(SERIES[count.name], count.values, strict=True))
    return {"ph": "C", "name": count.name, "pid": PROCESS, "ts": at, "args": args}


def _counts(rows: Sequence[_Row]) -> Iterator[_Entry]:
    """Yield what is counted over time."""
    taken = sorted((one for row in rows for one in row.taken), key=attrgetter("at"))
    lists = [row.stages for row in rows]
    counted = {
        "threads": running_threads(lists),
        "threads that may run": allowed_threads(taken),
        "window": in_flight_and_ready(taken, lists),
        "ring": slots(taken),
    }
    for name, values in counted.items():
        yield from ((at, 0, _Count(name, value)) for at, value in values)


def _epoch_numbers(rows: Sequence[_Row]) -> dict[int, int]:
    """Return the epochs' numbers in this trace, from 1, by those that the process counts."""
    epochs = {stage.rows[0] for row in rows for stage in row.stages if stage.rows is not None}
    return {epoch: number for number, epoch in enumerate(sorted(epochs), 1)}


def _rows(lanes: Iterable[ThreadEvents], ended: float) -> list[_Row]:
    """Return a row for each thread; consumers first, and threads that followed one another in one.

    The workers of the next epoch have the names of those before, and go on in their rows, unless
    one of those was still running.
    """
    rows: list[_Row] = []
    free: dict[str, list[tuple[float, _Row]]] = defaultdict(list)  # rows, and when they end
    found = [_row_of(lane, ended) for lane in lanes]
    for row in sorted(filter(lambda row: row.stages, found), key=lambda row: row.stages[0].started):
        used = free[row.name]
        last = max(stage.ended for stage in row.stages)
        for index, (end, earlier) in enumerate(used):
            if end <= row.stages[0].started:
                earlier.stages.extend(row.stages)
                earlier.taken.extend(row.taken)
                used[index] = last, earlier
                break
        else:
            used.append((last, row))
            rows.append(row if len(used) == 1 else row._replace(name=f"{row.name} ({len(used)})"))
            used[-1] = last, rows[-1]
    return sorted(rows, key=lambda row: (not _is_consumer(row), _natural(row.name)))


def _row_of(lane: ThreadEvents, ended: float) -> _Row:
    """Return the row of one lane, with what has not ended, and with the deliveries as stages."""
    # In this order: a stage that ends meanwhile is in both, and counts once.
    unended = [Stage(name, started, ended, rows) for name, started, rows in lane.open.copy()]
    events = lane.events.copy()
    stages = [event for event in events if isinstance(event, Stage)]
    opened = {stage.started: stage for stage in unended}
    for stage in stages:
        opened.pop(stage.started, None)
    stages += opened.values()
    stages += _deliveries(events)
    # A stage that ended after the trace is cut off, as is the one that encloses it.
    stages = [
        stage if stage.ended <= ended else stage._replace(ended=ended)
        for stage in stages
        if stage.started <= ended
    ]
    stages.sort(key=lambda stage: (stage.started, -stage.ended))
    return _Row(lane.name, stages, [event for event in events if isinstance(event, Taken)])


def _deliveries(events: Sequence[Stage | Taken]) -> Iterator[Stage]:
    """Yield a stage from each taking of a batch to its delivery, and one for the loop body.

    Args:
        events: Of one thread, in the order in which they ended.
    """
    pending: Taken | None = None
    before: Stage | None = None
    for event in events:
        if isinstance(event, Taken):
            pending = event
        elif event.name == "next" and event.rows is not None:
            epoch = event.rows[0]
            if pending is not None and pending.epoch == epoch and pending.at >= event.started:
                rows = (epoch, pending.batch, 0, 0)
                yield Stage("deliver", pending.at, event.ended, rows)
            pending = None
            if before is not None and before.rows == event.rows:
                yield Stage("loop body", before.ended, event.started, event.rows)
            before = event


def _is_consumer(row: _Row) -> bool:
    return any(stage.name == "next" for stage in row.stages)


def _natural(name: str) -> list[tuple[bool, int | str]]:
    """Return a key that sorts worker 10 behind worker 9."""
    parts = name.replace("(", "-").replace(")", "").split("-")
    return [(not part.isdecimal(), int(part) if part.isdecimal() else part) for part in parts]


def _arrows(rows: Sequence[_Row]) -> Iterator[list[_Step]]:
    """Yield the steps of each arrow: one for each ticket; the first goes on to the delivery."""
    batches: dict[tuple[int, int], list[list[_Step]]] = defaultdict(lambda: [[] for _ in range(5)])
    for thread, row in enumerate(rows, 1):
        for stage in row.stages:
            step = _STEPS.get(stage.name)
            if step is not None and stage.rows is not None:
                batches[stage.rows[:2]][step].append(_Step(stage.started, thread))
        for taken in row.taken:
            batches[taken.epoch, taken.batch][DELIVER].append(_Step(taken.at, thread))
    for steps in batches.values():
        yield from _arrows_of(steps)


def _arrows_of(steps: list[list[_Step]]) -> Iterator[list[_Step]]:
    """Yield the arrows of one batch."""
    read, tickets = steps[READ][:1], sorted(steps[TICKET])
    after = [min(step) for step in steps[COLLATE:] if step]
    if not tickets:
        tickets, read = read, []
    for index, ticket in enumerate(tickets):
        path = sorted([*read, ticket, *(after[:1] if index else after)])
        path = [path[0], *(step for before, step in pairwise(path) if step.at > before.at)]
        if len(path) > 1:
            yield path
