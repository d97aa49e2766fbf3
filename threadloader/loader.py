"""ThreadLoader: torch's arguments, checked; it owns the ring, the statistics and the pool.

Nothing that a worker thread holds refers to the loader, so dropping it ends what it started.
"""

from __future__ import annotations

import itertools
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from threadloader import _torch
from threadloader.collate import Collation, Output
from threadloader.cores import default_threads
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

__all__ = ["Statistics", "ThreadLoader"]

T_co = TypeVar("T_co", covariant=True)

WINDOW = 4  # batches at least: one in use, one due, two in the making
UNKNOWN_ROWS = 16  # samples in a batch, where a user's batch sampler does not tell

_loaders = itertools.count()


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
        workers = _workers(threads, num_workers)
        _check_dataset(dataset)
        batch_size = None if batch_size is None else _count("batch_size", batch_size, at_least=1)
        _check_order(batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last)
        prefetch = None if prefetch is None else _count("prefetch", prefetch, at_least=1)
        _check_callable("collate_fn", collate_fn)
        _check_flag("shuffle", shuffle)
        _check_flag("drop_last", drop_last)
        _check_flag("persistent_workers", persistent_workers)
        _check_generator(generator)
        if persistent_workers and workers == 0:
            msg = "persistent_workers option needs num_workers > 0"
            raise ValueError(msg)
        if not callable(dataset_copy):
            _check_choice("dataset_copy", dataset_copy, ("auto", "shared", "deep"))

        self.dataset = dataset
        self.num_workers = workers
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.dataset_copy: DatasetCopy = dataset_copy
        self.output: Output = _output(output)
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
        # A consumer holds two batches for a moment: its last, and the one it is just given.
        self._ring = Ring(keep=self._window.most + 2)
        self._stats = Stats()
        self._inline = Worker(0, "the calling thread", self._stats.open())
        self._name = f"tl{next(_loaders)}"
        self._pace = Pace()
        self._collation = Collation(
            collate_fn,
            output=self.output,
            batched=self.batch_sampler is not None,
            rows=self.batch_size,
            ring=self._ring,
        )
        self._pool: Pool[Worker] | None = None  # with persistent workers only
        self._fetchers: list[Fetcher] = []  # theirs
        self._epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()

    def __iter__(self) -> Epoch:
        """Start an epoch; its threads end with it, unless the workers are persistent."""
        planner = Planner(
            self._index_sampler, batched=self.batch_sampler is not None, whole=self._whole
        )
        if (
            _torch.AVAILABLE
            and self._pool is None  # torch seeds persistent workers once
            and not isinstance(self.generator, np.random.Generator)
        ):
            # Not used here: the sampler's own draw comes after it in the random state.
            _torch.draw_base_seed(self.generator)
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
        if self._pool is not None:
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


def _workers(threads: int | None, num_workers: int | None) -> int:
    named = {"threads": threads, "num_workers": num_workers}
    given = {_count(name, value, at_least=0) for name, value in named.items() if value is not None}
    if len(given) > 1:
        msg = f"threads and num_workers are one setting, but got {threads} and {num_workers}"
        raise ValueError(msg)
    return given.pop() if given else default_threads()


def _output(output: Output | None) -> Output:
    if output is None:
        return "torch" if _torch.AVAILABLE else "numpy"
    _check_choice("output", output, ("torch", "numpy"))
    if output == "torch" and not _torch.AVAILABLE:
        msg = "output='torch' needs torch: pip install threadloader[torch]"
        raise ModuleNotFoundError(msg, name="torch")
    return output


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, _torch.IterableDataset) or not any(
        hasattr(dataset, name) for name in ("__getitem__", "__getitems__")
    ):
        msg = f"dataset must be map-style, with __getitem__, but got {type(dataset).__name__}"
        raise TypeError(msg)


def _check_order(
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    *,
    drop_last: bool,
) -> None:
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        # __getitem__ alone makes an iterable, too.
        if (
            value is not None
            and not hasattr(value, "__iter__")
            and not hasattr(value, "__getitem__")
        ):
            msg = f"{name} must be iterable, but got {value!r}"
            raise TypeError(msg)
    if sampler is not None and shuffle:
        msg = "sampler option is mutually exclusive with shuffle"
        raise ValueError(msg)
    if batch_sampler is not None and (
        batch_size != 1 or shuffle or sampler is not None or drop_last
    ):
        msg = (
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, "
            "and drop_last"
        )
        raise ValueError(msg)
    if batch_size is None and drop_last:
        msg = (
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )
        raise ValueError(msg)


def _count(name: str, value: int, *, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        msg = f"{name} must be an int, but got {value!r}"
        raise TypeError(msg)
    if value < at_least:
        msg = f"{name} must be at least {at_least}, but got {value}"
        raise ValueError(msg)
    return int(value)


def _check_flag(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (bool, int, np.bool_)):
        msg = f"{name} must be a bool, but got {value!r}"
        raise TypeError(msg)


def _check_generator(generator: Any) -> None:
    kinds = (_torch.Generator, np.random.Generator)
    if generator is not None and not isinstance(generator, kinds):
        msg = (
            f"generator must be a torch.Generator or numpy.random.Generator, but got {generator!r}"
        )
        raise TypeError(msg)


def _check_callable(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        msg = f"{name} must be callable, but got {value!r}"
        raise TypeError(msg)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        msg = f"{name} must be one of {', '.join(choices)}, but got {value!r}"
        raise ValueError(msg)
