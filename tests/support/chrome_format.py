"""What a file in Chrome's trace event format must be, checked event by event.

Source: "Trace Event Format", Google.  Perfetto asks for more than that document: slices of a thread
nest perfectly (its reference of synthetic track events), and what does not is dropped there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Trace", "read_trace"]

Event = dict[str, Any]
PHASES = {"X", "M", "C"}
METADATA = {"process_name": str, "thread_name": str, "thread_sort_index": int}
TOLERANCE = 1e-6  # microseconds; sums of two times that are whole nanoseconds


class Trace:
    """A trace that was read and checked; its events by kind."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self.about = whole["otherData"]
        self.events: list[Event] = whole["traceEvents"]
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.counters = [event for event in self.events if event["ph"] == "C"]
        self.threads: dict[int, str] = {
            event["tid"]: event["args"]["name"]
            for event in self.events
            if event["name"] == "thread_name"
        }

    def of(self, stage: str) -> list[Event]:
        """Return the slices of a stage."""
        return [event for event in self.slices if event["cat"] == stage]

    def enclosing(self, event: Event) -> list[Event]:
        """Return the slices of an event's thread that are open at its time, outermost first."""
        found = [
            one
            for one in self.slices
            if one["tid"] == event["tid"]
            and one is not event
            and one["ts"] <= event["ts"] + TOLERANCE
            and _end(event) <= _end(one) + TOLERANCE
        ]
        return sorted(found, key=lambda one: (one["ts"], -one["dur"]))

    def parent(self, event: Event) -> str | None:
        """Return the stage that a slice is a part of."""
        found = self.enclosing(event)
        return found[-1]["cat"] if found else None

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


def _check_event(event: Event) -> None:
    assert event["ph"] in PHASES
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int)
    args = event.get("args", {})
    if event["ph"] == "M":
        assert isinstance(next(iter(args.values())), METADATA[event["name"]])
        return
    assert event["ts"] >= 0
    if event["ph"] == "C":
        assert args
        assert all(isinstance(count, int) and count >= 0 for count in args.values())
        return
    assert isinstance(event["tid"], int)
    assert event["dur"] >= 0


def _check_nesting(slices: Sequence[Event]) -> None:
    ends: list[float] = []
    for event in slices:  # by their start
        while ends and ends[-1] <= event["ts"] + TOLERANCE:
            ends.pop()
        assert not ends or _end(event) <= ends[-1] + TOLERANCE, "slices nest"
        ends.append(_end(event))


def _end(event: Event) -> float:
    end: float = event["ts"] + event.get("dur", 0.0)
    return end


def read_trace(path: Path) -> Trace:
    """Return a trace, checked."""
    written = path.read_bytes()
    trace = Trace(json.loads(gzip.decompress(written) if path.suffix == ".gz" else written))
    trace.check()
    return trace
