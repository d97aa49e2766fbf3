"""The events of a trace while it is recorded: each thread appends to a list of its own.

So threads wait for nobody, and on a free-threaded build they share no list.  The lists are read
once, at the end.
"""

from __future__ import annotations

from threading import current_thread, local
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._trace.tracers import BatchRows

__all__ = ["Recorder", "Slots", "Stage", "Taken", "ThreadEvents"]

GRANTED = 256  # events that a thread may record before it asks again
SLOTS_SECONDS = 1e-3  # from one count of the slots to the next: it takes some microseconds


class Stage(NamedTuple):
    """One stage, from its begin to its end."""

    name: str
    started: float  # seconds of `perf_counter`
    ended: float  # the same
    rows: BatchRows | None  # None for the waiting for no certain batch


class Slots(NamedTuple):
    """The slots of the ring, by their states."""

    free: int
    filling: int
    leased: int


class Taken(NamedTuple):
    """The consumer took a batch out of the window."""

    at: float  # seconds of `perf_counter`
    epoch: int
    batch: int
    running: int  # threads that may run samples; 0 for the calling thread
    planned: int  # batches left in the window
    done: int  # of them, those that could be delivered
    slots: Slots | None  # counted now and then only


class ThreadEvents:
    """The events of one thread, in the order in which they ended.

    Threads:
        all: the thread that it is of.  Its lists may be copied by any: appending and copying are
            atomic on both builds.
    """

    __slots__ = ("dropped", "events", "name", "open", "room")

    def __init__(self) -> None:
        self.name = current_thread().name
        self.events: list[Stage | Taken] = []
        self.open: list[tuple[str, float, BatchRows | None]] = []  # name, start and rows
        self.room = 0  # events that may be recorded
        self.dropped = 0  # events that there was no room for


class Recorder:
    """Records the stages of a loader's work; a `Tracer`.

    Args:
        count_slots: Returns the slots of the ring.
        limit: Events that are recorded; later ones are counted, and dropped.

    Threads:
        all: shared.  Without a lock, since a finalizer may ask for a batch in the middle of any of
            these calls.
    """

    def __init__(self, count_slots: Callable[[], Slots | None], limit: int) -> None:
        self.started = perf_counter()
        self._here = local()
        self._count_slots = count_slots
        self._slots_due = 0.0  # a race counts them once more
        # Both appended to, popped and copied by single calls, which are atomic on both builds.
        self._lanes: list[ThreadEvents] = []
        full, rest = divmod(limit, GRANTED)
        self._grants = [rest, *[GRANTED] * full]  # of events; each goes to one lane

    def begin(self, stage: str, rows: BatchRows | None = None) -> None:
        """Note that a stage begins; see `Tracer`."""
        try:
            opened: list[tuple[str, float, BatchRows | None]] = self._here.lane.open
        except AttributeError:
            opened = self._new_lane().open
        if rows is None and opened:
            rows = opened[-1][2]
        opened.append((stage, perf_counter(), rows))

    def end(self) -> None:
        """Note the end of a stage; see `Tracer`."""
        ended = perf_counter()
        try:
            lane: ThreadEvents = self._here.lane
            name, started, rows = lane.open.pop()
        except (AttributeError, IndexError):  # Ctrl-C came up as it was about to begin
            return
        if lane.room or self._grant(lane):
            lane.room -= 1
            lane.events.append(Stage(name, started, ended, rows))

    def broken_off(self) -> None:
        """End all stages of this thread; see `Tracer`."""
        lane: ThreadEvents | None = getattr(self._here, "lane", None)
        while lane is not None and lane.open:
            self.end()

    def taken(self, epoch: int, batch: int, running: int, planned: int, done: int) -> None:
        """Note that the consumer takes a batch; see `Tracer`."""
        at, slots = perf_counter(), None
        if at >= self._slots_due:
            self._slots_due = at + SLOTS_SECONDS
            slots = self._count_slots()
        try:
            lane: ThreadEvents = self._here.lane
        except AttributeError:
            lane = self._new_lane()
        if lane.room or self._grant(lane):
            lane.room -= 1
            lane.events.append(Taken(at, epoch, batch, running, planned, done, slots))

    def stop(self) -> list[ThreadEvents]:
        """Return what every thread has recorded; one may still append to it."""
        self._count_slots = _no_slots  # which led to the loader's memory
        return self._lanes.copy()

    def _new_lane(self) -> ThreadEvents:
        lane = self._here.lane = ThreadEvents()
        self._lanes.append(lane)
        return lane

    def _grant(self, lane: ThreadEvents) -> bool:
        """Let a lane record some more events; return False if there were enough."""
        try:
            lane.room = self._grants.pop()
        except IndexError:
            lane.room = 0
        if not lane.room:
            lane.dropped += 1
        return lane.room > 0


def _no_slots() -> None:
    """Count none."""
