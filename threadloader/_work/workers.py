"""The threads of an epoch, and what each of them has: its dataset, its identity, its counters.

Map-style datasets have one pool, all of whose threads stand behind the oldest batch.  Replicas
of an iterable dataset have a pool of one thread each, so that a replica stays in its thread.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._fetch.dataset_copy import copy_dataset, deep_copy
from threadloader._fetch.fetcher import Fetcher
from threadloader._fetch.function_copy import copy_function
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.redirect import isolated
from threadloader._rng.streams import Current, WorkerStream
from threadloader._threads.per_thread import close_here
from threadloader._threads.pool import Pool, join
from threadloader._threads.worker_info import Startup, introduced
from threadloader._work.open_batch import Worker
from threadloader._work.reading import ReadSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from threading import Thread

    from threadloader._fetch.dataset_copy import Copied, DatasetCopy
    from threadloader._fetch.fetcher import Cancellable, Fetches
    from threadloader._threads.pool import ThreadGroup
    from threadloader._work.counters import Stats

__all__ = ["WorkerSetup", "Workers", "make_readers", "make_transformers", "make_workers"]


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What all workers of one staff have in common."""

    name: str  # prefix of the threads' names
    workers: int
    base_seed: int
    stats: Stats
    isolated: bool = True  # whether what workers draw is theirs
    before: tuple[Thread, ...] = ()  # must have ended before a worker begins
    collate_fn: Any = None  # the user's
    how: DatasetCopy = "auto"  # what each has of collate_fn and transform; see `copy_function`


@dataclass(frozen=True, slots=True)
class Workers:
    """Pools that start, stop and end together, and what their workers fetch from."""

    pools: list[Pool[Worker]]
    fetchers: list[Fetches]
    startup: Startup
    collate_fn: Any  # the user's
    collate_fns: list[Any]  # each worker's copy of it; None for that itself

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called; stale as soon as it is read."""
        return any(pool.stopped for pool in self.pools)

    def collate_fns_for(self, collate_fn: Any, how: DatasetCopy, dataset: Any) -> list[Any]:
        """Return each worker's copy of the collate function of an epoch.

        Args:
            collate_fn: The user's; if it was exchanged since the workers began, it is copied now.
            how: See `copy_function`.
            dataset: The user's.
        """
        if collate_fn is self.collate_fn:
            return self.collate_fns
        first = self.fetchers[0].dataset
        known: list[Copied] = [
            {} if each.dataset is first else {id(dataset): (dataset, each.dataset)}
            for each in self.fetchers
        ]
        known[0][id(dataset)] = dataset, first
        return [_own(collate_fn, how, copied) for copied in known]

    def ready(self, timeout: float | None, epoch: Cancellable) -> bool:
        """Wait until all workers have run ``worker_init_fn``; return False if that takes too long.

        Args:
            timeout: Seconds; None waits for ever.
            epoch: Once it is cancelled there is nothing to wait for; `nudge` then.

        Raises:
            BaseException: What the lowest of the workers raised; all threads end then.
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
        """Start all threads now, where a worker has something to do before its first batch."""
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
        """Let every thread end after its running job; does not wait."""
        for pool in self.pools:
            pool.stop()

    def nudge(self) -> None:
        """Let who waits in `ready` look again."""
        if self.startup.awaited:
            self.startup.nudge()

    def wake(self) -> None:
        """Let idle threads drop what was cancelled."""
        for pool in self.pools:
            pool.wake()

    @property
    def groups(self) -> list[ThreadGroup[Worker]]:
        """What is left of the pools when they are dropped: the threads that still run."""
        return [pool.group for pool in self.pools]

    def join(self) -> None:
        """Wait until every thread has ended, but for nobody in one of them; call `stop` first."""
        join(self.groups)


