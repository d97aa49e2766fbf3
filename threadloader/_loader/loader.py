"""ThreadLoader: torch's arguments, checked, and the session that loads with them.

Nothing that a worker thread holds refers to the loader, so dropping it ends what it started.
"""

from __future__ import annotations

import copy
import itertools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from threadloader import _torch
from threadloader._lifetime import end_thread_at_exit
from threadloader._loader.arguments import (
    ARGUMENTS,
    Attributes,
    check_choice,
    check_no_order,
    check_order,
    check_runnable,
    check_shuffle,
    check_timeout,
    check_together,
    checked_function,
    default_num_workers,
    given_num_workers,
    is_iterable,
    plain_int,
)
from threadloader._loader.begin import begin
from threadloader._loader.session import RunState, Session
from threadloader._loader.state import checked_state, fingerprint_of, make_state
from threadloader._order.ranks import sampled_batches
from threadloader._order.resume import Position, has_ended
from threadloader._order.samplers import BatchSampler, KeyedSampler, make_sampler
from threadloader._order.seeds import Seeds
from threadloader._report.metrics import metrics_of
from threadloader._report.reports import judged
from threadloader._worker.copy_rules import is_ours
from threadloader.errors import checked_count

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from threadloader._batch.layout import Output
    from threadloader._engine.epoch import Epoch
    from threadloader._engine.settings import DatasetCopy, Settings
    from threadloader._loader.session import Statistics
    from threadloader._order.share import Uneven
    from threadloader._report.verdict import Verdict
    from threadloader._torch import Dataset
    from threadloader._worker.failure import OnError
    from threadloader._worker.fetcher import Samples

__all__ = ["ThreadLoader"]

T_co = TypeVar("T_co", covariant=True)

_loaders = itertools.count()
_NOT_COPIED = frozenset({"_iterator_ref", "_opened", "_session"})


class _Local(threading.local):
    loader: Any = None  # whose `__iter__` the thread runs


_iterating = _Local()


