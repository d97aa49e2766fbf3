"""The workers of an epoch: each has a thread, its dataset, its identity and its counters.

A map-style dataset has one pool, all of whose threads work on the oldest batch.  Each replica of
an iterable dataset has a pool of one thread, so that it stays in its thread.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.array_rows import is_data
from threadloader._fetch.dataset_copy import Copied
from threadloader._fetch.failure import set_notes, without_stop
from threadloader._fetch.fetcher import Fetcher
from threadloader._fetch.kinds import attributes
from threadloader._fetch.loaded import changes, give, settled, snapshot
from threadloader._fetch.named_objects import shared_by_name
from threadloader._fetch.single_owner import is_shared
from threadloader._fetch.thread_hints import hint_of
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.known_samplers import is_known
from threadloader._order.window import UNKNOWN_ROWS
from threadloader._rng.isolation import isolated, redirection
from threadloader._rng.streams import Current, WorkerStream
from threadloader._threads import thread_group
from threadloader._threads.advice import Range
from threadloader._threads.concurrency import gil_is_enabled
from threadloader._threads.per_thread import close_here
from threadloader._threads.pool import Pool
from threadloader._threads.surroundings import Adopting, Surroundings
from threadloader._threads.thread_group import join
from threadloader._threads.worker_info import introduced
from threadloader._threads.worker_startup import Startup
from threadloader._work.open_batch import Worker
from threadloader._work.worker_copies import (
    CollateFns,
    Original,
    Originals,
    collate_fns_of,
    copied_again,
    fetchers_of,
    has_one_reader,
    leave_unopened,
    named,
    replicas_of,
    warn_of_shared,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from threading import Thread

    from threadloader._fetch.dataset_copy import DatasetCopy
    from threadloader._fetch.fetcher import Cancellable, Fetches
    from threadloader._fetch.loaded import Change
    from threadloader._order.tickets import TicketSize
    from threadloader._settings import Settings
    from threadloader._threads.concurrency import Concurrency
    from threadloader._threads.thread_group import Job, ThreadGroup
    from threadloader._work.counters import Counters
    from threadloader._work.first_samples import FirstSamples
    from threadloader._work.open_batch import PerWorker
    from threadloader._work.stats import Stats

__all__ = ["Workers", "make_workers", "may_draw", "runs_event_loop"]

_MEETINGS = (threading.Barrier, threading.Condition, threading.Event, threading.Semaphore)
_PLAIN = frozenset({bool, bytes, float, int, str})


class Workers(NamedTuple):
    """Pools that start, stop and end together, and what their workers fetch from."""

    pools: list[Pool[Worker]]
    fetchers: list[Fetches]  # one a worker
    startup: Startup
    collate_fn: Any  # the user's
    collate_fns: list[Any]  # each worker's copy of it; None for that itself
    copied: list[Copied]  # see `_WorkerSetup`
    concurrency: Concurrency
    copies_again: dict[int, bool]  # see `_WorkerSetup`
    originals: Originals | None  # what workers that are started later copy; None if none may be
    whole_batches: bool
    begins_inline: bool  # whether the calling thread makes the first batches
    num_workers: int  # as they are told
    first_samples: FirstSamples
    is_default: bool  # whether batches must be those that the calling thread would make
    surroundings: list[Surroundings]  # the one item is of the thread of the latest `iter`

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called; stale as soon as it is read."""
        return any(pool.stopped for pool in self.pools)

    def can_copy(self) -> bool:
        """Whether there are copies of all that samples need; if not, the calling thread stays."""
        if self.originals is None or not self.begins_inline:
            return True
        shared = self.originals.shared()
        if shared:
            self.first_samples.stay_shared(named(shared))
            self.originals.made = None  # with what it has opened
        return not shared

    def take_over(self) -> bool:
        """Copy the user's objects for the threads, as they are after the calling thread used them.

        Returns:
            Whether that is done now, or was done before, in this epoch.
        """
        if self.originals is None or not self.begins_inline:
            return True
        if self.originals.taken:
            return False
        self.originals.taken = True
        copies = original = self.originals.get()
        with suppress(Exception):  # a class that can be copied so often only
            copies = copied_again(original)
        opened = self.originals.opened
        self.concurrency.bound([change.name for change in opened if change.is_handle])
        self.copied[0] = copies.copied
        self.collate_fns[0] = copies.collate_fn
        self.fetchers[0] = _fetcher(copies, whole_batches=self.whole_batches)
        return True

    def collate_fns_for(self, settings: Settings) -> PerWorker:
        """Return each worker's copy of the collate function of an epoch, by its number.

        If it was exchanged since these workers were made, it is copied now.
        """
        if settings.collate_fn is self.collate_fn:
            return self.collate_fns
        for number in range(len(self.fetchers)):
            self.copies_again.setdefault(number, False)  # what is copied now goes with its dataset
        original = None if self.originals is None else self.originals.get()
        return CollateFns(settings, self.fetchers, original)

    def ready(self, timeout: float | None, epoch: Cancellable) -> bool:
        """Wait until all workers have run ``worker_init_fn``; return False if that takes too long.

        Args:
            timeout: Seconds; None waits for ever.
            epoch: If it is cancelled meanwhile, and `nudge` is called, the wait ends.

        Raises:
            BaseException: The error of the worker with the lowest number; all threads end then.
        """
        error = None
        try:
            if self.startup.awaited and not self.startup.wait(timeout, epoch):
                return False
            error = None if epoch.cancelled else self.take_error()
            if error is not None:
                raise error
            return True
        finally:
            self = error = epoch = DROPPED  # this frame stays with the error

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


