"""ThreadLoader: torch's arguments, checked; it owns the ring, the statistics and the pool.

Nothing that a worker thread holds refers to the loader, so dropping it ends what it started.
"""

from __future__ import annotations

import itertools
import os
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from threadloader import _torch
from threadloader.arguments import (
    check_callable,
    check_choice,
    check_dataset,
    check_flag,
    check_generator,
    check_order,
    count,
    output_of,
    workers_of,
)
from threadloader.collate import Collation
from threadloader.dataset_copy import DatasetCopy, copy_dataset
from threadloader.epoch import Epoch, Window
from threadloader.fetch import Fetcher, fetches_whole_batches
from threadloader.order import BatchSampler, Pace, Planner, RandomSampler, SequentialSampler
from threadloader.pool import Pool
from threadloader.ring import Ring, RingStatistics
from threadloader.stats import Stats, Totals
from threadloader.work import Stages, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from threadloader.collate import Output

__all__ = ["Statistics", "ThreadLoader"]

T_co = TypeVar("T_co", covariant=True)

WINDOW = 4  # batches at least: one in use, one due, two in the making
UNKNOWN_ROWS = 16  # samples in a batch, where a user's batch sampler does not tell

_loaders = itertools.count()
# What `_set_up` makes.
_RUNNING = frozenset(
    {"_pid", "_ring", "_stats", "_inline", "_collation", "_seeded", "_pool", "_fetchers", "_epochs"}
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a loader has done so far, all epochs together; stale as soon as returned."""

    workers: int  # threads of an epoch; 0 is the calling thread
    window: int  # batches that may be planned ahead at the most
    totals: Totals
    slots: RingStatistics


class ThreadLoader(Generic[T_co]):
    """Loads batches of a map-style dataset with threads, in order.

    Batches equal those of ``torch.utils.data.DataLoader`` with the same arguments: tensors where
    torch is installed, NumPy arrays elsewhere.  They lie in memory that is reused once nothing
    refers to it any more, so a batch may be kept as long as it is wanted.

    Args:
        dataset: Anything with ``__getitem__``, and ``__len__`` unless a sampler is given.  With
            ``__getitems__`` it is called with a whole batch's indices, as in torch.
        batch_size: Samples in a batch, at least 1; None delivers single samples, not collated.
        shuffle: Whether each epoch has an order of its own.
        sampler: Yields the indices of one epoch; excludes ``shuffle``.
        batch_sampler: Yields the indices of one batch at a time; excludes ``batch_size``,
            ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: Another name for ``threads``.
        collate_fn: Makes a batch of a list of samples, in a worker; by default torch's
            ``default_collate``, or its equal for arrays.
        threads: Worker threads; 0 does all work in the calling thread, for a debugger.  By
            default the cores that this process may use.
        drop_last: Whether a last batch with fewer samples is left out.
        generator: Draws the order: a ``torch.Generator``, or a ``numpy.random.Generator``.
        persistent_workers: Whether threads and their copies of the dataset outlive the epoch.
        prefetch: Batches planned ahead, at least 1.  By default 4; up to 16 of less than 1 MiB
            each, as many as keep all threads busy where batches have few samples, and fewer
            where they would take more than 1 GiB together.
        output: ``"torch"`` or ``"numpy"``; by default torch where it is installed.
        dataset_copy: What each worker has of the dataset: ``"auto"``, an object of its own that
            shares the data (see `threadloader.dataset_copy`); ``"shared"``, the dataset itself;
            ``"deep"``, a ``copy.deepcopy``; or a function of the dataset that returns one.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value, or excludes another.
        ModuleNotFoundError: ``output="torch"``, and torch is not installed.

    Threads:
        iter, close, statistics: shared, but not ``iter`` and ``close`` at once.  Each iterator is
            for one thread; two of them are independent, also in two threads.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        *,
        threads: int | None = None,
        drop_last: bool = False,
        generator: Any = None,
        persistent_workers: bool = False,
        prefetch: int | None = None,
        output: Output | None = None,
        dataset_copy: DatasetCopy = "auto",
    ) -> None:
        workers = workers_of(threads, num_workers)
        check_dataset(dataset)
        batch_size = None if batch_size is None else count("batch_size", batch_size, at_least=1)
        check_order(batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last)
        prefetch = None if prefetch is None else count("prefetch", prefetch, at_least=1)
        check_callable("collate_fn", collate_fn)
        check_flag("shuffle", shuffle)
        check_flag("drop_last", drop_last)
        check_flag("persistent_workers", persistent_workers)
        check_generator(generator)
        if persistent_workers and workers == 0:
            msg = "persistent_workers option needs num_workers > 0"
            raise ValueError(msg)
        if not callable(dataset_copy):
            check_choice("dataset_copy", dataset_copy, ("auto", "shared", "deep"))

        self.dataset = dataset
        self.num_workers = workers
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.dataset_copy: DatasetCopy = dataset_copy
        self.output: Output = output_of(output)
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self.batch_size = None if batch_sampler is not None else batch_size
        batched = batch_sampler is not None or batch_size is not None
        self._whole = batched and fetches_whole_batches(dataset)
        self.sampler, self.batch_sampler = _samplers(
            dataset, batch_size, sampler, batch_sampler, generator, bool(shuffle), drop_last
        )
        self.prefetch = prefetch or _default_window(
            workers, self.batch_size, self.batch_sampler, whole=self._whole
        )
        self._window = Window(self.prefetch, fixed=prefetch is not None)
        self._name = f"tl{next(_loaders)}"
        self._pace = Pace()
        self._set_up()

    def _set_up(self) -> None:
        """Make what threads share; again in a forked child, where locks and threads are dead."""
        self._pid = os.getpid()
        # A consumer holds two batches for a moment: its last, and the one it is just given.
        self._ring = Ring(keep=self._window.most + 2)
        self._stats = Stats()
        self._inline = Worker(0, "the calling thread", self._stats.open())
        self._collation = Collation(
            self.collate_fn,
            output=self.output,
            batched=self.batch_sampler is not None,
            ring=self._ring,
        )
        self._seeded = False  # whether persistent workers have their seed
        self._pool: Pool[Worker] | None = None  # with persistent workers only
        self._fetchers: list[Fetcher] = []  # theirs
        self._epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()

    def __iter__(self) -> Epoch:
        """Start an epoch; its threads end with it, unless the workers are persistent."""
        if self._pid != os.getpid():
            self._set_up()
        planner = Planner(
            self._index_sampler, batched=self.batch_sampler is not None, whole=self._whole
        )
        if (
            _torch.AVAILABLE
            and not self._seeded  # torch seeds persistent workers once
            and not isinstance(self.generator, np.random.Generator)
        ):
            # Not used here: the sampler's own draw comes after it in the random state.
            _torch.draw_base_seed(self.generator)
            self._seeded = self.persistent_workers
        pool, fetchers = self._staff()
        epoch = Epoch(
            planner,
            Stages(fetchers, self._whole, self._pace, self._collation),
            self._window,
            pool=pool,
            owns_pool=not self.persistent_workers,
            inline=self._inline,
            stats=self._stats,
            length=partial(len, self._index_sampler),  # type: ignore[arg-type]  # see __len__
        )
        self._epochs.add(epoch)
        return epoch

    def __len__(self) -> int:
        """Return the batches in an epoch.

        Raises:
            TypeError: The sampler has no length.
        """
        return len(self._index_sampler)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: the arguments, not the threads and slots."""
        return {name: value for name, value in vars(self).items() if name not in _RUNNING}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_up()

    def __enter__(self) -> ThreadLoader[T_co]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all iterators and threads, waiting for the samples that are running.

        A closed loader can be iterated again; it starts afresh.
        """
        pool, self._pool = self._pool, None
        self._seeded = False
        if pool is not None:
            pool.stop()
        for epoch in list(self._epochs):
            epoch.close()
        if pool is not None:
            pool.join()

    def statistics(self) -> Statistics:
        """Return what has been counted so far."""
        return Statistics(
            workers=self.num_workers,
            window=self._window.most,
            totals=self._stats.total(),
            slots=self._ring.statistics(),
        )

    @property
    def _index_sampler(self) -> Iterable[Any]:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def _staff(self) -> tuple[Pool[Worker] | None, list[Fetcher]]:
        """Return the threads of an epoch and what each fetches from."""
        if self.num_workers == 0:
            return None, [Fetcher(self.dataset, whole=self._whole)]
        if self._pool is not None and not self._pool.stopped:
            return self._pool, self._fetchers
        # Copied by the consumer's thread, before it goes on to change anything.
        fetchers = [
            Fetcher(copy_dataset(self.dataset, self.dataset_copy), whole=self._whole)
            for _ in range(self.num_workers)
        ]
        pool = Pool(
            self.num_workers, self._name, partial(_enter, self._stats, _torch.inherited_modes())
        )
        if self.persistent_workers:
            self._pool, self._fetchers = pool, fetchers
        return pool, fetchers


