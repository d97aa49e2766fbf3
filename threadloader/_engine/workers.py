"""The workers of an epoch: each has a thread, its dataset, its identity and its counters.

A map-style dataset has one pool, all of whose threads work on the oldest batch.  Each replica of
an iterable dataset has a pool of one thread, so that it stays in its thread.

The thread that calls ``next()`` is one, too, and makes batches when they are asked for, from copies
of its own, as any other worker.  Where the user chose no threads it loads from the user's objects,
as torch does in-process.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from functools import partial
from operator import call
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._batch.array_rows import arrays_of, is_data
from threadloader._engine.copies import Original, Worker, replicas_of
from threadloader._lifetime import DROPPED
from threadloader._order.tickets import UNKNOWN_ROWS
from threadloader._threads.per_thread import close_here
from threadloader._threads.pool import Pool, join
from threadloader._threads.tuner import Limits, gil_is_enabled
from threadloader._threads.worker_startup import Startup
from threadloader._worker.failure import hint_of, set_notes, without_stop
from threadloader._worker.fetcher import Fetcher, ReadSamples
from threadloader._worker.isolation import (
    isolated,
    isolated_here,
    redirect_for,
    redirection,
)
from threadloader._worker.own_generators import OwnGenerators, seeded
from threadloader._worker.streams import Current, WorkerStream
from threadloader._worker.surroundings import Adopting, Surroundings
from threadloader._worker.worker_info import Introduction, introduced
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Thread

    from threadloader._engine.copies import Own
    from threadloader._engine.kept import Kept
    from threadloader._engine.settings import Settings
    from threadloader._report.stats import Counters, Stats
    from threadloader._threads.pool import ThreadGroup
    from threadloader._threads.tuner import Tuner
    from threadloader._worker.fetcher import Cancellable, Fetches
    from threadloader._worker.learning import Learnt


# How long a first job runs alone, at the most.  It may load what all others find loaded, a table of
# gigabytes say; but it may also wait for others, and then all must run.  A choice, unmeasured.
FIRST_SECONDS = 30.0
_PLAIN = frozenset({bool, bytes, float, int, str})


class Workers:
    """Workers, each with its own objects; their threads start when there is work.

    A map-style dataset has one pool for all.  Each replica of an iterable has a thread of its own.
    Where an iterable has a transform, worker 0 reads and the others apply it: it is worker 0 of 1
    for `get_worker_info()`, so that a dataset that shards itself gives all its samples, and the
    others count themselves among all.

    Args:
        settings: Of the loader; with at least one worker.
        kept: Of the loader.
        base_seed: Of the workers.
        original: What they copy; None of an iterable, of which each has a replica.
        earlier_readers: Threads that must have ended before a worker begins.

    Attributes:
        pools: The first one has worker 0.
        replicas: Of an iterable, each worker's; none otherwise.
        begins_inline: Whether the calling thread makes the first batches.
        stays: Whether it makes all of them.
        tunes: Whether another number of threads may be found than there is.
        num_workers: As workers are told.
        surroundings: One item: what workers adopt of the thread of the latest ``iter()``, such as
            torch's grad mode.

    Threads:
        begin_again: planner.
        resize, ready, learn: consumer.
        all others: shared.
    """

    def __init__(
        self,
        settings: Settings,
        kept: Kept,
        base_seed: int,
        original: Original | None,
        earlier_readers: tuple[Thread, ...] = (),
    ) -> None:
        # Without a transform an unsharded iterable has use for one thread only.
        alone = settings.unsharded and settings.transform is None
        limits = _limits(settings, 1 if alone else settings.num_workers)
        # What workers would share one thread uses: this one, where the number is not chosen.
        shares = original is not None and bool(original.shared) and not limits.is_fixed
        if shares:
            limits = limits._replace(threads=1, most=1)
        self.stays = shares and not limits.least
        self.tuner = tuner = kept.tuner
        tuner.serve(limits, kept.stats.latest)
        self.original = original
        self._settings = settings
        self.surroundings = [Surroundings()]
        self.replicas: list[Own] = []
        if original is None:
            self.replicas = replicas_of(settings, limits.threads)
        # Samples that wait for one another need as many threads as the user chose.
        self._meets = original is not None and original.meets
        inline = not (limits.least or self._meets) and _begins_inline(settings, kept)
        self.begins_inline = self.stays or inline
        self.tunes = limits.least < limits.most and not (self._meets or self.stays)
        if not (self.begins_inline or tuner.number):
            tuner.leave(0.0)
        # As long as they live, see `_pools`: an epoch that was left leads to no sampler.
        self._settings = settings._replace(sampler=None, batch_sampler=None)
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
            stats=kept.stats,
            tuner=tuner,
            whole_batches=settings.whole_batches,
            draws=draws,
            isolates=draws and settings.isolate_rng,
            earlier_readers=earlier_readers,
            surroundings=self.surroundings,
            original=original,
            replicas=self.replicas,
            startup=self.startup,
        )
        threads = limits.threads if limits.is_fixed else max(1, tuner.number)
        self.pools = self._pools(settings, setup, threads)

    def _pools(self, settings: Settings, setup: _Setup, threads: int) -> list[Pool[Worker]]:
        name, failed, enter = f"{settings.name}-worker", self.startup.failed, partial(_enter, setup)
        numbers = range(threads)
        if not settings.iterable:
            seconds = 0.0 if self._meets else self._alone_seconds(settings)
            late = not self.startup.awaited  # copies are made of what the first sample has left
            return [Pool(numbers, name, enter, failed=failed, alone_seconds=seconds, late=late)]
        if not _has_one_reader(settings, threads):
            return [Pool(numbers[n : n + 1], name, enter, failed=failed) for n in numbers]
        read = partial(_enter, setup._replace(num_workers=1))
        apply = partial(_enter, setup._replace(earlier_readers=()))
        return [
            Pool(numbers[:1], name, read, failed=failed),
            Pool(numbers[1:], name, apply, failed=failed),
        ]

    def _alone_seconds(self, settings: Settings) -> float:
        """Return for how long the first sample may run alone; 0 where there is no use in it.

        The user's limit should not be used up by it.
        """
        if self.original is None or self.original.has_learnt:
            return 0.0
        return min(FIRST_SECONDS, settings.timeout / 3) if settings.timeout else FIRST_SECONDS

    def learn(self, own: Own) -> None:
        """Give all workers what the calling thread has loaded by the first sample of all."""
        if self.original is not None:
            _note(self.original.learn(own), self.tuner)
        for pool in self.pools:
            pool.thread_group.begin_all()

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
    draws: bool  # whether code may run that draws random numbers
    isolates: bool  # and draws from streams of the samples
    earlier_readers: tuple[Thread, ...]  # must have ended before a worker begins
    surroundings: list[Surroundings]  # see `Workers`
    original: Original | None  # what workers copy
    replicas: list[Own]  # or each worker's, made at ``iter()``
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


def _begins_inline(settings: Settings, kept: Kept) -> bool:
    """Whether the calling thread makes batches, at least the first ones.

    So it does as long as a batch costs less than handing it over, or threads were found to be
    slower: none is started.  So it does in an epoch that ends sooner than threads begin; and, if
    the user chose no number of threads, in the first epoch.
    """
    if runs_event_loop():
        return False
    tuner, size = kept.tuner, kept.ticket_size
    if tuner.tries:
        return not tuner.number
    if tuner.prefers_inline:
        return True
    rows = settings.batch_size or getattr(settings.batch_sampler, "batch_size", None)
    unknown = UNKNOWN_ROWS if settings.batched else 1
    rows = rows or unknown
    if not size.seconds:
        return settings.is_default
    if not tuner.number and tuner.gains_nothing(size.seconds):
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


def _note(learnt: Learnt, tuner: Tuner) -> None:
    """Let there be no more threads than can be busy where each opens something for itself."""
    if learnt.opened:
        tuner.bound([*learnt.opened])


def _learn(setup: _Setup, own: Own, counters: Counters) -> None:
    """Give all workers what the first sample of all has loaded, if this was it."""
    original = setup.original
    if original is not None and not original.has_learnt:
        learnt = original.learn(own)
        _note(learnt, setup.tuner)
        if learnt.loads:
            counters.first_use_seconds += counters.fetch_seconds


@contextmanager
def _enter(setup: _Setup, number: int) -> Iterator[Worker]:
    """The context of a worker thread's setup."""
    own: Own | None = None
    fetcher: Fetches | None = None
    counters = setup.stats.open(number)
    try:
        for thread in setup.earlier_readers:
            if thread.is_alive():  # one that comes to life only now was stopped, and reads nothing
                thread.join()
        _torch.use_threads(1)
        own = setup.replicas[number] if setup.original is None else setup.original.take()
        generators = own.generators if setup.isolates else None
        if setup.original is None:
            fetcher = ReadSamples(own.dataset, own.transform, generators)
        else:
            whole = setup.whole_batches
            fetcher = Fetcher(own.dataset, whole_batches=whole, generators=generators)
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
            learns = None if setup.original is None else partial(_learn, setup, own, counters)
            yield Worker(
                number, f"worker {number}", counters, fetcher, own.collate_fn, adopt, learns
            )
    finally:
        if own is not None and setup.original is not None:
            setup.original.give_back(own)
        # A thread's end would do it, too, but by then it has neither a name nor storage.
        close_here()
        setup.stats.retire(counters)
        # An error of init_fn keeps this frame, too.
        own = generators = fetcher = setup = learns = DROPPED


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
ENDED = "this iterator was closed; iter(loader) starts a new one"


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
        self._original = None if workers is None else workers.original
        self._base_seed = base_seed
        self._counters = counters
        # Not at iter(), where threads make all batches.
        self._worker: Worker | None = None
        self._own: list[Own] = []  # its objects, while no sample is loaded; empty if they are none
        self._ended = False
        # Calls a function as the worker: with its identity, and drawing from its streams.
        self._as_worker: Callable[..., Any] = call
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
            stream = WorkerStream(self._base_seed, 0)
            self._as_worker = partial(isolated_here, stream)
            self._end = redirect_for(stream)  # as long as it lives
        if settings.iterable:
            generators = self._generators_of(settings.transform)
            samples = ReadSamples(settings.dataset, settings.transform, generators)
            return Worker(0, PLACE, self._counters, samples)
        dataset, collate_fn = settings.dataset, None
        if workers is not None and self._original is not None:
            own = self._original.take()
            self._own.append(own)
            dataset, collate_fn = own.dataset, own.collate_fn
            generators = own.generators if self._isolates else None
            # A worker like others; the only one in the process is none.
            rng = Current() if self._isolates else WorkerStream(self._base_seed, 0)
            who = Introduction(0, workers.num_workers, self._base_seed, dataset, rng)
            self._as_worker = partial(who.call, self._as_worker)
        else:
            generators = self._generators_of(dataset)
            own_fn = seeded(settings.collate_fn, None) if self._isolates else settings.collate_fn
            collate_fn = None if own_fn is settings.collate_fn else own_fn
        whole = settings.whole_batches
        fetcher = Fetcher(dataset, whole_batches=whole, generators=generators)
        return Worker(0, PLACE, self._counters, fetcher, collate_fn)

    def _generators_of(self, root: Any) -> OwnGenerators | None:
        """Return the generators of the user's own object; None for none that follow the samples."""
        return OwnGenerators(root, None) if self._isolates and root is not None else None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the worker that the thread is, and others arguments.

        Raises:
            ClosedError: The epoch was ended by another thread.
        """
        own: Own | None = None
        original = self._original
        try:
            worker = self.worker
            if original is None:
                return self._as_worker(function, worker, *args)
            own = self._claim()
            try:
                return self._as_worker(function, worker, *args)
            finally:
                self._leave(own, original)
        finally:
            self = function = own = original = worker = DROPPED  # an error keeps this frame
            args = ()

    def _claim(self) -> Own:
        """Return its own objects, which `end` leaves alone from now on."""
        try:
            return self._own.pop()
        except IndexError:
            raise ClosedError(ENDED) from None

    def _leave(self, own: Own, original: Original) -> None:
        """Let `end` have the objects again; and the workers what the first sample has loaded."""
        try:
            if not original.has_learnt and self._workers is not None:
                self._workers.learn(own)
        finally:
            self._own.append(own)
            if self._ended:
                self._give_back(original)

    def end(self) -> None:
        """Redirect random functions no longer, and leave its objects to the next epoch."""
        self._end()
        self._ended = True
        if self._original is not None:
            self._give_back(self._original)

    def _give_back(self, original: Original) -> None:
        """Give its objects back, if nobody has yet, and no sample is loaded from them."""
        with suppress(IndexError):  # popped by who comes first, which is atomic on both builds
            original.give_back(self._own.pop())
