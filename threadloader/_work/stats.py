"""What a loader has counted: the sums over its threads and epochs, now and over time.

A snapshot adds up all counters: when an epoch begins, when somebody asks, and at most once a second
in between, by the consumer.
"""

from __future__ import annotations

import math
from collections import deque
from operator import add, attrgetter, sub
from threading import Lock, get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from threadloader._work.counters import COUNTED, Counters
from threadloader._work.process_use import process_use
from threadloader._work.snapshot import Reading, Snapshot, Span, Totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from threadloader._threads.thread_group import ThreadGroup

__all__ = [
    "LONG_SECONDS",
    "Deliveries",
    "InWindow",
    "Stats",
    "wait_of",
]

SNAPSHOT_SECONDS = 1.0  # from one snapshot to the next, at first
USED_SECONDS = 0.02  # for which what the process has used need not be asked again by an epoch
LONG_SECONDS = 1e-4  # of a call of ``next()``: shorter ones are not sorted by their time
STEPS = 4  # buckets from one power of two to the next, for the percentiles of waits
BUCKETS = 64 * STEPS  # the last one is of 2**64 us
RECENT = 6  # snapshots for the rates of the last seconds
MOST_SNAPSHOTS = 512  # kept: with more, every second one goes, and they come half as often


class InWindow(Protocol):
    """Knows the window of an epoch."""

    def moment(self) -> tuple[int, int, int]:
        """Return threads that may run, batches that are planned, and those of them done."""


# What is added up, of one `Deliveries`; as `COUNTED`.
_DELIVERED = attrgetter(
    "batches",
    "nbytes",
    "loading_seconds",
    "wait_seconds",
    "late_seconds",
    "copy_wait_seconds",
    "rank_wait_seconds",
    "waits",
    "seen",
    "seen_done",
)


_CALLING = attrgetter("calling")


