"""How a check loads samples: as the workers of a `ThreadLoader` do, each with its own copy."""

from __future__ import annotations

import copy
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._check.contents import contents, difference
from threadloader._check.whose_code import line_of_error
from threadloader._fetch.dataset_copy import Copied, copy_dataset, deep_copy
from threadloader._fetch.own_generators import OwnGenerators
from threadloader._rng.isolation import isolated, redirection
from threadloader._rng.streams import Current, WorkerStream, enter_sample_streams, leave_streams
from threadloader._session.arguments import is_iterable
from threadloader._threads.per_thread import close_here
from threadloader._threads.worker_info import introduced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from threadloader._check.findings import Line
    from threadloader._fetch.dataset_copy import DatasetCopy

__all__ = ["LoadedSample", "Loading", "WorkerThread"]

SEED = 17  # of all random streams
REPLICAS = 2  # of an iterable dataset
ITEMS = 8  # samples of a replica that are loaded as one
MOST_INDICES = 16


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


class Loading:
    """Loads samples of one dataset, in any thread.

    Args:
        dataset: The user's.
        dataset_copy: What each worker has of it, as for `ThreadLoader`.
        indices: The samples to look at; None for some that are spread over the dataset.

    Invariants, whenever ``_lock`` is not held:
        1. ``slowest`` is of one of the ``ended`` samples, or 0.

    Threads:
        load: shared.
    """

    def __init__(
        self, dataset: Any, dataset_copy: DatasetCopy, indices: Sequence[Any] | None = None
    ) -> None:
        self._lock = Lock()
        # All below: guarded by _lock; others may read them.
        self.ended = 0  # samples that were loaded
        self.slowest = 0.0  # of them, in seconds
        self.dataset = _torch.unwrapped(dataset)
        self.iterable = is_iterable(dataset)
        self._how = dataset_copy
        self._whole = not self.iterable and not _torch.has_getitem(self.dataset)
        self.keys: list[Any] = self._keys(indices)
        self._positions = {repr(key): number for number, key in enumerate(self.keys)}
        redirection()  # imported before there are threads

    def copy(self) -> Any:
        """Return a worker's copy of the dataset."""
        if not self.iterable:
            return copy_dataset(self.dataset, self._how)
        if self._how == "shared" or callable(self._how):
            return copy_dataset(self.dataset, self._how)
        try:
            return deep_copy(self.dataset, Copied())
        except Exception:  # noqa: BLE001  # whatever refuses: a generator, a lock, an open file
            try:
                return copy.copy(self.dataset)
            except Exception:  # noqa: BLE001  # the same
                return self.dataset

    def load(
        self, twin: Any, key: Any, trace: Callable[..., Any] | None = None, number: int = 0
    ) -> LoadedSample:
        """Load a sample in the calling thread.

        Args:
            twin: The worker's copy of the dataset.
            key: The index; of an iterable dataset, the number of the replica.
            trace: For `sys.settrace`, while the user's code runs.
            number: Of the worker.
        """
        number = key if self.iterable else number
        begin = perf_counter()
        stream = WorkerStream(SEED, number)
        with isolated(stream), introduced(number, REPLICAS, SEED, twin, Current()):
            if not self.iterable:
                enter_sample_streams(SEED, self._positions.get(repr(key), 0), ())
            try:
                sample = OwnGenerators(twin, None).call(self._traced, twin, key, trace)
                return LoadedSample(contents(sample), sample, None, None)
            except Exception as error:  # noqa: BLE001  # whatever the user's code raises
                line = line_of_error(error.__traceback__)
                return LoadedSample({}, None, f"{type(error).__name__}: {error}", line)
            finally:
                leave_streams()
                with self._lock:
                    self.ended += 1
                    self.slowest = max(self.slowest, perf_counter() - begin)

    def _traced(self, twin: Any, key: Any, trace: Callable[..., Any] | None) -> Any:
        if trace is None:
            return self._sample(twin, key)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return self._sample(twin, key)
        finally:
            sys.settrace(before)

    def _sample(self, twin: Any, key: Any) -> Any:
        if self.iterable:
            return list(islice(iter(twin), ITEMS))
        if self._whole:
            return twin.__getitems__([key])
        return twin[key]

    def _keys(self, indices: Sequence[Any] | None) -> list[Any]:
        if self.iterable:
            return list(range(REPLICAS))
        if indices is not None:
            return list(indices)
        count = len(self.dataset)
        if count <= MOST_INDICES:
            return list(range(count))
        last = MOST_INDICES - 1
        return sorted(
            {0, 1, *(count // 2 + i for i in (0, 1))}
            | {i * (count - 1) // last for i in range(MOST_INDICES)}
        )


class WorkerThread:
    """A thread that loads samples on request, as a worker's.

    Args:
        name: Of the thread.

    Threads:
        all: the one that checks.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        # A daemon: what hangs in the user's code must not keep the interpreter.
        self._thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Let the thread call a function; return its future result."""
        future: Future[Any] = Future()
        self._jobs.put((future, function, args))
        return future

    def stop(self) -> None:
        """Let the thread end after its job."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait until the thread has ended; call `stop` first."""
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