class ThreadLoader(Attributes, _torch.DataLoader[T_co]):
    """Loads batches with threads, in order: ``torch.utils.data.DataLoader`` without processes.

    Batches equal those of torch's loader with the same arguments: tensors where torch is
    installed, NumPy arrays elsewhere.  They lie in memory that is reused once nothing refers to
    it any more, so a batch may be kept.

    Args:
        dataset: Map-style, with ``__getitem__`` (or ``__getitems__``, called with a batch's
            indices); or iterable, read in its own order.  Of torch's `IterableDataset` each
            worker reads a replica; any other iterable is read once.
        batch_size: Samples in a batch, at least 1; None delivers single samples, not collated.
        shuffle: Whether each epoch has an order of its own; ``"keyed"``, one in constant memory.
        sampler: Yields the indices of one epoch; excludes ``shuffle``.
        batch_sampler: Yields the indices of one batch at a time; excludes ``batch_size``,
            ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: The most threads; 0 does all work in the calling thread, for a debugger.  By
            default the loader finds the number, see docs/workers.md; it is 1 for an iterable
            dataset, and 0 for torch's `IterableDataset`.
        collate_fn: Makes a batch of a list of samples, in a worker; by default torch's
            ``default_collate``, or its equal for arrays.
        pin_memory: Whether batches are copied to page-locked memory for the accelerator.
        drop_last: Whether a last batch with fewer samples is left out; of each replica.
        timeout: Seconds to wait for a batch; 0 waits for ever.
        worker_init_fn: Called once in each worker, with its number.
        multiprocessing_context: Checked as torch does; no process is started.
        generator: Draws the order: a ``torch.Generator``, or a ``numpy.random.Generator``.
        prefetch_factor: Batches planned ahead for each worker; by default see ``prefetch``.
        persistent_workers: Whether threads and their copies of the dataset outlive the epoch.
        pin_memory_device: Deprecated by torch, which ignores it.
        in_order: Whether batches come in order; if not, whichever is ready first.
        worker_method: Checked as torch does where it has thread workers; always threads.
        threads: Another name for ``num_workers``.
        max_threads: Threads at the most where you chose no number, at least 1.
        memory_budget: Bytes that batches planned ahead may take, but for two; None is 1 GiB.
        prefetch: Batches planned ahead, at least 1.  By default 4; up to 16 of less than 1 MiB
            each, 3 of 16 MiB or more, as many as keep all threads busy
            where batches have few samples, and fewer where ``memory_budget`` says so.
        output: ``"torch"`` or ``"numpy"``; by default torch where it is installed.
        dataset_copy: The part of the dataset, ``transform`` and ``collate_fn`` that each worker
            copies: ``"auto"``, everything that Python code can write, but no large arrays and
            containers; ``"deep"``, these, too; ``"shared"``, nothing.
        transform: Applied to the samples of an iterable by all threads but the one that reads.
        seed: Decides order and random numbers of each epoch, at least 0; excludes ``generator``.
        isolate_rng: Whether each sample draws from its own random streams, so that batches do
            not depend on threads and your own random state is left alone (see `sample_rng`).
        device: Where batches are copied ahead of you, as torch names it: ``"cuda"``, ``"cuda:1"``,
            an index, a ``torch.device``; the CPU is as None.
        device_prefetch: Batches that are copied ahead, at least 1.
        on_error: ``"raise"``; ``"skip"``, a batch is made without its failed samples; or a
            function of error and index that returns one of these.
        max_skipped: Samples left out in an epoch before an error is raised; None for any number.
        snapshot_every_n_steps: Batches from one ``state_dict()`` of your sampler or iterable
            dataset to the next, see `state_dict`; None or 0 for none.
        shard: The share that is loaded, of each global batch or of an iterable: ``"auto"``, that of
            this rank; of ``(rank, world_size)``; or of a mesh's dimension.  None loads all.
        uneven: Where the samples can't be divided by the ranks: ``"drop"`` leaves out the rest,
            ``"pad"`` repeats some, ``"short"`` gives some ranks less, or no batch.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value, or excludes another.
        ModuleNotFoundError: ``output="torch"`` or ``device``, and torch is not installed.
        RuntimeError: The device is not there.

    A subclass may have attributes of its own with names of arguments that torch's loader lacks
    (``transform``, ``device``, ``seed``): one that its class has, or that it sets, stays as it is
    and means nothing here.

    Threads:
        iter, close, statistics: shared, but not ``iter`` and ``close`` at once.  Each iterator is
            for one thread; two of them are independent, also in two threads.
    """

    def __init__(
        self,
        dataset: Dataset[T_co] | Iterable[T_co] | Samples[T_co],
        batch_size: int | None = 1,
        shuffle: bool | Literal["keyed"] | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_method: Literal["thread", "multiprocessing"] = "thread",
        threads: int | None = None,
        max_threads: int = 256,
        memory_budget: int | None = None,
        prefetch: int | None = None,
        output: Output | None = None,
        dataset_copy: DatasetCopy = "auto",
        transform: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        isolate_rng: bool = True,
        snapshot_every_n_steps: int | None = 1,
        device: Any = None,
        device_prefetch: int = 2,
        on_error: OnError = "raise",
        max_skipped: int | None = 1000,
        shard: Any = None,
        uneven: Uneven = "pad",
    ) -> None:
        given = locals()
        num_workers = given_num_workers(threads, num_workers)
        batch_size = plain_int(batch_size)
        iterable, tunes_threads = is_iterable(dataset), num_workers is None
        unsharded = iterable and not isinstance(dataset, _torch.IterableDataset)
        own = {name: check(name, given[name]) for name, check in ARGUMENTS.items()}
        check_together(given, iterable=iterable)
        if not iterable:  # torch refuses any
            check_shuffle(shuffle, dataset)
        check_timeout(timeout)
        check_choice("worker_method", worker_method, ("thread", "multiprocessing"))
        if unsharded or (iterable and not _torch.AVAILABLE):  # of its own classes torch checks it
            check_no_order(shuffle, sampler, batch_sampler)
        num_workers = default_num_workers(
            num_workers,
            iterable=iterable,
            unsharded=unsharded,
            transform=transform,
            # What is ours reads the same in another thread.
            in_process=not (is_ours(type(dataset)) or prefetch or prefetch_factor or device)
            and not (persistent_workers or timeout or worker_init_fn),
        )
        ordered = iterable or sampler is not None or batch_sampler is not None
        if shuffle == "keyed" and not ordered:  # or torch refuses it
            sampler, shuffle = KeyedSampler(dataset, generator), None
        super().__init__(
            dataset=_torch.PlainIterable() if unsharded else dataset,  # type: ignore[arg-type]
            batch_size=batch_size,
            shuffle=bool(shuffle) if shuffle == "keyed" else shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        # After torch's checks, so that what it refuses it refuses in its own words.
        check_order(sampler, batch_sampler, generator)
        checked_function("collate_fn", collate_fn)
        checked_function("worker_init_fn", worker_init_fn if num_workers else None)
        mine = vars(self)  # past the protection of what is set above
        mine["dataset"], mine["worker_method"] = dataset, worker_method
        self.prefetch_factor = prefetch_factor  # torch's would be 2
        if threads is not None:
            mine.pop("threads", None)
        batched = batch_sampler is not None or batch_size is not None
        torchs = _torch.AVAILABLE and (generator is None or isinstance(generator, _torch.Generator))
        if not iterable and not torchs:
            if sampler is None:
                sampler = make_sampler(dataset, generator, shuffle=bool(shuffle))
            if self.batch_size is not None:
                batch_sampler = BatchSampler(sampler, self.batch_size, drop_last)
            mine["sampler"], mine["batch_sampler"] = sampler, batch_sampler
        self._fix(
            own,
            name=f"tl{next(_loaders)}",
            iterable=iterable,
            unsharded=unsharded,
            whole_batches=iterable or (batched and _torch.gives_whole_batches(dataset)),
            tunes_threads=tunes_threads,
            chunk_size=None,
            reported_length=None,  # samples; see `__len__`
        )
        mine["_is_plain"] = type(self) is ThreadLoader
        self._session = Session(self._settings(), RunState(Seeds()))

    @classmethod
    def from_source(
        cls,
        source: Callable[[int], Sequence[Any]],
        batch_size: int,
        *,
        chunk_size: int | None = None,
        **options: Any,
    ) -> ThreadLoader[Any]:
        """Load what a function returns, until it returns nothing or you stop.

        Args:
            source: Called with ``batch_size`` whenever its items have run out, by one thread;
                returns samples, or functions that all threads call to get them; none at its end.
            batch_size: Samples in a batch, at least 1.
            chunk_size: Functions that a thread calls in a row; by default what takes 1 ms.
            options: Other arguments of this class.
        """
        from threadloader._worker.source_function import SourceItems, sample_of  # noqa: PLC0415

        given: Any = source
        if not callable(given):
            msg = f"source must be callable, but got {source!r}"
            raise TypeError(msg)
        items = SourceItems(source, checked_count("batch_size", batch_size, at_least=1))
        loader = cls(items, batch_size, transform=sample_of, **options)
        if chunk_size is not None:
            size = checked_count("chunk_size", chunk_size, at_least=1)
            loader._fixed = loader._fixed._replace(chunk_size=size)
            loader._begin_anew(loader._session.run)
        return loader

    def __iter__(self) -> Epoch:  # type: ignore[override]  # not an iterator of torch's
        """Start an epoch, by `_get_iterator`, which subclasses override, as torch's loader does.

        Its threads end with it, unless the workers are persistent.

        Raises:
            AssertionError: ``timeout`` without workers, or a ``prefetch_factor`` of 0, as torch.
            TypeError: A ``prefetch_factor`` that is no int, as torch.
            StateError: A state was loaded that does not fit the sampler, the dataset, the
                generator or the number of replicas.
        """
        if _iterating.loader is self:  # an override of `_get_iterator` asks for this one
            return ThreadLoader._get_iterator(self)
        kept = self.persistent_workers and self.num_workers > 0
        before, _iterating.loader = _iterating.loader, self
        try:
            iterator = self._get_iterator()
        finally:
            _iterating.loader = before
        if kept:
            self._note_iterator(iterator)
        return iterator

    def _get_iterator(self) -> Epoch:  # type: ignore[override]  # the same
        """Return the iterator of a new epoch, whatever ``__iter__`` is overridden by."""
        settings = self._settings_now()
        epoch = None
        while epoch is None:
            epoch = begin(self._session, settings)
        return epoch

    def _settings_now(self) -> Settings:
        """Return what an epoch that begins now is set up for, once that is checked."""
        end_thread_at_exit()
        self._live_here()  # first: the settings have what a forked child makes anew
        # All attributes that may be set count from the next epoch on.
        pinned = self._device is None and self.pin_memory
        settings = self._settings(pinned=pinned and _torch.can_pin(self.pin_memory_device))
        check_runnable(self.num_workers, self.timeout, self.prefetch_factor)
        return settings

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the last ``iter()``: its epoch, and how much of it was delivered.

        As with torchdata's ``StatefulDataLoader``, batches that were prefetched are not counted,
        and after StopIteration it is the beginning of the next epoch.  It can be written as JSON,
        if the states of your own objects can.  It has less than 500 bytes beside theirs, and about
        4,000 more with a ``generator=`` of torch's.  It does not depend on the number of threads,
        except for replicas of an iterable dataset.

        A ``state_dict()`` of yours is called after each batch (see ``snapshot_every_n_steps``):
        that of a sampler, batch sampler or their iterator in the consumer's thread, that of an
        iterable dataset or its iterator in the worker that reads it.  That of a map-style dataset
        is called here, on your own object.

        Threads:
            consumer.
        """
        saved = self._session.run.saved
        if saved is not None:
            return copy.deepcopy(dict(saved))
        settings = self._settings()
        return make_state(self._session.state(settings), fingerprint_of(settings))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` continue where a state was saved; ``{}`` begins anew.

        Iterators that are alive end.  Batches that were delivered are not loaded again.  To find
        the next one costs nothing for sequential and keyed orders, one permutation for torch's
        shuffle, and one pass over the indices for a sampler of yours without ``load_state_dict``.
        An iterable dataset without it is read again up to there, with a warning.  ``iter()`` calls
        a ``load_state_dict()`` of yours before the object's own ``__iter__``; that of an iterator,
        or of an iterable dataset that is its own iterator, after it.

        Raises:
            StateError: It is no state of a `ThreadLoader`, or of another version, or of a loader
                with another dataset, sampler, batch size or seed: the message says which.  Also
                raised by ``iter()`` or the first ``next()``, if the sampler or dataset does not
                give the same samples again.

        Threads:
            consumer.
        """
        state = checked_state(state_dict, fingerprint_of(self._settings()))
        self._live_here()
        self._session.load(state)

    def check_worker_number_rationality(self) -> None:
        """Do nothing: more threads than cores are right for samples that wait for a network."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch.

        That of an iterable dataset is kept: as in torch, an epoch that has more warns of the length
        that was reported here, and the dataset is not asked in each epoch.

        Raises:
            TypeError: The sampler or iterable has no length.
        """
        if not self._fixed.iterable:
            return sampled_batches(self._settings())
        samples = len(self.dataset)  # type: ignore[arg-type]
        self._fixed = self._fixed._replace(reported_length=samples)
        vars(self)["_IterableDataset_len_called"] = samples  # torch's name for it
        if self.batch_size is None:
            return samples
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: the arguments and the run, not the threads and slots."""
        state = {name: value for name, value in vars(self).items() if name not in _NOT_COPIED}
        return state | {"_run": self._session.run.carried_over()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arguments = {name: value for name, value in state.items() if name != "_run"}
        vars(self).update(arguments, _opened=None)
        self._begin_anew(state["_run"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all iterators and threads, after running samples, and keep no memory of batches.

        It waits for the threads of dropped iterators, too; but called in a sample of this loader,
        it waits for nobody.  The next ``iter()`` starts afresh.
        """
        self._live_here()
        self._session.close()

    def replay(
        self,
        error: BaseException | None = None,
        /,
        *,
        batch: int | None = None,
        row: int | None = None,
        index: Any = None,
        epoch: int | None = None,
    ) -> Any:
        """Make a sample again, or a whole batch, in the calling thread, for a debugger.

        It has the same random numbers as in the epoch.  ``breakpoint()`` and pdb work in it, and
        the run goes on unchanged.

        Args:
            error: An error of a loop; the sample that raised it is made again.
            batch: Its number in the epoch, from 0, as notes on errors have it: where the loader has
                a ``seed=``, and no sampler of yours.
            row: Of the sample in the batch; None for the whole batch, collated.
            index: Of the sample, instead of ``row``.
            epoch: Its number, from 0; None for the latest.

        Raises:
            ValueError: The order does not follow from a ``seed=``, or the error has no note of a
                loop; or the samples draw from shared random states (``isolate_rng=False``).
            IndexError: There is no such batch or row; or not one row with that index.
            TypeError: The dataset is iterable, or no batch was asked for.

        Threads:
            consumer.
        """
        from threadloader._loader.replay import Numbers, replay  # noqa: PLC0415  # for a debugger

        if error is None and batch is None:
            msg = "replay() needs an error, or the number of a batch"
            raise TypeError(msg)
        wanted = Numbers(epoch, batch or 0, row, index) if error is None else error
        return replay(self._session, self._settings(), wanted)

    def statistics(self) -> Statistics:
        """Return the figures so far, of this process."""
        self._live_here()
        return self._session.statistics(self.num_workers)

    def metrics(self, prefix: str = "loader/") -> dict[str, float]:
        """Return the figures as a flat dict of numbers, for a logger.

        Rates and shares are those of the last seconds.  Unknown figures are left out.

        Args:
            prefix: Put before each name; see docs/observing.md for the names.
        """
        return metrics_of(self.statistics(), prefix)

    def verdict(self) -> Verdict:
        """Return the cause of the loop's waiting in the last epoch."""
        self._live_here()
        kept = self._session.kept
        return judged(kept.stats, kept.tuner, self.num_workers > 0, self._fixed.shared_out)

    def trace(
        self, path: str | os.PathLike[str], *, limit: int = 500_000
    ) -> AbstractContextManager[None]:
        """Record what every thread does, for Perfetto (ui.perfetto.dev) or chrome://tracing.

        It is a context, around an epoch, a part of one, or several::

            with loader.trace("trace.json"):
                for batch in loader:
                    train_step(batch)

        Args:
            path: Of the file, which is written at the end; ``.json.gz`` is compressed.
            limit: Events that are recorded, at least 1; the file and the log (``threadloader``)
                say how many more there were.  A ticket makes three or four.

        Raises:
            OSError: By ``with``: the file can't be written.
            ValueError: The limit is less than 1.
        """
        from threadloader._report.recording import recorded  # noqa: PLC0415  # rarely used

        if limit < 1:
            msg = f"limit must be at least 1, not {limit}"
            raise ValueError(msg)
        self._live_here()
        return recorded(path, self._session.kept.stats, limit)

    def resumes_after(self) -> int:
        """Return the number of batches before the place of a loaded state, 0 without one.

        ``len()`` is that of the whole epoch, so a progress bar begins here, as in
        ``tqdm(loader, initial=loader.resumes_after())``.
        """
        saved = self._session.run.saved
        if saved is None or has_ended(saved):
            return 0
        return Position.of(saved["epoch"], saved).batches

    def __repr__(self) -> str:
        described = []
        with suppress(AttributeError):  # it is being made
            described = self._described()
        return f"<{type(self).__name__}{' of ' * bool(described)}{', '.join(described)}>"

    def _described(self) -> list[str]:
        """Return in a few words what is loaded."""
        described = [type(self.dataset).__name__]
        # The length of an iterable is noted when it is asked for: see `__len__`.
        if not self._fixed.iterable:
            with suppress(Exception):  # a sampler of the user's may have none
                batches = len(self)
                described.append(f"{batches:,} {'batch' if batches == 1 else 'batches'}")
        if self.batch_size is not None:
            described.append(f"{self.batch_size:,} sample{'s' * (self.batch_size != 1)} in each")
        some = f"{self.num_workers} thread{'s' * (self.num_workers != 1)}"
        return [*described, "as many threads as are fastest" if self._fixed.tunes_threads else some]

    def _live_here(self) -> None:
        """In a forked child, start afresh: threads and locks of the parent's are dead."""
        if not self._session.is_here:
            self._begin_anew(self._session.run)

    def _begin_anew(self, run: RunState) -> None:
        """Go on from where a run is, with a number of threads that is found anew."""
        self._session = Session(self._settings(), run.carried_over())