class Deliveries:
    """What the consumer of an epoch was given, and what it waited for; later that of another one.

    Args:
        now: On the clock.

    Threads:
        begin: planner.
        adding to the numbers: consumer, in its turn.
        all numbers: read by any, one attribute load each, atomic on both builds.
    """

    __slots__ = (
        "batches",
        "began",
        "calling",
        "copy_wait_seconds",
        "due",
        "earlier_seconds",
        "ended",
        "first_seconds",
        "in_next",
        "late_seconds",
        "latest",
        "loading_seconds",
        "longest_seconds",
        "nbytes",
        "rank_wait_seconds",
        "seen",
        "seen_done",
        "start_seconds",
        "used",
        "wait_seconds",
        "waits",
        "waits_since",
    )

    def __init__(self, now: float) -> None:
        self.calling = Counters()  # of the consumer's thread, where it makes samples itself
        self.batches = self.nbytes = self.waits = self.seen = self.seen_done = 0
        self.loading_seconds = self.wait_seconds = 0.0
        self.late_seconds = self.copy_wait_seconds = self.rank_wait_seconds = 0.0
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin an epoch, whose numbers are added to those of earlier ones.

        Args:
            now: On the clock.
        """
        self.ended = False
        self.used: tuple[float, int] | None = None  # as `process_use`, at the end; None before that
        self.waits_since = 0.0  # when the present wait for workers began, on the clock; 0 for none
        self.began = self.latest = now  # when a batch was delivered last, on the clock
        self.due = 0.0  # on the clock: of a snapshot; 0 before the first batch
        self.earlier_seconds = self.loading_seconds
        self.first_seconds = 0.0  # of ``loading_seconds``: of this epoch, up to its first batch
        self.start_seconds = 0.0  # of these: for starting threads
        self.longest_seconds = 0.0  # the same: of the longest call after that
        # How many calls of ``next()`` after the first one took long, by the bucket of their time.
        self.in_next: list[int] = []

    def end(self) -> None:
        """Note that no batch comes any more; a finalizer may call this, inside any lock."""
        self.used = process_use()
        self.ended = True

    def started(self, groups: Iterable[ThreadGroup[Any]] = ()) -> None:
        """Note the end of ``iter()``, which has started these threads, if they were not before."""
        self.latest = now = perf_counter()
        self.loading_seconds += now - self.began
        for group in groups:
            seconds, group.start_seconds = group.start_seconds, 0.0
            self.start_seconds += seconds

    def note(self, seconds: float, stats: Stats, window: InWindow) -> None:
        """Note the end of a call of ``next()`` that took long, or ended when ``due`` had come.

        Args:
            seconds: That it took.
            stats: Has a snapshot kept.
            window: Of the epoch.
        """
        if seconds >= LONG_SECONDS and self.due:
            self.longest_seconds = max(seconds, self.longest_seconds)
            if not self.in_next:
                self.in_next = [0] * BUCKETS
            self.in_next[int((1e6 * seconds) ** STEPS).bit_length()] += 1
        if self.latest >= self.due:
            stats.note(self, window)

    def waited(self, seconds: float, reached: float, *, copying: bool) -> None:
        """Count a wait for workers.

        Args:
            seconds: That it took.
            reached: When the batch was done, on the clock; or when an earlier one was.
            copying: Whether it was done when the wait began, and had to be copied.
        """
        self.waits += 1
        self.wait_seconds += seconds
        late = perf_counter() - reached
        if late < seconds:
            self.late_seconds += late
        if copying:
            self.copy_wait_seconds += seconds


class Stats:
    """Hands out counters to worker threads and epochs, and adds them up.

    Invariants, whenever ``_lock`` is not held:
        1. Each open set of counters belongs to one thread that has not called `retire`.

    Threads:
        open, total, snapshot, epoch, recent, history, busy: shared.
        retire: the worker that owns the counters, once, as its last act.
        begin_epoch: planner.
        note: consumer.
        copied: copier, or the consumer.
    """

    def __init__(self) -> None:
        # Of the epoch that began last; replaced whole.
        self.last: Deliveries | None = None
        self.told = False  # whether the consumer was told what it waits for; read and written whole
        self.epochs = 0  # that were begun; read whole
        self._lock = Lock()
        # All below: guarded by _lock.
        self._open: list[Counters] = []
        self._retired: tuple[float, ...] = COUNTED(Counters())  # the sums of threads that ended
        self._deliveries: list[Deliveries] = []  # as many as there were epochs at once
        self._copy_seconds = 0.0
        self._begun: Reading | None = None  # when the last epoch began
        self._recent: deque[tuple[Snapshot, list[int]]] = deque(maxlen=RECENT)
        self._history: list[Snapshot] = []
        self._every, self._history_due = SNAPSHOT_SECONDS, 0.0
        self._used, self._used_at = (0.0, 0), -math.inf  # by the process, and when

    def open(self, number: int | None = None) -> Counters:
        """Return counters for a new thread, which calls this.

        Args:
            number: Of the worker.
        """
        counters = Counters(thread=get_ident(), number=number)
        with self._lock:
            self._open.append(counters)
        return counters

    def retire(self, counters: Counters) -> None:
        """Fold the counters of a thread that ends into the totals."""
        with self._lock:
            self._open.remove(counters)
            self._retired = tuple(map(add, self._retired, COUNTED(counters)))

    def begin_epoch(self) -> Deliveries:
        """Return what counts the deliveries of an epoch that begins.

        A small epoch takes 200 us, so nothing is added up here that can be later.
        """
        now = perf_counter()
        with self._lock:
            deliveries = self.last
            if deliveries is None or not deliveries.ended:
                deliveries = next(filter(_has_ended, self._deliveries), None)
            if deliveries is None:
                deliveries = Deliveries(now)
                self._deliveries.append(deliveries)
            self._begun = begun = self._read(now, (0, 0, 0), USED_SECONDS)
            self.epochs += 1
            deliveries.begin(now)
            self.last = deliveries
            if self._recent:
                self._recent.clear()
            if now >= self._history_due:
                self._keep(begun.snapshot())
        return deliveries

    def note(self, deliveries: Deliveries, window: InWindow) -> None:
        """Keep a snapshot, as one is due; after the first batch only prepare for the next ones.

        Args:
            deliveries: Of the epoch whose consumer calls this.
            window: Of that epoch.
        """
        now, first = deliveries.latest, not deliveries.due
        deliveries.due = now + SNAPSHOT_SECONDS
        if first:
            deliveries.first_seconds = deliveries.loading_seconds - deliveries.earlier_seconds
            return
        moment = window.moment()
        deliveries.seen += moment[1]
        deliveries.seen_done += moment[2]
        with self._lock:
            snapshot = self._read(now, moment).snapshot()
            if deliveries is self.last:
                self._recent.append((snapshot, deliveries.in_next.copy()))
            if now >= self._history_due:
                self._keep(snapshot)

    def copied(self, seconds: float) -> None:
        """Count the time that giving a batch to a device took."""
        with self._lock:
            self._copy_seconds += seconds

    def total(self) -> Totals:
        """Add up the counters of all threads and epochs, also of those that have ended."""
        sums = self.snapshot()
        return Totals(
            batches=sums.batches,
            tickets=sums.tickets,
            samples=sums.samples,
            fetch_seconds=sums.fetch_seconds,
            collate_seconds=sums.write_seconds + sums.collate_seconds,
            wait_seconds=sums.wait_seconds,
            write_seconds=sums.write_seconds,
            copy_seconds=sums.copy_seconds,
            inline_seconds=sums.inline_seconds,
            loading_seconds=sums.loading_seconds,
            nbytes=sums.nbytes,
        )

    def snapshot(
        self, now: float | None = None, moment: tuple[int, int, int] = (0, 0, 0)
    ) -> Snapshot:
        """Return all that was counted so far.

        Args:
            now: On the clock; None for the present.
            moment: As `InWindow.moment` returned it.
        """
        with self._lock:
            reading = self._read(perf_counter() if now is None else now, moment)
        return reading.snapshot()

    def history(self, moment: tuple[int, int, int] = (0, 0, 0)) -> list[Snapshot]:
        """Return what was counted in the course of all epochs, oldest first, and the present.

        There are some hundred snapshots at the most, a second or more apart.

        Args:
            moment: As `InWindow.moment` returned it.
        """
        now = self.snapshot(moment=moment)
        with self._lock:
            return [*self._history, now]

    def epoch(self) -> Span:
        """Return what was counted in the last epoch, until now or until its last batch."""
        last, begun = self.last, self._begun  # unlocked: each read whole
        if last is None or begun is None:
            end = self.snapshot()
            return Span(end, end, ())
        used, since = last.used, last.waits_since  # once each: the epoch goes on meanwhile
        if used is not None:
            end = self.snapshot(last.latest)
            end = end._replace(process_seconds=used[0], read_nbytes=used[1])
        else:
            end = self.snapshot()
            if since:
                waited = max(0.0, end.at - since)
                end = end._replace(
                    wait_seconds=end.wait_seconds + waited,
                    loading_seconds=end.loading_seconds + waited,
                )
        first = last.first_seconds, last.start_seconds
        return Span(begun.snapshot(), end, last.in_next.copy(), *first)

    def recent(self) -> Span:
        """Return what was counted in the last seconds; while there are few, all of the epoch."""
        span = self.epoch()
        with self._lock:
            recent = list(self._recent)
        if len(recent) < RECENT:
            return span
        before, in_next = recent[0]
        earlier = in_next or [0] * len(span.in_next)
        return Span(before, span.after, list(map(sub, span.in_next, earlier)))

    def busy(self) -> list[Counters]:
        """Return the counters of the threads that have a task now, longest first."""
        with self._lock:
            counters = list(self._open)
        return sorted(filter(_is_busy, counters), key=_task_began)

    def _keep(self, snapshot: Snapshot) -> None:
        """Append to the history.  Call with ``_lock`` held."""
        if len(self._history) >= MOST_SNAPSHOTS:
            self._history = self._history[::2]
            self._every *= 2
        self._history.append(snapshot)
        self._history_due = snapshot.at + self._every

    def _read(self, now: float, moment: tuple[int, int, int], old: float = 0.0) -> Reading:
        """Read all counters.  Call with ``_lock`` held.

        Args:
            now: On the clock.
            moment: As `InWindow.moment` returned it.
            old: Seconds; what the process has used need not be newer.
        """
        if now >= self._used_at + old:
            self._used, self._used_at = process_use(), now
        return Reading(
            now,
            self.epochs,
            moment,
            list(map(_DELIVERED, self._deliveries)),
            list(map(COUNTED, map(_CALLING, self._deliveries))),
            [self._retired, *map(COUNTED, self._open)],
            self._copy_seconds,
            self._used,
        )


def _has_ended(deliveries: Deliveries) -> bool:
    return deliveries.ended


def _is_busy(counters: Counters) -> bool:
    return counters.task is not None


def _task_began(counters: Counters) -> float:
    return counters.task_began


def wait_of(bucket: int) -> float:
    """Return the seconds in the middle of a bucket of ``in_next``, to some 9%."""
    return 1e-6 * math.exp2((bucket - 0.5) / STEPS)
