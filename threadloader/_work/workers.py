"""The workers of an epoch: each has a thread, its dataset, its identity and its counters.

A map-style dataset has one pool, all of whose threads work on the oldest batch.  Each replica of
an iterable dataset has a pool of one thread, so that it stays in its thread.

The thread that calls ``next()`` is one, too, and makes batches when they are asked for.  Where the
user chose no threads, or left the number to the loader, it loads from the user's own objects, as
torch does in-process.  Where there is a number, it has copies, as any other worker.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.array_rows import arrays_of, is_data
from threadloader._fetch.dataset_copy import copy_function
from threadloader._fetch.failure import hint_of, set_notes, without_stop
from threadloader._fetch.fetcher import Fetcher, ReadSamples
from threadloader._fetch.loaded import changes, give, is_changed, settled, snapshot
from threadloader._fetch.object_copy import Copied
from threadloader._fetch.own_generators import seeded
from threadloader._fetch.parts import attributes
from threadloader._fetch.single_owner import is_shared
from threadloader._lifetime import DROPPED
from threadloader._order.tickets import UNKNOWN_ROWS
from threadloader._rng.isolation import (
    isolated,
    isolated_batch,
    isolated_here,
    redirect_for,
    redirection,
)
from threadloader._rng.streams import Current, WorkerStream
from threadloader._threads.per_thread import close_here
from threadloader._threads.pool import Pool, join
from threadloader._threads.surroundings import Adopting, Surroundings
from threadloader._threads.worker_info import Introduction, introduced
from threadloader._threads.worker_startup import Startup
from threadloader._tuning.tuner import Limits, gil_is_enabled
from threadloader._work.copies import (
    Worker,
    copies_of,
    exchanged,
    named,
    original_of,
    replicas_of,
    shared_parts,
    users_objects,
    warn_of_shared,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Thread

    from threadloader._fetch.fetcher import Cancellable, Fetches
    from threadloader._fetch.loaded import AttributesBefore, Change
    from threadloader._settings import Settings
    from threadloader._threads.pool import Job, ThreadGroup
    from threadloader._tuning.tuner import Tuner
    from threadloader._work.copies import Original
    from threadloader._work.first_samples import FirstSamples
    from threadloader._work.stats import Counters, Stats


# How long a first job runs alone, at the most.  It may load what all others find loaded, a table of
# gigabytes say; but it may also wait for others, and then all must run.  A choice, unmeasured.
FIRST_SECONDS = 30.0
_MEETINGS = (threading.Barrier, threading.Condition, threading.Event, threading.Semaphore)
_PLAIN = frozenset({bool, bytes, float, int, str})


class Workers:
    """Workers, each with its own objects; their threads start when there is work.

    A map-style dataset has one pool for all.  Each replica of an iterable has a thread of its own.
    Where an iterable has a transform, worker 0 reads and the others apply it: it is worker 0 of 1
    for `get_worker_info()`, so that a dataset that shards itself gives all its samples, and the
    others count themselves among all.

    Args:
        settings: Of the loader; with at least one worker.
        base_seed: Of the workers.
        stats: Counts what they do.
        first_samples: Of the loader.
        earlier_readers: Threads that must have ended before a worker begins.

    Attributes:
        pools: The first one has worker 0.
        replicas: Of an iterable, each worker's; none otherwise.
        is_default: Whether the user chose no number of threads: then batches must be those that the
            calling thread would make.
        begins_here: Whether the calling thread makes the first batches.
        tunes: Whether another number of threads may be found than there is.
        num_workers: As workers are told.
        surroundings: One item: what workers adopt of the thread of the latest ``iter()``, such as
            torch's grad mode.  By default it is read when workers take over from that thread.

    Threads:
        begin_again: planner.
        resize, ready, take_over, exchanged: consumer.
        all others: shared.
    """

    def __init__(
        self,
        settings: Settings,
        base_seed: int,
        stats: Stats,
        first_samples: FirstSamples,
        earlier_readers: tuple[Thread, ...] = (),
    ) -> None:
        # Without a transform an unsharded iterable has use for one thread only.
        alone = settings.unsharded and settings.transform is None
        limits = _limits(settings, 1 if alone else settings.num_workers)
        self.tuner = tuner = settings.tuner
        tuner.serve(limits, stats.latest)
        self.first_samples = first_samples
        self.is_default = settings.is_default and not limits.is_fixed
        begins_here = not limits.least and _begins_here(settings, first_samples)
        self.begins_here = begins_here
        # As they are now, and with neither sampler: an epoch that was left leads to no sampler.
        self._settings = settings._replace(sampler=None, batch_sampler=None)
        self._original: list[Original] = []  # what workers copy; empty until it was made
        self._users: AttributesBefore | None = None  # of the objects that kept workers copied
        threads_later = begins_here and self.is_default
        self.surroundings = [] if threads_later else [Surroundings()]
        self.replicas: list[Original] = []
        if settings.iterable:
            self.replicas = replicas_of(settings, limits.threads)
        elif not threads_later:
            self.begins_here |= not self.take_over()
        # Samples that wait for one another need as many threads as the user chose.
        self._meets = any(map(_leads_to_meetings, (*self._original, *self.replicas[:1])))
        self.begins_here &= not self._meets
        self.tunes = limits.least < limits.most and not self._meets
        if not (self.begins_here or tuner.number):
            tuner.leave(0.0)
        if self.is_default and not (self.begins_here and first_samples.begun):
            first_samples.watch(settings.dataset)
        if limits.most > 1 and not (self.is_default or _has_one_reader(settings, limits.threads)):
            originals = self._original or self.replicas
            warn_of_shared(shared_parts(originals[0], settings))
        self._collate_fn = settings.collate_fn
        # Of persistent workers the collate function may be exchanged.
        lasting = settings.persistent_workers or settings.worker_init_fn is not None
        draws = lasting or may_draw(settings)
        if settings.isolate_rng and draws:
            redirection()  # here: see there
        self.num_workers = limits.most
        self.startup = Startup(limits.threads if settings.worker_init_fn is not None else 0)
        setup = _Setup(
            num_workers=limits.most,
            base_seed=base_seed,
            stats=stats,
            tuner=tuner,
            whole_batches=settings.whole_batches,
            first_samples=first_samples,
            loaded=[],
            draws=draws,
            isolates=draws and settings.isolate_rng,
            earlier_readers=earlier_readers,
            surroundings=self.surroundings,
            original=self._original,
            prepared=[(each, _reader(each, settings)) for each in self.replicas],
            startup=self.startup,
        )
        threads = limits.threads if limits.is_fixed else max(1, tuner.number)
        self.pools = self._pools(settings, setup, threads)

    def _pools(self, settings: Settings, setup: _Setup, threads: int) -> list[Pool[Worker]]:
        name, failed, enter = settings.name, self.startup.failed, partial(_enter, setup)
        if not settings.iterable:
            seconds = 0.0 if self._meets else self._alone_seconds(settings)
            first_job = partial(_first_job, setup) if seconds else None
            pool = Pool(
                threads, name, enter, failed=failed, alone_seconds=seconds, first_job=first_job
            )
            return [pool]
        if not _has_one_reader(settings, threads):
            return [Pool(1, name, enter, first=number, failed=failed) for number in range(threads)]
        read = partial(_enter, setup._replace(num_workers=1))
        apply = partial(_enter, setup._replace(earlier_readers=()))
        return [
            Pool(1, name, read, failed=failed),
            Pool(threads - 1, name, apply, first=1, failed=failed),
        ]

    def _alone_seconds(self, settings: Settings) -> float:
        """Return for how long the first sample may run alone; 0 where there is no use in it.

        The user's limit should not be used up by it.
        """
        if self.first_samples.loads_nothing or settings.dataset_copy == "shared":
            return 0.0
        return min(FIRST_SECONDS, settings.timeout / 3) if settings.timeout else FIRST_SECONDS

    def begin_again(self, latest: float) -> None:
        """Begin one more epoch with the same threads, for the thread that calls this.

        Args:
            latest: When the epoch before has given its last batch, on the clock.
        """
        self._surround()
        self.tuner.leave_out(perf_counter() - latest)

    def _surround(self) -> None:
        """Let workers begin in the context of this thread as it is now."""
        self.surroundings[:] = [Surroundings()]

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called; stale as soon as it is read."""
        return any(pool.stopped for pool in self.pools)

    @property
    def original(self) -> Original:
        """What workers copy; after `take_over`."""
        return self._original[0]

    def take_over(self) -> bool:
        """Copy the user's objects for the workers, as they are now, unless that was done.

        Returns:
            False where batches must be those that the calling thread would make, and workers would
            share something: it makes all of them then.
        """
        if not self.surroundings:
            self._surround()
        if self._original or self.replicas:
            return True
        opened = self.first_samples.opened
        original = original_of(self._settings, opened)
        if self.is_default and (shared := shared_parts(original, self._settings)):
            self.first_samples.stay_shared(named(shared))
            return False
        self._original.append(original)
        self._watch(original)
        self.tuner.bound([change.name for change in opened if change.is_handle])
        return True

    def _watch(self, original: Original) -> None:
        """Note the attributes of the user's objects, of which workers that are kept have copies."""
        if self._settings.persistent_workers:
            self._users = snapshot(users_objects(original, self._settings), originals=True)

    @property
    def is_outdated(self) -> bool:
        """Whether the user has set something since on the objects that were copied."""
        return self._users is not None and is_changed(self._users)

    def resize(self, threads: int) -> None:
        """Let so many threads make samples, at least 1; of a map-style dataset."""
        try:
            self.pools[0].resize(threads)
        except RuntimeError as error:
            if self.stopped:
                raise
            most = max(1, len(self.pools[0].threads))
            self.tuner.cannot_exceed(most, f"no more can be started: {error!r}")
            self.pools[0].resize(most)

    def exchanged(self, settings: Settings) -> Original | None:
        """Return what workers copy of a collate function, if it was exchanged since they began."""
        given, before = settings.collate_fn, self._collate_fn
        # A bound method is another object each time; other objects may be equal and not the same.
        if given is before or (type(given) is MethodType and given == before):
            return None
        return exchanged(settings)

    def ready(self, timeout: float | None, epoch: Cancellable) -> bool:
        """Wait until all workers have run ``worker_init_fn``; return False if that takes too long.

        Args:
            timeout: Seconds; None waits for ever.
            epoch: If it is cancelled meanwhile, and `nudge` is called, the wait ends.

        Raises:
            BaseException: The error of the worker with the lowest number; all threads end then.
        """
        if self.startup.awaited and not self.startup.wait(timeout, epoch):
            return False
        error = None if epoch.cancelled else self.take_error()
        if error is not None:
            raise error
        return True

    def start(self) -> None:
        """Start all threads now, if they have ``worker_init_fn`` to call before a first batch."""
        if self.startup.awaited:
            for pool in self.pools:
                pool.start()

    def take_error(self) -> BaseException | None:
        """Return the error of a worker that could not begin; all threads end then."""
        error = self.startup.take_error()
        if error is not None:
            self.stop()
        return error

    def stop(self) -> None:
        """Let every thread end after its running job; return at once."""
        for pool in self.pools:
            pool.stop()

    def nudge(self) -> None:
        """Let a thread that waits in `ready` see whether the epoch was cancelled."""
        if self.startup.awaited:
            self.startup.nudge()

    def find_lost(self) -> None:
        """Cancel the epochs of threads that have ended before they could run."""
        for pool in self.pools:
            pool.find_lost()

    def wake(self) -> None:
        """Let idle threads drop jobs that were cancelled."""
        for pool in self.pools:
            pool.wake()

    @property
    def thread_groups(self) -> list[ThreadGroup[Worker]]:
        """The threads, which outlive the pools when these are dropped."""
        return [pool.thread_group for pool in self.pools]

    def join(self) -> None:
        """Wait until all threads have ended, or for none if called in one; call `stop` first."""
        join(self.thread_groups)