class _WorkerSetup(NamedTuple):
    """What the threads of all workers need from their beginning to their end."""

    num_workers: int  # that there may be
    base_seed: int
    stats: Stats
    concurrency: Concurrency
    cores: int
    ticket_size: TicketSize
    first_samples: FirstSamples
    # What the first sample has set on the copies of its worker, that worker's counters, and its
    # samples by then.
    loaded: list[tuple[list[Change], Counters, int]]
    draws: bool  # whether code may run that draws random numbers
    isolated: bool  # and draws from the worker's stream
    earlier_readers: tuple[Thread, ...]  # must have ended before a worker begins
    surroundings: list[Surroundings]  # see `Workers`
    whole_batches: bool
    fetchers: list[Fetches]  # one a worker
    init_fns: list[Any]  # the same; each worker's ``worker_init_fn``
    collate_fns: list[Any]  # the same; see `Workers`
    copied: list[Copied]  # the same; from the user's objects to the worker's copies of them
    startup: Startup
    # Whether a worker copies its objects again, decided once: by `setdefault`, which is atomic.
    copies_again: dict[int, bool]
    copies_once: bool  # whether none does
    dataset_copy: DatasetCopy
    # Held by a worker that does so, if it copies data, too: there is one copy too many at a time.
    # It is held over the user's ``__deepcopy__``, which must not wait for another worker's.
    copying: AbstractContextManager[object]


