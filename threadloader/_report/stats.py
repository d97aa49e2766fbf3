"""What is counted: a record for each thread, and the sums over all of them, now and of late.

Nobody but its thread writes a record: a counter that all threads write would be the most contended
object of a free-threaded process.  `Stats` adds the records up when somebody asks, when an epoch
begins, and at most once a second in between, by the consumer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from operator import attrgetter
from threading import RLock, get_ident
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from threadloader._threads.machine import run_delay
from threadloader._threads.tuner import gil_is_enabled

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from threadloader._threads.pool import ThreadGroup


TIMING_SECONDS = 0.02  # from one job of a thread that is measured to the next, in the mean
GOLDEN = 0.618034  # its multiples, without their whole parts, fill the numbers from 0 to 1 evenly
STEPS = 4  # buckets from one power of two to the next, for the percentiles of waits
DIGIT = 32  # bits of a bucket's count
BLOCK_NBYTES = 512  # bytes of what the system counts as read from storage; see getrusage(2)


@dataclass(slots=True, eq=False, repr=False)
class Sums:
    """What was counted by one thread or by all, up to a moment or between two."""

    seconds: float = 0.0  # on the clock; between two moments: how long that was
    threads: int = 0  # that may run samples at once; of an `Interval` alone
    process_seconds: float = 0.0  # CPU time of the whole process
    read_nbytes: int = 0  # bytes that the process read from storage, past the page cache
    # Of threads that make samples:
    tickets: int = 0
    samples: int = 0  # fetched
    fetch_seconds: float = 0.0  # in the dataset
    write_seconds: float = 0.0  # writing samples into their rows
    collate_seconds: float = 0.0  # in the collate function
    inline_seconds: float = 0.0  # of these three: in the calling thread
    timed_seconds: float = 0.0  # fetching and writing in the jobs whose CPU time was measured
    timed_cpu_seconds: float = 0.0  # of that: on a processor
    watched_seconds: float = 0.0  # the jobs whose wait for a core was measured, with the measuring
    watched_delay_seconds: float = 0.0  # of that: ready, without a core (Linux)
    first_use_seconds: float = 0.0  # in samples that loaded data for all workers, on first use
    copy_seconds: float = 0.0  # giving batches to a device
    # Of consumers:
    batches: int = 0  # delivered, errors included
    nbytes: int = 0  # bytes of the batches delivered, as far as that is known
    loading_seconds: float = 0.0  # in ``iter()`` and ``next()``
    first_seconds: float = 0.0  # of that: up to the first batch of an epoch
    start_seconds: float = 0.0  # of that: for starting threads
    wait_seconds: float = 0.0  # of ``loading_seconds``: for workers
    late_seconds: float = 0.0  # of that: after the batch was done
    copy_wait_seconds: float = 0.0  # of that: for batches that were done and not copied
    rank_wait_seconds: float = 0.0  # of ``loading_seconds``: for other ranks
    waits: int = 0  # batches that workers had not done when they were asked for
    seen: int = 0  # batches that were planned, each time that was looked at, once a second
    seen_done: int = 0  # of them that were done
    # How many calls of ``next()`` took long, by the bucket of their time.  The counts are digits of
    # one number: so they are read at one go, and added up as all the others.
    in_next: int = 0

    @property
    def busy_seconds(self) -> float:
        """Seconds in which threads made samples and batches, all together."""
        return self.fetch_seconds + self.write_seconds + self.collate_seconds


# All of it, in that order.  Without a lock: each is one attribute load, atomic on both builds.
VALUES: Callable[[Sums], tuple[Any, ...]] = attrgetter(*(each.name for each in fields(Sums)))


class JobTiming(NamedTuple):
    """What is known as a job begins that is measured; None for what is not asked."""

    asked: float  # when ``delay`` was about to be asked for, on the clock
    delay: float | None  # seconds in which the thread waited for a core, so far
    cpu: float | None  # its CPU time, in seconds
    began: float  # on the clock


@dataclass(slots=True, eq=False, repr=False)
class Counters(Sums):
    """The work of one thread.  That thread alone writes it; any thread reads it."""

    timing_due: float = 0.0  # on the clock: the next job after it is measured
    measured: int = 0  # jobs
    thread: int = 0  # its identifier
    number: int | None = None  # of the worker; None for the calling thread
    task: Any = None  # the ticket or batch that it is in, or the name of a function; None for none
    task_began: float = 0.0  # on the clock

    def begin_timing(self) -> JobTiming:
        """Return what `timed` takes, for a job that begins; call it if ``timing_due`` has come.

        To ask for CPU time takes half a microsecond, and for the wait for a core some 10 us, which
        short jobs would notice.  So one job is measured, and then no other that begins in the next
        20 ms or so.  How long a job takes has no part in that choice, so the shares of CPU time and
        waiting in these jobs are those in all.

        To ask for the wait reads a file, and gives the GIL away for that.  Where threads compute it
        comes back 5 ms later, and stays for 5 ms, so a short job waits for it longer than ever, or
        never.  So with a GIL one job is asked for its wait, and the next one for its CPU time; the
        first one for both, as there may be no other.
        """
        asked, takes_turns = perf_counter(), gil_is_enabled()
        delay = None if takes_turns and self.measured % 2 else run_delay()
        cpu = None if takes_turns and self.measured and not self.measured % 2 else thread_time()
        return JobTiming(asked, delay, cpu, perf_counter())

    def timed(self, now: float, begun: JobTiming) -> None:
        """Count a job that was measured.

        Args:
            now: When it ended, on the clock.
            begun: As `begin_timing` returned it.
        """
        if begun.cpu is not None:
            self.timed_cpu_seconds += thread_time() - begun.cpu
            self.timed_seconds += now - begun.began
        if begun.delay is not None:
            self.watched_delay_seconds += run_delay() - begun.delay
            self.watched_seconds += perf_counter() - begun.asked
        self.measured += 1
        # Not evenly: threads that take turns do so every 5 ms.
        self.timing_due = now + TIMING_SECONDS * (0.5 + GOLDEN * self.measured % 1.0)


@dataclass(slots=True, eq=False, repr=False)
class Deliveries(Counters):
    """What the consumer of an epoch was given, what it waited for, and what it made itself.

    When the epoch has ended, another one goes on with it.

    Threads:
        begin: planner.
        all else but end: consumer, in its turn.
    """

    used: tuple[float, int] | None = None  # as `process_use`, at the end; None before that
    waits_since: float = 0.0  # when the present wait for workers began, on the clock; 0 for none
    began: float = 0.0  # on the clock
    latest: float = 0.0  # when a batch was delivered last, on the clock
    due: float = 0.0  # on the clock: of a snapshot; 0 before the first batch
    longest_seconds: float = 0.0  # of a call of ``next()`` after the first

    def begin(self, now: float) -> None:
        """Begin an epoch, whose numbers are added to those of earlier ones.

        Args:
            now: On the clock.
        """
        self.used = None
        self.began = self.latest = now
        self.waits_since = self.due = self.longest_seconds = 0.0

    def end(self) -> None:
        """Note that no batch comes any more; a finalizer may call this, inside any lock."""
        self.used = process_use()

    def started(self, groups: Iterable[ThreadGroup[Any]] = ()) -> None:
        """Note the end of ``iter()``, which has started these threads, if they were not before."""
        self.latest = perf_counter()
        seconds = self.latest - self.began
        self.loading_seconds += seconds
        self.first_seconds += seconds
        for group in groups:
            self.start_seconds += group.start_seconds
            group.start_seconds = 0.0

    def took_long(self, seconds: float) -> None:
        """Note the time of a call of ``next()``, after the first one."""
        self.longest_seconds = max(seconds, self.longest_seconds)
        self.in_next += 1 << DIGIT * int((1e6 * seconds) ** STEPS).bit_length()

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


def process_use() -> tuple[float, int]:
    """Return the seconds of all threads on processors, and the bytes read past the page cache."""
    seconds, nbytes = 0.0, 0
    if resource is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds, nbytes = used.ru_utime + used.ru_stime, BLOCK_NBYTES * used.ru_inblock
    return seconds or process_time(), nbytes


def no_cache() -> None:
    """Stand for what a dataset without caches has."""


SNAPSHOT_SECONDS = 1.0  # from one snapshot to the next
LONG_SECONDS = 1e-4  # of a call of ``next()``: shorter ones are not sorted by their time
RECENT = 6  # snapshots for the rates of the last seconds

# Records that are still to be added up.
Rows: TypeAlias = list[tuple[Any, ...]]
# Threads that may run, batches that are planned, and those of them done.
Moment: TypeAlias = tuple[int, int, int]


class Stats:
    """Hands out records to worker threads and epochs, and adds them up.

    Args:
        use: Returns what the `Cached` in the dataset has; None where there is none.

    Invariants, whenever ``_lock`` is not held:
        1. Each open record belongs to one thread that has not called `retire`.

    Threads:
        open, samples, total, snapshot, epoch, recent, busy: shared.
        retire: the worker that owns the record, once, as its last act.
        begin_epoch: planner.
        note: consumer.
        copied: copier, or the consumer.
    """

    def __init__(self, use: Callable[[], Any] = no_cache) -> None:
        self.cache_use = use
        # Of the epoch that began last; replaced whole.
        self.last: Deliveries | None = None
        self.told = False  # whether the consumer was told what it waits for; read and written whole
        self.epochs = 0  # that were begun; read whole
        self._made = perf_counter()
        self._lock = RLock()  # re-entrant for a signal handler that asks for a report
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
            ended = (each for each in self._deliveries if each.used is not None)
            deliveries = next(ended, None)
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
        """Return the sums since the loader was made; collating is with writing here."""
        sums = self.snapshot()
        sums.seconds -= self._made
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
        """Read all records.  Call with ``_lock`` held.

        Args:
            now: On the clock.
            used: As `process_use` has returned it; None to ask.
        """
        inline = sum(each.busy_seconds for each in self._deliveries)
        here = Sums(now, 0, *(used or process_use()), inline_seconds=inline)
        return list(map(VALUES, (here, *self._deliveries, self._ended, *self._open)))


def _added(rows: Iterable[tuple[Any, ...]]) -> Sums:
    return Sums(*map(sum, zip(*rows, strict=True)))