class _Setup(NamedTuple):
    """What the threads of all workers need from their beginning to their end."""

    num_workers: int  # that there may be
    base_seed: int
    stats: Stats
    tuner: Tuner
    whole_batches: bool
    first_samples: FirstSamples
    # What the first sample has set on the copies of its worker, that worker's counters, and its
    # samples by then.
    loaded: list[tuple[list[Change], Counters, int]]
    draws: bool  # whether code may run that draws random numbers
    isolates: bool  # and draws from streams of the samples
    earlier_readers: tuple[Thread, ...]  # must have ended before a worker begins
    surroundings: list[Surroundings]  # see `Workers`
    original: list[Original]  # its one item is what workers copy
    prepared: list[tuple[Original, Fetches]]  # or each worker's replica, made at ``iter()``
    startup: Startup


def _limits(settings: Settings, num_workers: int) -> Limits:
    """Return how many threads may make the batches.

    That is at most the user's number; or else the cores, or more where more copies of the dataset
    take no more memory.  The calling thread may, unless there is something for which there must be
    threads.
    """
    # Asked now: an extension may have switched the GIL on.
    has_gil = gil_is_enabled()
    if settings.iterable:
        return Limits(num_workers, num_workers, has_gil, least=num_workers)
    least = int(settings.needs_threads)
    if not settings.tunes_threads:
        return Limits(num_workers, num_workers, has_gil, least)
    num_workers = min(num_workers, settings.max_threads)
    cheap = settings.dataset_copy in ("auto", "shared") and settings.worker_init_fn is None
    return Limits(num_workers, settings.max_threads if cheap else num_workers, has_gil, least)


