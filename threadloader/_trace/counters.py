"""What a trace counts over time: threads that run, batches of the window, slots of the ring.

Threads and batches that are ready follow from the stages, so nothing has to be recorded for them.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from threadloader._trace.recorder import Stage, Taken

__all__ = ["SERIES", "Values", "allowed_threads", "in_flight_and_ready", "running_threads", "slots"]

# Seconds, and the counts from then on.
Values: TypeAlias = "Iterator[tuple[float, tuple[int, ...]]]"

# What the counts of each counter are of.
SERIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "threads": ("running",),
        "threads that may run": ("at once",),
        "window": ("in flight", "ready"),
        "ring": ("free", "filling", "leased"),
    }
)

# A thread that takes its next job within this time has not stopped running.  Seconds; a choice, of
# several times what handing over a ticket takes.
PAUSE = 1e-4
_RUNNING = frozenset({"read", "ticket"})


def running_threads(threads: Iterable[Sequence[Stage]]) -> Values:
    """Yield how many threads run a job.

    Args:
        threads: The stages of each, by their start.
    """
    changes = sorted(chain.from_iterable(map(_changes, threads)))
    running = 0
    for at, change in changes:
        running += change
        yield at, (running,)


def _changes(stages: Sequence[Stage]) -> Iterator[tuple[float, int]]:
    """Yield when a thread begins to run, and when it stops."""
    end: float | None = None
    for stage in stages:
        if stage.name not in _RUNNING:
            continue
        if end is not None and stage.started > end + PAUSE:
            yield end, -1
            end = None
        if end is None:
            yield stage.started, 1
            end = stage.ended
        end = max(end, stage.ended)
    if end is not None:
        yield end, -1


def in_flight_and_ready(taken: Sequence[Taken], threads: Iterable[Sequence[Stage]]) -> Values:
    """Yield how many batches are in the window, and how many of them are ready.

    The first is known whenever the consumer takes one; between, batches become ready.

    Args:
        taken: By their time.
        threads: The stages of each.
    """
    made: dict[tuple[int, int], float] = defaultdict(float)  # when the last stage of each ended
    for stage in chain.from_iterable(threads):
        if stage.rows is not None and stage.name in {"ticket", "collate", "copy", "read"}:
            key = stage.rows[:2]
            made[key] = max(made[key], stage.ended)
    last = {one.epoch: one.at for one in taken}  # an epoch has no window after its last batch
    in_flight: dict[int, int] = {}
    ready: dict[int, int] = {}
    # Those that were never taken, as the epoch was left, become ready for nobody.
    events: list[tuple[float, int, Taken | None]] = [
        (at, epoch, None) for (epoch, _), at in made.items() if at <= last.get(epoch, 0.0)
    ]
    events += [(one.at, one.epoch, one) for one in taken]
    for at, epoch, one in sorted(events, key=lambda event: event[0]):
        if one is None:
            # One more than was seen, until the next look; never more than are there.
            ready[epoch] = min(ready.get(epoch, 0) + 1, in_flight.get(epoch, 1))
        else:
            in_flight[epoch], ready[epoch] = one.planned, one.done
            if at >= last[epoch]:
                del in_flight[epoch], ready[epoch]
        counted = sum(in_flight.values())
        yield at, (counted, min(counted, sum(ready.values())))


def slots(taken: Iterable[Taken]) -> Values:
    """Yield how many slots the ring has in each state, where it has any."""
    seen = False
    for one in taken:
        if one.slots is not None:
            seen = seen or any(one.slots)
            if seen:
                yield one.at, one.slots


def allowed_threads(taken: Iterable[Taken]) -> Values:
    """Yield how many threads may run at once, whenever that has changed."""
    before: int | None = None
    for one in taken:
        if one.running != before:
            before = one.running
            yield one.at, (before,)