def make_workers(
    settings: Settings,
    base_seed: int,
    stats: Stats,
    first_samples: FirstSamples,
    earlier_readers: tuple[Thread, ...] = (),
) -> Workers:
    """Return workers, each with its copy of the dataset; their threads start when there is work.

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
    """
    # Without a transform an unsharded iterable has use for one thread only.
    alone = settings.unsharded and settings.transform is None
    num_workers = 1 if alone else settings.num_workers
    may = _range(settings, num_workers)
    num_workers = may.threads
    settings.concurrency.serve(may)
    is_default = settings.is_default and not may.is_fixed
    begins_inline = is_default and _begins_inline(settings, first_samples)
    if not may.is_fixed:  # as many as were found before; more are started when they have work
        num_workers = 1 if begins_inline else min(num_workers, settings.concurrency.limit)
    own = settings.isolate_rng  # otherwise copies of a generator would all draw the same
    copied = [Copied(own_generators=own) for _ in range(num_workers)]
    if begins_inline:  # copies are made where threads take over
        replicas, collate_fns = [(_torch.unwrapped(settings.dataset), None)], [None]
    else:
        replicas, collate_fns = _copies(settings, first_samples, copied, may)
        if is_default and copied[0].shared:
            first_samples.stay_shared(named(copied[0].shared))
            return make_workers(settings, base_seed, stats, first_samples, earlier_readers)
    if is_default and not (begins_inline and first_samples.begun):
        first_samples.watch(settings.dataset)
    fetchers = fetchers_of(settings, replicas, copied)
    # Of persistent workers the collate function may be exchanged.
    lasting = settings.persistent_workers or settings.worker_init_fn is not None
    draws = lasting or may_draw(settings, fetchers)
    isolated = settings.isolate_rng and draws
    if isolated:
        redirection()  # here: see there
    how = settings.dataset_copy
    again = how in ("auto", "deep") and not settings.iterable and not may.has_gil
    copies_again = {} if again else dict.fromkeys(range(num_workers), False)
    startup = Startup(num_workers if settings.worker_init_fn is not None else 0)
    setup = _WorkerSetup(
        num_workers=num_workers if may.is_fixed else may.most,
        base_seed=base_seed,
        stats=stats,
        concurrency=settings.concurrency,
        cores=may.threads,
        ticket_size=settings.ticket_size,
        first_samples=first_samples,
        loaded=[],
        draws=draws,
        isolated=isolated,
        earlier_readers=earlier_readers,
        surroundings=[Surroundings()],
        whole_batches=settings.whole_batches,
        fetchers=fetchers,
        init_fns=[init_fn for _, init_fn in replicas],
        collate_fns=collate_fns,
        copied=copied,
        startup=startup,
        copies_again=copies_again,
        copies_once=not again,
        dataset_copy=how,
        copying=Lock() if how == "deep" else nullcontext(),
    )
    originals = None if may.is_fixed else Originals(settings, first_samples)
    if originals is not None and not begins_inline:
        originals.get()
    pools = _pools(settings, setup, originals, may)
    return Workers(
        pools,
        fetchers,
        startup,
        settings.collate_fn,
        collate_fns,
        copied,
        settings.concurrency,
        copies_again,
        originals=originals,
        whole_batches=settings.whole_batches,
        begins_inline=begins_inline,
        num_workers=setup.num_workers,
        first_samples=first_samples,
        is_default=is_default,
        surroundings=setup.surroundings,
    )


def _copies(
    settings: Settings, first_samples: FirstSamples, copied: list[Copied], may: Range
) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Return each worker's copies of dataset, ``worker_init_fn`` and ``collate_fn``; name others.

    Args:
        settings: Of the loader.
        first_samples: Of the loader.
        copied: For each worker, is told what was copied.
        may: How many workers there may be.
    """
    replicas = replicas_of(settings, copied)
    collate_fns = collate_fns_of(settings, copied)
    opened = first_samples.opened
    for known in copied:
        leave_unopened(opened, known)
    several = max(len(copied), 1 if settings.iterable else may.most) > 1
    if several and not has_one_reader(settings, len(copied)):
        copied[0].shared += shared_by_name(copied[0], settings.dataset, settings.collate_fn)
        if not settings.is_default or may.is_fixed:
            warn_of_shared(copied[0])
    return replicas, collate_fns


def _begins_inline(settings: Settings, first_samples: FirstSamples) -> bool:
    """Whether the calling thread makes batches, at least the first ones.

    So it does, if the user chose no number of threads, as long as a batch costs less than handing
    it over, or another thread would only take turns with it, or was slower: none is started.  So it
    does in an epoch that ends sooner than threads begin, and where samples need the user's own
    objects, or may.  But how far a sampler is drawn ahead must not depend on what batches cost, as
    it may draw from a random state that the loop draws from, too.
    """
    if first_samples.in_process:
        return True
    if runs_event_loop() or not (is_known(settings.index_sampler) or not settings.draws_ahead):
        return False
    concurrency = settings.concurrency
    preferred = concurrency.inline_choice.preferred or concurrency.consumer_only_waits
    if preferred or not first_samples.leaves:
        return True
    rows = settings.batch_size or getattr(settings.batch_sampler, "batch_size", None)
    unknown = UNKNOWN_ROWS if settings.batched else 1
    rows, size = rows or unknown, settings.ticket_size
    return size.is_cheap(rows) or size.is_short(settings.batches, rows)


def runs_event_loop() -> bool:
    """Whether asyncio runs an event loop here: then a sample can't run one, and this one waits."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001  # documented