def _leads_to_meetings(original: Original) -> bool:
    """Whether samples may meet at an object that a dataset leads to."""
    own = (twin for _, twin in original.copied.values())
    return any(isinstance(part, _MEETINGS) for twin in own for _, part, _ in attributes(twin))


def _begins_here(settings: Settings, first_samples: FirstSamples) -> bool:
    """Whether the calling thread makes batches, at least the first ones.

    So it does as long as a batch costs less than handing it over, or threads were found to be
    slower: none is started.  So it does in an epoch that ends sooner than threads begin; and, if
    the user chose no number of threads, where samples need the user's own objects, or may.
    """
    if first_samples.in_process:
        return True
    if runs_event_loop():
        return False
    if settings.tuner.tries:
        return not settings.tuner.number
    if settings.tuner.prefers_here or (settings.is_default and not first_samples.leaves):
        return True
    rows = settings.batch_size or getattr(settings.batch_sampler, "batch_size", None)
    unknown = UNKNOWN_ROWS if settings.batched else 1
    rows, size = rows or unknown, settings.ticket_size
    if not (size.seconds or settings.is_default):
        return False
    if not settings.tuner.number and settings.tuner.gains_nothing(size.seconds):
        return True
    return size.is_cheap(rows) or size.is_short(settings.batches, rows)


