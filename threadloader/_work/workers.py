"""The workers of an epoch: each has a thread, its dataset, its identity and its counters.

A map-style dataset has one pool, all of whose threads work on the oldest batch.  Each replica of
an iterable dataset has a pool of one thread, so that it stays in its thread.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.array_rows import is_data
from threadloader._fetch.failure import set_notes
from threadloader._fetch.fetcher import Fetcher
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.known_samplers import is_known
from threadloader._order.window import UNKNOWN_ROWS
from threadloader._rng.isolation import isolated, redirection
from threadloader._rng.streams import Current, WorkerStream
from threadloader._threads.advice import Range
from threadloader._threads.concurrency import gil_is_enabled
from threadloader._threads.per_thread import close_here
from threadloader._threads.pool import Pool
from threadloader._threads.thread_group import join
from threadloader._threads.worker_info import introduced
from threadloader._threads.worker_startup import Startup
from threadloader._work.open_batch import Worker
from threadloader._work.worker_copies import (
    CollateFns,
    Original,
    collate_fns_of,
    copied_again,
    fetchers_of,
    has_one_reader,
    original_of,
    rebound,
    replicas_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from threading import Thread

    from threadloader._fetch.dataset_copy import Copied, DatasetCopy
    from threadloader._fetch.fetcher import Cancellable, Fetches
    from threadloader._settings import Settings
    from threadloader._threads.thread_group import ThreadGroup
    from threadloader._work.open_batch import PerWorker
    from threadloader._work.stats import Stats

__all__ = ["Workers", "make_workers", "may_draw", "runs_event_loop"]

_PLAIN = frozenset({bool, bytes, float, int, str})


class Workers(NamedTuple):
    """Pools that start, stop and end together, and what their workers fetch from."""

    pools: list[Pool[Worker]]
    fetchers: list[Fetches]  # one a worker
    startup: Startup
    collate_fn: Any  # the user's
    collate_fns: list[Any]  # each worker's copy of it; None for that itself
    copies_again: dict[int, bool]  # see `_WorkerSetup`
    original: Original | None  # what workers that are started later copy; None if none may be
    whole_batches: bool
    begins_inline: bool  # whether the calling thread makes the first batches
    num_workers: int  # as they are told

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called; stale as soon as it is read."""
        return any(pool.stopped for pool in self.pools)

    def take_over(self) -> None:
        """Give worker 0 copies of its own, as the calling thread has used the first ones.

        What they keep may be bound to that thread, a connection to a database say.
        """
        if self.original is None:
            return
        with suppress(Exception):  # a class that can be copied so often only
            twin, collate_fn = copied_again(self.original)
            self.collate_fns[0] = collate_fn
            self.fetchers[0] = Fetcher(twin, whole_batches=self.whole_batches)

    def exchange(self, copies: tuple[Fetches, Any]) -> tuple[Fetches, Any]:
        """Give worker 0 other copies, of dataset and collate function; return the ones it had.

        No thread may have work meanwhile.
        """
        before = self.fetchers[0], self.collate_fns[0]
        self.fetchers[0], self.collate_fns[0] = copies
        return before

    def collate_fns_for(self, settings: Settings) -> PerWorker:
        """Return each worker's copy of the collate function of an epoch, by its number.

        If it was exchanged since these workers were made, it is copied now.
        """
        if settings.collate_fn is self.collate_fn:
            return self.collate_fns
        for number in range(len(self.fetchers)):
            self.copies_again.setdefault(number, False)  # what is copied now goes with its dataset
        return CollateFns(settings, self.fetchers, self.original)

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
    draws: bool  # whether code may run that draws random numbers
    isolated: bool  # and draws from the worker's stream
    earlier_readers: tuple[Thread, ...]  # must have ended before a worker begins
    modes: Callable[[], AbstractContextManager[None]]  # those of torch's in the planner's thread
    whole_batches: bool
    fetchers: list[Fetches]  # one a worker
    init_fns: list[Any]  # the same; each worker's ``worker_init_fn``
    collate_fns: list[Any]  # the same; see `Workers`
    startup: Startup
    # Whether a worker copies its objects again, decided once: by `setdefault`, which is atomic.
    copies_again: dict[int, bool]
    copies_once: bool  # whether none does
    dataset_copy: DatasetCopy
    # Held by a worker that does so, if it copies data, too: there is one copy too many at a time.
    # It is held over the user's ``__deepcopy__``, which must not wait for another worker's.
    copying: AbstractContextManager[object]