def _range(settings: Settings, num_workers: int) -> Range:
    """Return how many threads may run the samples of a map-style dataset.

    It is the user's number; or else the cores, or more where more copies of the dataset take no
    more memory, and there is no ``worker_init_fn``, which is called in all workers at first.
    """
    if settings.tunes_threads:
        num_workers = min(num_workers, settings.max_threads)
    tuned = settings.tunes_threads and not settings.iterable and settings.worker_init_fn is None
    cheap = settings.dataset_copy in ("auto", "shared")
    most = settings.max_threads if tuned and cheap else num_workers
    # Asked now: an extension may have switched the GIL on.
    return Range(num_workers, most, has_gil=gil_is_enabled())


def may_draw(settings: Settings, fetchers: list[Fetches]) -> bool:
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
    if callable(settings.dataset_copy):  # what it returns may be of another kind
        return True
    dataset = settings.dataset
    kind = type(dataset)
    if kind is list or kind is tuple:
        return not dataset or type(dataset[0]) not in _PLAIN
    return kind is not range and not (fetchers[0].gathers and is_data(dataset))


def _pools(
    settings: Settings, setup: _WorkerSetup, originals: Originals | None, may: Range
) -> list[Pool[Worker]]:
    """Return the pools, the first of which has worker 0."""
    name, failed, num_workers = settings.name, setup.startup.failed, len(setup.fetchers)
    enter = partial(_enter, setup)
    if not settings.iterable:
        tried = not may.is_fixed or (num_workers > 1 and may.has_gil)
        concurrency = settings.concurrency if tried else None
        prepare = None if originals is None else partial(_prepare, setup, originals)
        seconds = _alone_seconds(settings, setup)
        first_job = partial(_first_job, setup) if seconds else None
        return [
            Pool(
                num_workers,
                name,
                enter,
                failed=failed,
                concurrency=concurrency,
                most=max(num_workers, may.most),
                prepare=prepare,
                alone_seconds=seconds,
                first_job=first_job,
            )
        ]
    if not has_one_reader(settings, num_workers):
        return [Pool(1, name, enter, first=number, failed=failed) for number in range(num_workers)]
    read = partial(_enter, setup._replace(num_workers=1))
    apply = partial(_enter, setup._replace(earlier_readers=()))
    return [
        Pool(1, name, read, failed=failed),
        Pool(num_workers - 1, name, apply, first=1, failed=failed),
    ]


def _fetcher(copies: Original, *, whole_batches: bool) -> Fetcher:
    return Fetcher(copies.dataset, whole_batches=whole_batches, copied=copies.copied)


def _copy_again(setup: _WorkerSetup, number: int) -> None:
    """Copy a worker's dataset and functions again, in its own thread.

    A free-threaded build counts references to an object without atomic instructions in the thread
    that made it, and only there: with copies that `iter` made, code that is all attributes of
    ``self`` takes an eighth longer (bench: own_copies), and a `dict.get` of a deep copy 25 us.
    `iter` makes copies nevertheless: they are what the dataset was then, and nobody changes them
    before this.
    """
    dataset, init_fn = setup.fetchers[number].dataset, setup.init_fns[number]
    first = Original(dataset, setup.collate_fns[number], setup.dataset_copy, setup.copied[number])
    with suppress(Exception), setup.copying:  # a class that can be copied once only
        again = copied_again(first, init_fn)
        setup.copied[number] = again.copied
        setup.fetchers[number] = _fetcher(again, whole_batches=setup.whole_batches)
        setup.collate_fns[number] = again.collate_fn
        setup.init_fns[number] = again.init_fn