def runs_event_loop() -> bool:
    """Whether asyncio runs an event loop here: then a sample can't run one, and this one waits."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001  # documented


def may_draw(settings: Settings) -> bool:
    """Whether code of the user's makes samples or batches, and so may draw random numbers.

    It does not where samples are rows of arrays, of a range, or numbers and strings in a list.
    Then random functions are not redirected: that takes longer than a small batch, and in a new
    process 10 ms.
    """
    own = settings.collate_fn is not None and settings.collate_fn is not _torch.default_collate
    if own or not settings.batched or callable(settings.on_error):
        return True
    if settings.iterable or settings.whole_batches or _torch.is_extended():
        return True
    dataset = settings.dataset
    kind = type(dataset)
    if kind is list or kind is tuple:
        return not dataset or type(dataset[0]) not in _PLAIN
    return kind is not range and not (arrays_of(dataset) is not None and is_data(dataset))


def _has_one_reader(settings: Settings, threads: int) -> bool:
    """Whether one worker reads an iterable, and the others apply the transform."""
    return settings.transform is not None and threads > 1


def _reader(own: Original, settings: Settings) -> Fetches:
    """Return what gives a worker samples of an iterable, which were read."""
    transform = copy_function(settings.transform, own.how, own.copied, "transform")
    return ReadSamples(own.dataset, transform, own.copied)


def _first_job(setup: _Setup, job: Job[Worker], worker: Worker) -> bool:
    """Run the first job of a worker, with what the first one of all has loaded.

    That one runs alone; so does one more where it has loaded something, which shows whether that is
    data that nobody writes.  What it has opened each worker opens for itself, and then more threads
    than twice the cores are a choice for the user.
    """
    copied, worker.copied = worker.copied or Copied(), None
    counters = worker.counters
    try:
        if setup.loaded:
            found, first, then = setup.loaded[0]
            if first.samples > then:  # otherwise nobody knows whether the next one writes it
                give(settled(found), copied)
            job(worker)
            return False
        before, started = snapshot(copied), perf_counter()
        job(worker)
        loaded = changes(before)
        setup.loaded.append((loaded, counters, counters.samples))
        data = any(change.is_data for change in loaded)
        if data:
            counters.first_use_seconds += perf_counter() - started
        setup.first_samples.loads_nothing = not (data or any(each.is_handle for each in loaded))
        setup.first_samples.open_once |= any(is_shared(change.value) for change in loaded)
        setup.tuner.bound([change.name for change in loaded if change.is_handle])
        return data
    finally:
        setup = job = copied = before = loaded = found = DROPPED  # an error keeps this frame


@contextmanager
def _enter(setup: _Setup, number: int) -> Iterator[Worker]:
    """The context of a worker thread's setup."""
    own = fetcher = None
    counters = setup.stats.open(number)
    try:
        for thread in setup.earlier_readers:
            if thread.is_alive():  # one that comes to life only now was stopped, and reads nothing
                thread.join()
        _torch.use_threads(1)
        if setup.prepared:
            own, fetcher = setup.prepared[number]
        else:
            own = copies_of(setup.original[0])
            whole = setup.whole_batches
            fetcher = Fetcher(own.dataset, whole_batches=whole, copied=own.copied)
        stream = WorkerStream(setup.base_seed, number) if setup.draws else None
        rng = Current() if stream is None or setup.isolates else stream
        with (
            Adopting(setup.surroundings) as adopt,
            isolated(stream if setup.isolates else None),
            introduced(number, setup.num_workers, setup.base_seed, own.dataset, rng),
        ):
            if setup.startup.awaited:
                counters.task, counters.task_began = "worker_init_fn", perf_counter()
                error = _error_of(own.init_fn, number)
                counters.task = None
                setup.startup.begun(number, error)
                error = DROPPED
            yield Worker(
                number, f"worker {number}", counters, fetcher, own.copied, own.collate_fn, adopt
            )
    finally:
        # A thread's end would do it, too, but by then it has neither a name nor storage.
        close_here()
        setup.stats.retire(counters)
        # An error of init_fn keeps this frame, too.
        own = fetcher = setup = DROPPED


