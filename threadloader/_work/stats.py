"""What a loader has counted: the sums over its threads and epochs, now and in the last seconds.

All records are added up when somebody asks, when an epoch begins, and at most once a second in
between, by the consumer.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from threading import Lock, get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from threadloader._work.counters import VALUES, Counters, Deliveries, Sums, process_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


SNAPSHOT_SECONDS = 1.0  # from one snapshot to the next
LONG_SECONDS = 1e-4  # of a call of ``next()``: shorter ones are not sorted by their time
RECENT = 6  # snapshots for the rates of the last seconds

# Records that are still to be added up.
Rows: TypeAlias = list[tuple[Any, ...]]
# Threads that may run, batches that are planned, and those of them done.
Moment: TypeAlias = tuple[int, int, int]


class Stats:
    """Hands out records to worker threads and epochs, and adds them up.

    Invariants, whenever ``_lock`` is not held:
        1. Each open record belongs to one thread that has not called `retire`.

    Threads:
        open, samples, total, snapshot, epoch, recent, busy: shared.
        retire: the worker that owns the record, once, as its last act.
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
        self._ended = Sums()  # of threads that ended; and of copying
        self._deliveries: list[Deliveries] = []  # as many as there were epochs at once
        self._begun: Rows = []  # when the last epoch began; replaced whole
        self._recent: deque[Sums] = deque(maxlen=RECENT)

    def open(self, number: int | None = None) -> Counters:
        """Return a record for a new thread, which calls this.

        Args:
            number: Of the worker.
        """
        counters = Counters(thread=get_ident(), number=number)
        with self._lock:
            self._open.append(counters)
        return counters

    def retire(self, counters: Counters) -> None:
        """Fold the record of a thread that ends into the sums."""
        with self._lock:
            self._open.remove(counters)
            self._ended = _added([VALUES(self._ended), VALUES(counters)])

    def begin_epoch(self) -> Deliveries:
        """Return what counts the deliveries of an epoch that begins.

        A small epoch takes 200 us, so nothing is added up here that can be later.
        """
        now = perf_counter()
        with self._lock:
            deliveries = next(filter(_HAS_ENDED, self._deliveries), None)
            if deliveries is None:
                deliveries = Deliveries()
                self._deliveries.append(deliveries)
            self._begun = self._read(now)
            self.epochs += 1
            deliveries.begin(now)
            self.last = deliveries
            self._recent.clear()
        return deliveries

    @property
    def latest(self) -> float:
        """When the epoch that began last was given its last batch, on the clock; 0 for none."""
        return 0.0 if self.last is None else self.last.latest

    def note(self, counted: Deliveries, seconds: float, moment: Callable[[], Moment]) -> None:
        """Note the end of a call of ``next()`` that took long, or ended when a snapshot was due.

        Args:
            counted: Of the epoch whose consumer calls this.
            seconds: That it took.
            moment: Tells how its window is.
        """
        now, due = counted.latest, counted.due
        if due and seconds >= LONG_SECONDS:
            counted.took_long(seconds)
        if now < due:
            return
        counted.due = now + SNAPSHOT_SECONDS
        if not due:
            counted.first_seconds += seconds
            return
        _, planned, done = moment()
        counted.seen += planned
        counted.seen_done += done
        with self._lock:
            if counted is self.last:
                self._recent.append(_added(self._read(now)))

    def copied(self, seconds: float) -> None:
        """Count the time that giving a batch to a device took."""
        with self._lock:
            self._ended.copy_seconds += seconds

    def samples(self) -> int:
        """Return how many samples were made, by all threads."""
        with self._lock:
            records = (self._ended, *self._deliveries, *self._open)
            return sum(each.samples for each in records)

    def total(self) -> Sums:
        """Return the sums over all threads and epochs; collating is with writing here."""
        sums = self.snapshot()
        sums.collate_seconds += sums.write_seconds
        return sums

    def snapshot(self, now: float | None = None, used: tuple[float, int] | None = None) -> Sums:
        """Return all that was counted so far.

        Args:
            now: On the clock; None for the present.
            used: As `process_use` has returned it; None to ask.
        """
        with self._lock:
            return _added(self._read(perf_counter() if now is None else now, used))

    def epoch(self) -> tuple[Sums, Sums]:
        """Return what was counted before the last epoch, and by now or by its last batch."""
        last, begun = self.last, self._begun  # unlocked: each read whole
        if last is None:
            return (end := self.snapshot()), end
        used, since = last.used, last.waits_since  # once each: the epoch goes on meanwhile
        end = self.snapshot(None if used is None else last.latest, used=used)
        if since and used is None:
            waited = max(0.0, end.seconds - since)
            end.wait_seconds += waited
            end.loading_seconds += waited
        return _added(begun), end

    def recent(self) -> tuple[Sums, Sums]:
        """Return the same of the last seconds; while there are few, of all of the epoch."""
        before, after = self.epoch()
        with self._lock:
            recent = list(self._recent)
        return (before if len(recent) < RECENT else recent[0]), after

    def busy(self) -> list[Counters]:
        """Return the records of the threads that have a task now, longest first."""
        with self._lock:
            counters = list(self._open)
        busy = [each for each in counters if each.task is not None]
        return sorted(busy, key=attrgetter("task_began"))

    def _read(self, now: float, used: tuple[float, int] | None = None) -> Rows:
        """Read all records; for the arguments see `snapshot`.  Call with ``_lock`` held."""
        inline = sum(each.busy_seconds for each in self._deliveries)
        here = Sums(now, 0, *(used or process_use()), inline_seconds=inline)
        return list(map(VALUES, (here, self._ended, *self._deliveries, *self._open)))


_HAS_ENDED = attrgetter("ended")


def _added(rows: Iterable[tuple[Any, ...]]) -> Sums:
    return Sums(*map(sum, zip(*rows, strict=True)))
