"""How a check loads samples: as the workers of a `ThreadLoader` do, each with its own copy."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from threadloader import _torch
from threadloader._check.contents import contents, difference
from threadloader._check.sharing import Sharing
from threadloader._check.whose_code import innermost
from threadloader._fetch.copy_rules import copy_of
from threadloader._fetch.own_generators import OwnGenerators
from threadloader._rng.isolation import isolated, redirection
from threadloader._rng.streams import Current, WorkerStream, enter_sample_streams, leave_streams
from threadloader._session.arguments import is_iterable
from threadloader._threads.per_thread import close_here
from threadloader._threads.worker_info import introduced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from threadloader._check.findings import Line
    from threadloader._fetch.own_copy import Copied
    from threadloader._settings import DatasetCopy


SEED = 17  # of all random streams
REPLICAS = 2  # of an iterable dataset
ITEMS = 8  # samples of a replica that are loaded as one
MOST_INDICES = 16
HANG_SECONDS = 60.0  # in which no sample ends: the least that counts as waiting for each other
SLOWER = 20  # times the slowest one so far: what a sample that many threads load may take


@dataclass(frozen=True, slots=True)
class LoadedSample:
    """What came of loading a sample.

    Args:
        parts: The contents of the sample; none with an error.
        sample: The sample itself.
        error: The name of the error's class and its message; None for none.
        line: Of the user's code that raised it.
    """

    parts: Mapping[str, str]
    sample: Any
    error: str | None
    line: Line | None

    def difference(self, expected: LoadedSample) -> str | None:
        """Return what differs from another outcome of the same sample; None for nothing."""
        if self.error is not None:
            same = (expected.error or "").partition(":")[0] == self.error.partition(":")[0]
            return None if same else f"it raised {self.error}"
        if expected.error is not None:
            return f"it did not raise {expected.error}"
        path = difference(expected.parts, self.parts)
        return None if path is None else f"sample{path} was different"


class Twin(NamedTuple):
    """A worker's copy of the dataset, and its generators, which are seeded for each sample."""

    dataset: Any
    generators: OwnGenerators
    copied: Copied  # keeps what weak references lead to


class HangError(BaseException):
    """Threads wait for each other, and can't be stopped; nobody waits for them, either."""


class Loading:
    """Loads samples of one dataset, in any thread.

    Args:
        dataset: The user's.
        dataset_copy: What each worker has of it, as for `ThreadLoader`.
        indices: The samples to look at; None for some that are spread over the dataset.
        tell: Called with the number of samples that were loaded, in any thread.

    Invariants, whenever ``_lock`` is not held:
        1. ``slowest`` is of one of the ``ended`` samples, or 0.

    Threads:
        load: shared.
        all others: the one that checks.
    """

    def __init__(
        self,
        dataset: Any,
        dataset_copy: DatasetCopy,
        indices: Sequence[Any] | None,
        tell: Callable[[int], None],
    ) -> None:
        self._lock = Lock()
        # All below: guarded by _lock; others may read them.
        self.ended = 0  # samples that were loaded
        self.slowest = 0.0  # of them, in seconds
        self.dataset = dataset
        self.iterable = is_iterable(dataset)
        self._how, self._tell = dataset_copy, tell
        self._whole = not self.iterable and not _torch.has_getitem(self.dataset)
        self.keys: list[Any] = self._keys(indices)
        self._unused, self._kept = copy_of(self.dataset, dataset_copy)
        redirection()  # imported before there are threads

    def copies(self, number: int, *, unused: bool = False) -> list[Twin]:
        """Return the copies that workers have of the dataset.

        Args:
            number: Of workers.
            unused: Whether it is one of which no sample was loaded yet, if that can be had.
        """
        fresh = self._unused if unused else None
        return [self.copy(fresh) for _ in range(number)]

    def sharing(self) -> Sharing:
        """Return what two workers share."""
        one, other = self.copies(2)
        return Sharing(one.dataset, other.dataset)

    def copy(self, dataset: Any = None) -> Twin:
        """Return a worker's copy of the dataset, or of another."""
        twin, copied = copy_of(self.dataset if dataset is None else dataset, self._how)
        return Twin(twin, OwnGenerators(twin, None), copied)

    def result(self, future: Future[Any]) -> Any:
        """Return what a job returns while others run.

        Raises:
            HangError: No sample has ended for long, neither of this job nor of another.
        """
        while True:
            ended = self.ended
            try:
                return future.result(HANG_SECONDS + SLOWER * self.slowest)
            except NotYetError:
                if self.ended == ended:
                    raise HangError from None

    def load(self, twin: Twin, key: Any, number: int = 0) -> LoadedSample:
        """Load a sample in the calling thread.

        Args:
            twin: The worker's copy of the dataset.
            key: The index; of an iterable dataset, the number of the replica.
            number: Of the worker.
        """
        number = key if self.iterable else number
        begin = perf_counter()
        stream = WorkerStream(SEED, number)
        with isolated(stream), introduced(number, REPLICAS, SEED, twin.dataset, Current()):
            if not self.iterable:
                enter_sample_streams(SEED, self.keys.index(key), ())
            try:
                sample = twin.generators.call(self._sample, twin.dataset, key)
                return LoadedSample(contents(sample), sample, None, None)
            except Exception as error:  # noqa: BLE001  # whatever the user's code raises
                line = innermost(reversed(list(walk_tb(error.__traceback__))))
                return LoadedSample({}, None, f"{type(error).__name__}: {error}", line)
            finally:
                leave_streams()
                with self._lock:
                    self.ended += 1
                    self.slowest = max(self.slowest, perf_counter() - begin)
                self._tell(self.ended)

    def _sample(self, dataset: Any, key: Any) -> Any:
        if self.iterable:
            return list(islice(iter(dataset), ITEMS))
        return dataset.__getitems__([key]) if self._whole else dataset[key]

    def _keys(self, indices: Sequence[Any] | None) -> list[Any]:
        if self.iterable:
            return list(range(REPLICAS))
        if indices is not None:
            return list(indices)
        count = len(self.dataset)
        if count <= MOST_INDICES:
            return list(range(count))
        spread = {i * (count - 1) // (MOST_INDICES - 1) for i in range(MOST_INDICES)}
        return sorted({0, 1, count // 2, count // 2 + 1} | spread)


class WorkerThread:
    """A thread that loads samples on request, as a worker's; a ``with`` block ends it.

    Whoever leaves the block waits for its job, but not after what is no `Exception`: Ctrl-C, or a
    hang, after which a sample may go on for ever.

    Args:
        number: Of the thread, for its name.

    Threads:
        all: the one that checks.
    """

    def __init__(self, number: int) -> None:
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        # A daemon: what hangs in the user's code must not keep the interpreter.
        name = f"tlcheck-worker-{number}"
        self._thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Let the thread call a function; return its future result."""
        future: Future[Any] = Future()
        self._jobs.put((future, function, args))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._jobs.put(None)
        if kind is None or issubclass(kind, Exception):
            self._thread.join()


def _work(jobs: SimpleQueue[Any]) -> None:
    _torch.use_threads(1)
    try:
        while (job := jobs.get()) is not None:
            future, function, args = job
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001  # handed to the one who asked
                future.set_exception(error)
            del job, future, function, args
    finally:
        close_here()