def make_workers(
    setup: WorkerSetup, dataset: Any, how: DatasetCopy, init_fn: Any, *, whole: bool
) -> Workers:
    """Return the workers for a map-style dataset: one pool.

    Args:
        setup: What workers have in common.
        dataset: The user's dataset.
        how: What of it each worker has; see `copy_dataset`.
        init_fn: Called in each worker with its number, once; None for none.
        whole: Whether ``__getitems__`` is called.
    """
    known: list[Copied] = [{} for _ in range(setup.workers)]
    copies = [copy_dataset(dataset, how, copied) for copied in known]
    collate_fns = [_own(setup.collate_fn, setup.how, copied) for copied in known]
    fetchers: list[Fetches] = [Fetcher(twin, whole=whole) for twin in copies]
    init_fns = [_rebound(init_fn, dataset, twin) for twin in copies]
    startup = Startup(setup.workers if init_fn is not None else 0)
    enter = partial(_enter, setup, _torch.inherited_modes(), fetchers, init_fns, startup)
    pool = Pool(setup.workers, setup.name, enter, failed=startup.failed)
    return Workers([pool], fetchers, startup, setup.collate_fn, collate_fns)


def make_readers(
    setup: WorkerSetup,
    dataset: Any,
    how: DatasetCopy,
    init_fn: Any,
    transform: Callable[[Any], Any] | None = None,
) -> Workers:
    """Return the workers for an iterable dataset: one thread bound to each replica.

    Args:
        setup: What workers have in common.
        dataset: The user's dataset.
        how: What of it each worker has; see `_replicate`.
        init_fn: Called in each worker with its number, once; None for none.
        transform: Applied to each sample; None for none.
    """
    known: list[Copied] = [{} for _ in range(setup.workers)]
    replicas = [_replicate(dataset, init_fn, how, copied) for copied in known]
    collate_fns = [_own(setup.collate_fn, setup.how, copied) for copied in known]
    fetchers: list[Fetches] = [
        ReadSamples(replica, copy_function(transform, setup.how, copied))
        for (replica, _), copied in zip(replicas, known, strict=True)
    ]
    init_fns = [function for _, function in replicas]
    startup = Startup(setup.workers if init_fn is not None else 0)
    enter = partial(_enter, setup, _torch.inherited_modes(), fetchers, init_fns, startup)
    pools = [
        Pool(1, setup.name, enter, first=number, failed=startup.failed)
        for number in range(setup.workers)
    ]
    return Workers(pools, fetchers, startup, setup.collate_fn, collate_fns)


def make_transformers(
    setup: WorkerSetup,
    dataset: Any,
    transform: Callable[[Any], Any],
    how: DatasetCopy,
    init_fn: Any,
) -> Workers:
    """Return the workers for an iterable with a transform: one thread reads, the others apply it.

    The reader is worker 0 of 1 for `get_worker_info()`, so that a dataset that shards itself
    gives all its samples; the others count themselves among all.

    Args:
        setup: What workers have in common; at least two workers.
        dataset: The user's dataset.
        transform: Applied to each sample.
        how: What the reader has of the dataset; see `_replicate`.
        init_fn: Called in each worker with its number, once; None for none.
    """
    known: list[Copied] = [{} for _ in range(setup.workers)]
    replica, init_fns = _replicate_once(dataset, init_fn, how, setup.workers, known[0])
    # The others' has nothing to do with the replica, which the reader may be changing.
    collate_fns = [_own(setup.collate_fn, setup.how, copied) for copied in known]
    fetchers: list[Fetches] = [
        ReadSamples(replica, copy_function(transform, setup.how, copied)) for copied in known
    ]
    startup = Startup(setup.workers if init_fn is not None else 0)
    modes = _torch.inherited_modes()
    alone, setup = replace(setup, workers=1), replace(setup, before=())
    pools = [
        Pool(
            1,
            setup.name,
            partial(_enter, alone, modes, fetchers, init_fns, startup),
            failed=startup.failed,
        ),
        Pool(
            setup.workers - 1,
            setup.name,
            partial(_enter, setup, modes, fetchers, init_fns, startup),
            first=1,
            failed=startup.failed,
        ),
    ]
    return Workers(pools, fetchers, startup, setup.collate_fn, collate_fns)


def _own(collate_fn: Any, how: DatasetCopy, copied: Copied) -> Any:
    """Return a worker's copy of the collate function; None if there is nothing to copy."""
    twin = copy_function(collate_fn, how, copied)
    return None if twin is collate_fn else twin