def _error_of(init_fn: Any, number: int) -> BaseException | None:
    """Call a ``worker_init_fn``; return what it raises."""
    try:
        init_fn(number)
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
        hint = hint_of(error)
        set_notes(error, (f"in worker_init_fn of worker {number}", *([hint] if hint else ())))
        return without_stop(error, "worker_init_fn")
    finally:
        init_fn = DROPPED
    return None


PLACE = "the calling thread"


class CallingThread:
    """Calls the user's code in the consumer's thread.

    Args:
        settings: Of the loader.
        workers: The other threads; None for none.
        base_seed: Of the workers.
        counters: Of this thread.
        isolates: Whether samples draw from streams of their own.

    Threads:
        call: consumer.
        end: shared.
    """

    def __init__(
        self,
        settings: Settings,
        workers: Workers | None,
        base_seed: int,
        counters: Counters,
        *,
        isolates: bool,
    ) -> None:
        self._settings = settings._replace(sampler=None, batch_sampler=None)
        self._workers = workers
        self._base_seed = base_seed
        self._counters = counters
        self._isolated = isolated_here if settings.iterable else isolated_batch
        # Not at iter(), where threads make all batches.
        self._worker: Worker | None = None
        self._introduction: Introduction | None = None
        # As long as the stream lives, random functions are redirected.
        self._stream: WorkerStream | None = None
        self._isolates = isolates
        self._end: Callable[[], object] = lambda: None

    @property
    def worker(self) -> Worker:
        """The worker that the thread is, made at the first call."""
        if self._worker is None:
            self._worker = self._make()
        return self._worker

    def _make(self) -> Worker:
        settings, workers = self._settings, self._workers
        if self._isolates:
            self._stream = WorkerStream(self._base_seed, 0)
            self._end = redirect_for(self._stream)
        if settings.iterable:
            samples = ReadSamples(settings.dataset, settings.transform)
            return Worker(0, PLACE, self._counters, samples)
        dataset, copied, collate_fn = settings.dataset, None, seeded(settings.collate_fn, None)
        if collate_fn is settings.collate_fn:
            collate_fn = None
        if workers is not None and not workers.is_default:
            own = copies_of(workers.original)
            dataset, copied, collate_fn = own.dataset, own.copied, own.collate_fn
        if workers is not None:  # a worker like others; the only one in the process is none
            rng = Current() if self._isolates else WorkerStream(self._base_seed, 0)
            self._introduction = Introduction(0, workers.num_workers, self._base_seed, dataset, rng)
        fetcher = Fetcher(dataset, whole_batches=settings.whole_batches, copied=copied)
        return Worker(0, PLACE, self._counters, fetcher, copied, collate_fn)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the worker that the thread is, and others arguments."""
        try:
            worker = self.worker
            introduction, isolated = self._introduction, self._isolated
            if introduction is None:
                return isolated(self._stream, function, worker, *args)
            return introduction.call(isolated, self._stream, function, worker, *args)
        finally:
            self = worker = introduction = function = DROPPED  # an error keeps this frame
            args = ()

    def end(self) -> None:
        """Redirect random functions no longer."""
        self._end()