def make_workers(
    settings: Settings, base_seed: int, stats: Stats, earlier_readers: tuple[Thread, ...] = ()
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
        earlier_readers: Threads that must have ended before a worker begins.
    """
    # Without a transform an unsharded iterable has use for one thread only.
    alone = settings.unsharded and settings.transform is None
    num_workers = 1 if alone else settings.num_workers
    may = _range(settings, num_workers)
    num_workers = may.threads
    settings.concurrency.serve(may)
    begins_inline = _begins_inline(settings, may)
    if not may.is_fixed:  # as many as were found before; more are started when they have work
        num_workers = 1 if begins_inline else min(num_workers, settings.concurrency.limit)
    copied: list[Copied] = [{} for _ in range(num_workers)]
    replicas = replicas_of(settings, copied)
    collate_fns = collate_fns_of(settings, copied)
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
        draws=draws,
        isolated=isolated,
        earlier_readers=earlier_readers,
        modes=_torch.inherited_modes(),
        whole_batches=settings.whole_batches,
        fetchers=fetchers,
        init_fns=[init_fn for _, init_fn in replicas],
        collate_fns=collate_fns,
        startup=startup,
        copies_again=copies_again,
        copies_once=not again,
        dataset_copy=how,
        copying=Lock() if how == "deep" else nullcontext(),
    )
    original = None if may.is_fixed else original_of(settings)
    pools = _pools(settings, setup, original, may)
    return Workers(
        pools,
        fetchers,
        startup,
        settings.collate_fn,
        collate_fns,
        copies_again,
        original=original,
        whole_batches=settings.whole_batches,
        begins_inline=begins_inline,
        num_workers=setup.num_workers,
    )


def _begins_inline(settings: Settings, may: Range) -> bool:
    """Whether the calling thread makes batches, at least the first ones.

    So it does, if the user chose no number of threads, as long as a batch costs less than handing
    it over, or another thread would only take turns with it, or was slower: none is started.  So it
    does in an epoch that ends sooner than threads begin.  But where the user waits for a limited
    time, or the copier for batches, or threads are kept anyway, they make all batches.  So they do
    where the sampler is the user's: how far it is drawn ahead must not depend on what batches cost,
    as it may draw from a random state that the loop draws from, too.
    """
    if may.is_fixed or settings.persistent_workers or settings.timeout or settings.device:
        return False
    if runs_event_loop() or not is_known(settings.index_sampler):
        return False
    concurrency = settings.concurrency
    if concurrency.inline_choice.preferred or concurrency.consumer_only_waits:
        return True
    rows = settings.batch_size or getattr(settings.batch_sampler, "batch_size", None)
    unknown = UNKNOWN_ROWS if settings.batched else 1
    rows, size = rows or unknown, settings.ticket_size
    return size.is_cheap(rows) or size.is_short(settings.batches, rows)


def runs_event_loop() -> bool:
    """Whether asyncio runs an event loop in this thread.

    Then a sample that runs one of its own can't do so here, and this one waits for the sample.
    """
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
    settings: Settings, setup: _WorkerSetup, original: Original | None, may: Range
) -> list[Pool[Worker]]:
    """Return the pools, the first of which has worker 0."""
    name, failed, num_workers = settings.name, setup.startup.failed, len(setup.fetchers)
    enter = partial(_enter, setup)
    if not settings.iterable:
        tried = not may.is_fixed or (num_workers > 1 and may.has_gil)
        concurrency = settings.concurrency if tried else None
        prepare = None if original is None else partial(_prepare, setup, original)
        return [
            Pool(
                num_workers,
                name,
                enter,
                failed=failed,
                concurrency=concurrency,
                most=max(num_workers, may.most),
                prepare=prepare,
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


def _copy_again(setup: _WorkerSetup, number: int) -> None:
    """Copy a worker's dataset and functions again, in its own thread.

    A free-threaded build counts references to an object without atomic instructions in the thread
    that made it, and only there: with copies that `iter` made, code that is all attributes of
    ``self`` takes an eighth longer (bench: own_copies), and a `dict.get` of a deep copy 25 us.
    `iter` makes copies nevertheless: they are what the dataset was then, and nobody changes them
    before this.
    """
    dataset = setup.fetchers[number].dataset
    first = Original(dataset, setup.collate_fns[number], setup.dataset_copy)
    with suppress(Exception), setup.copying:  # a class that can be copied once only
        twin, collate_fn = copied_again(first)
        setup.fetchers[number] = Fetcher(twin, whole_batches=setup.whole_batches)
        setup.collate_fns[number] = collate_fn
        setup.init_fns[number] = rebound(setup.init_fns[number], dataset, twin)


def _prepare(setup: _WorkerSetup, original: Original, number: int) -> None:
    """Make the copies of a worker that is started later."""
    twin = collate_fn = None
    try:
        twin, collate_fn = copied_again(original)
        if setup.copies_once:
            setup.copies_again[number] = False
        setup.init_fns.append(None)
        setup.collate_fns.append(collate_fn)
        # Last: tickets are cut for as many workers as there are fetchers.
        setup.fetchers.append(Fetcher(twin, whole_batches=setup.whole_batches))
    finally:
        setup = original = twin = collate_fn = DROPPED  # an error of a copy's keeps this frame


@contextmanager
def _enter(setup: _WorkerSetup, number: int) -> Iterator[Worker]:
    """The context of a worker thread's setup."""
    dataset = init_fn = None
    counters = setup.stats.open(number)
    try:
        for thread in setup.earlier_readers:
            if thread.is_alive():  # one that comes to life only now was stopped, and reads nothing
                thread.join()
        _torch.use_one_thread()
        if setup.copies_again.setdefault(number, True):
            _copy_again(setup, number)
        dataset = setup.fetchers[number].dataset
        stream = WorkerStream(setup.base_seed, number) if setup.draws else None
        rng = Current() if stream is None or setup.isolated else stream
        with (
            setup.modes(),
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
            yield Worker(number, f"worker {number}", counters)
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
        set_notes(error, (f"in worker_init_fn of worker {number}",))
        return error
    finally:
        init_fn = DROPPED
    return None