def _replicate(dataset: Any, init_fn: Any, how: DatasetCopy, copied: Copied) -> tuple[Any, Any]:
    """Return a worker's replica of an iterable dataset, and of its ``worker_init_fn``.

    Both are copied together, so that a method of the dataset given as ``worker_init_fn`` sets up
    the replica.

    Args:
        dataset: The user's dataset.
        init_fn: The user's function, or None.
        how: ``"auto"`` is a deep copy, or a shallow one where that fails, or the object itself
            where that fails too; else as `copy_dataset` has it.
        copied: Is told what was copied, for a collate function that refers to it.
    """
    if how == "shared":
        copied[id(dataset)] = dataset, dataset
        return dataset, init_fn
    if how == "deep":
        twin, bound = deep_copy((dataset, init_fn), copied)
        return twin, bound
    if callable(how):
        twin = copy_dataset(dataset, how, copied)
        return twin, _rebound(init_fn, dataset, twin)
    # What worker processes would share stays one, an epoch number in shared memory say.
    parts = getattr(dataset, "__dict__", {}).values()
    with suppress(Exception):  # whatever refuses: a generator, a lock, an open file
        twin, bound = deep_copy((dataset, init_fn), copied, filter(_torch.is_shared, parts))
        return twin, bound
    try:
        twin = copy.copy(dataset)
    except Exception:  # noqa: BLE001  # the same
        twin = dataset
    copied[id(dataset)] = dataset, twin
    return twin, _rebound(init_fn, dataset, twin)


def _replicate_once(
    dataset: Any, init_fn: Any, how: DatasetCopy, workers: int, copied: Copied
) -> tuple[Any, list[Any]]:
    """Return the one replica that is read, and a ``worker_init_fn`` for each worker.

    A method of the dataset given as ``worker_init_fn`` sets up the replica in the worker that
    reads it, and a replica that nobody reads in each other one.
    """
    replica, bound = _replicate(dataset, init_fn, how, copied)
    others = [init_fn] * (workers - 1)
    if bound is not init_fn and getattr(init_fn, "__self__", None) is dataset:
        others = [_replicate(dataset, init_fn, how, {})[1] for _ in others]
    return replica, [bound, *others]


def _rebound(init_fn: Any, dataset: Any, twin: Any) -> Any:
    """Return ``init_fn``, or, if it is a method of the dataset, the copy's."""
    if getattr(init_fn, "__self__", None) is dataset and twin is not dataset:
        return init_fn.__func__.__get__(twin)
    return init_fn


@contextmanager
def _enter(
    setup: WorkerSetup,
    modes: Callable[[], AbstractContextManager[None]],
    fetchers: Sequence[Fetches],
    init_fns: Sequence[Any],
    startup: Startup,
    number: int,
) -> Iterator[Worker]:
    """The context of a worker thread's life."""
    dataset = init_fn = None
    counters = setup.stats.open()
    try:
        for thread in setup.before:
            if thread.is_alive():  # one that comes to life only now was stopped, and reads nothing
                thread.join()
        _torch.use_one_thread()
        dataset = fetchers[number].dataset
        stream = WorkerStream(setup.base_seed, number)
        rng = Current() if setup.isolated else stream
        with (
            modes(),
            isolated(stream if setup.isolated else None),
            introduced(number, setup.workers, setup.base_seed, dataset, rng),
        ):
            if startup.awaited:
                init_fn = init_fns[number]
                startup.begun(number, _error_of(init_fn, number))
            yield Worker(number, f"worker {number}", counters)
    finally:
        # A thread's end would do it, too, but by then it has neither a name nor storage.
        close_here()
        setup.stats.retire(counters)
        # An error of init_fn keeps this frame, too.
        dataset = init_fn = None
        setup = fetchers = init_fns = startup = DROPPED


def _error_of(init_fn: Any, number: int) -> BaseException | None:
    """Call a ``worker_init_fn``; return what it raises."""
    try:
        init_fn(number)
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
        with suppress(BaseException):  # an error that refuses notes
            error.add_note(f"in worker_init_fn of worker {number}")
        return error
    finally:
        init_fn = DROPPED
    return None