@contextmanager
def _enter(
    stats: Stats, modes: Callable[[], AbstractContextManager[None]], number: int
) -> Iterator[Worker]:
    """The context of a worker thread's life."""
    counters = stats.open()
    try:
        with modes():
            yield Worker(number, f"worker {number}", counters)
    finally:
        stats.retire(counters)


def _samplers(
    dataset: Any,
    batch_size: int | None,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    generator: Any,
    shuffle: bool,
    drop_last: bool,
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Return the sampler and the batch sampler; torch's own classes where they are there."""
    ours = not _torch.AVAILABLE or isinstance(generator, np.random.Generator)
    if sampler is None and ours:
        sampler = RandomSampler(dataset, generator) if shuffle else SequentialSampler(dataset)
    elif sampler is None:
        sampler = _torch.make_sampler(dataset, shuffle=shuffle, generator=generator)
    if batch_sampler is None and batch_size is not None:
        if ours:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        else:
            batch_sampler = _torch.make_batch_sampler(sampler, batch_size, drop_last=drop_last)
    return sampler, batch_sampler


def _default_window(
    workers: int, batch_size: int | None, batch_sampler: Any, *, whole: bool
) -> int:
    """Return how many batches to plan ahead: enough tickets for all threads to be busy."""
    if whole:
        return max(WINDOW, 2 + workers)
    if batch_sampler is None:
        rows = 1
    else:
        rows = batch_size or getattr(batch_sampler, "batch_size", None) or UNKNOWN_ROWS
    return max(WINDOW, 2 + -(-2 * workers // rows))