def _prepare(setup: _WorkerSetup, originals: Originals, number: int) -> None:
    """Make the copies of a worker that is started later."""
    copies = None
    try:
        copies = copied_again(originals.get())
        if setup.copies_once:
            setup.copies_again[number] = False
        setup.init_fns.append(None)
        setup.copied.append(copies.copied)
        setup.collate_fns.append(copies.collate_fn)
        # Last: tickets are cut for as many workers as there are fetchers.
        setup.fetchers.append(_fetcher(copies, whole_batches=setup.whole_batches))
    finally:
        setup = originals = copies = DROPPED  # an error of a copy's keeps this frame


def _alone_seconds(settings: Settings, setup: _WorkerSetup) -> float:
    """Return for how long the first sample may run alone; 0 where there is no use in it.

    Samples that meet at an object of the dataset must not wait for that, nor should the user's
    limit be used up by it.
    """
    if setup.first_samples.loads_nothing or setup.dataset_copy == "shared":
        return 0.0
    own = (twin for _, twin in setup.copied[0].values())
    if any(isinstance(part, _MEETINGS) for twin in own for _, part, _ in attributes(twin)):
        return 0.0
    most = thread_group.FIRST_SECONDS
    return min(most, settings.timeout / 3) if settings.timeout else most


def _first_job(setup: _WorkerSetup, job: Job[Worker], worker: Worker) -> bool:
    """Run the first job of a worker, with what the first one of all has loaded.

    That one runs alone; so does one more where it has loaded something, which shows whether that is
    data that nobody writes.  What it has opened each worker opens for itself, and then more threads
    than twice the cores are a choice for the user.
    """
    copied, setup.copied[worker.number] = setup.copied[worker.number], Copied()
    try:
        if setup.loaded:
            found, first, then = setup.loaded[0]
            if first.samples > then:  # otherwise nobody knows whether the next one writes it
                give(settled(found), copied)
            usual, started = setup.ticket_size.seconds, perf_counter()
            samples = worker.counters.samples
            job(worker)
            samples = worker.counters.samples - samples
            if worker.number >= setup.cores and samples and usual:
                seconds = (perf_counter() - started) / samples
                setup.concurrency.grown(len(setup.fetchers), seconds, usual)
            return False
        before, started = snapshot(copied), perf_counter()
        job(worker)
        loaded = changes(before)
        setup.loaded.append((loaded, worker.counters, worker.counters.samples))
        data = any(change.is_data for change in loaded)
        if data:
            worker.counters.first_use_seconds += perf_counter() - started
        setup.first_samples.loads_nothing = not (data or any(each.is_handle for each in loaded))
        setup.first_samples.open_once |= any(is_shared(change.value) for change in loaded)
        setup.concurrency.bound([change.name for change in loaded if change.is_handle])
        return data
    finally:
        setup = job = copied = before = loaded = found = DROPPED  # an error keeps this frame


@contextmanager
def _enter(setup: _WorkerSetup, number: int) -> Iterator[Worker]:
    """The context of a worker thread's setup."""
    dataset = init_fn = None
    counters = setup.stats.open(number)
    try:
        for thread in setup.earlier_readers:
            if thread.is_alive():  # one that comes to life only now was stopped, and reads nothing
                thread.join()
        _torch.use_threads(1)
        if setup.copies_again.setdefault(number, True):
            _copy_again(setup, number)
        dataset = setup.fetchers[number].dataset
        stream = WorkerStream(setup.base_seed, number) if setup.draws else None
        rng = Current() if stream is None or setup.isolated else stream
        with (
            Adopting(setup.surroundings) as adopt,
            isolated(stream if setup.isolated else None),
            introduced(number, setup.num_workers, setup.base_seed, dataset, rng),
        ):
            if setup.startup.awaited:
                init_fn = setup.init_fns[number]
                counters.task, counters.task_began = "worker_init_fn", perf_counter()
                error = _error_of(init_fn, number)
                counters.task = None
                setup.startup.begun(number, error)
                error = DROPPED
            yield Worker(number, f"worker {number}", counters, adopt)
    finally:
        # A thread's end would do it, too, but by then it has neither a name nor storage.
        close_here()
        setup.stats.retire(counters)
        # An error of init_fn keeps this frame, too.
        dataset = init_fn = None
        setup = DROPPED


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
