"""How a check loads samples: as the workers of a `ThreadLoader` do, each with its own copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from threading import Lock, Thread
from time import perf_counter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

from threadloader import _torch
from threadloader._check.contents import contents, difference
from threadloader._check.sharing import Sharing
from threadloader._engine.copies import Own, own_of
from threadloader._loader.arguments import is_iterable
from threadloader._threads.per_thread import close_here
from threadloader._worker.isolation import isolated, redirection
from threadloader._worker.own_copy import Copied
from threadloader._worker.program_code import is_users
from threadloader._worker.streams import Current, WorkerStream, enter_sample_streams, leave_streams
from threadloader._worker.worker_info import introduced
from threadloader.errors import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from threadloader._engine.settings import DatasetCopy


SEED = 17  # of all random streams
REPLICAS = 2  # of an iterable dataset
ITEMS = 8  # samples of a replica that are loaded as one
MOST_INDICES = 16
# In which no sample ends: what counts as waiting for each other; less if the check has less time.
HANG_SECONDS = 60.0
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
    line: str | None

    def difference(self, expected: LoadedSample) -> str | None:
        """Return what differs from another outcome of the same sample; None for nothing."""
        kind, usual = ((it.error or "").partition(":")[0] for it in (self, expected))
        if kind != usual:
            return f"it raised {self.error}" if kind else f"it did not raise {expected.error}"
        path = difference(expected.parts, self.parts)
        return None if path is None else f"sample{path} was different"


class HangError(BaseException):
    """Threads wait for each other, and can't be stopped; nobody waits for them, either."""


class Loading:
    """Loads samples of one dataset, in any thread.

    Args:
        dataset: The user's.
        dataset_copy: What each worker has of it, as for `ThreadLoader`.
        indices: The samples to look at; None for some that are spread over the dataset.
        seconds: For all of it, as far as samples end.
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
        seconds: float,
        tell: Callable[[int], None],
    ) -> None:
        self._began, self._seconds = perf_counter(), seconds
        self._lock = Lock()
        # All below: guarded by _lock; others may read them.
        self.ended = 0  # samples that were loaded
        self.slowest = 0.0  # of them, in seconds
        self.dataset = dataset
        self.iterable = is_iterable(dataset)
        self._tell = tell
        # As in a loader: workers copy what the calling thread has copied, one at a time.
        users = Own(dataset, None, None, None, dataset_copy, Copied())
        self._original, self._copying = own_of(users, replica=self.iterable), Lock()
        self.keys: list[Any] = self._keys(indices)
        redirection()  # imported before there are threads

    def is_over(self, share: float = 1.0) -> bool:
        """Whether a share of the time is over."""
        return perf_counter() >= self._began + share * self._seconds

    def copy(self) -> Own:
        """Return a worker's copy of the dataset."""
        with self._copying:
            shared = self._original.copied
            return own_of(self._original, replica=self.iterable, shared=shared).seeded()

    @cached_property
    def sharing(self) -> Sharing:
        """What workers share."""
        how = self._original.how
        replica = self.iterable and how != "shared"
        return Sharing(self.dataset, "replica" if replica else how)

    def result(self, thread: WorkerThread) -> Any:
        """Return what a thread's function returns while others run.

        Raises:
            HangError: No sample has ended for long, neither of this thread nor of another.
        """
        while thread.is_alive():
            ended = self.ended
            thread.join(min(HANG_SECONDS, 5.0 + self._seconds) + SLOWER * self.slowest)
            if thread.is_alive() and self.ended == ended:
                raise HangError
        if thread.error is not None:
            raise thread.error
        return thread.outcome

    def load(self, twin: Own, key: Any, number: int = 0) -> LoadedSample:
        """Load a sample in the calling thread.

        Args:
            twin: The worker's copy of the dataset.
            key: The index; of an iterable dataset, the number of the replica.
            number: Of the worker.
        """
        number = key if self.iterable else number
        begin, generators = perf_counter(), cast("Any", twin.generators)
        stream = WorkerStream(SEED, number)
        with isolated(stream), introduced(number, REPLICAS, SEED, twin.dataset, Current()):
            if not self.iterable:
                enter_sample_streams(SEED, self.keys.index(key), ())
            try:
                sample = generators.call(self._sample, twin.dataset, key)
                return LoadedSample(contents(sample), sample, None, None)
            except Exception as error:  # noqa: BLE001  # whatever the user's code raises
                frames = reversed(list(walk_tb(error.__traceback__)))
                lines = ((frame.f_code.co_filename, number) for frame, number in frames)
                line = next((f"{file}:{number}" for file, number in lines if is_users(file)), None)
                return LoadedSample({}, None, f"{type(error).__name__}: {text_of(error)}", line)
            finally:
                leave_streams()
                with self._lock:
                    self.ended += 1
                    self.slowest = max(self.slowest, perf_counter() - begin)
                self._tell(self.ended)

    def _sample(self, dataset: Any, key: Any) -> Any:
        if self.iterable:
            return list(islice(iter(dataset), ITEMS))
        return dataset[key] if _torch.has_getitem(dataset) else dataset.__getitems__([key])

    def _keys(self, indices: Sequence[Any] | None) -> list[Any]:
        if self.iterable:
            return list(range(REPLICAS))
        if indices is not None:
            return list(indices)
        count = len(self.dataset)
        spread = {i * (count - 1) // (MOST_INDICES - 1) for i in range(MOST_INDICES)}
        found = {0, 1, count // 2, count // 2 + 1} | spread
        return sorted(index for index in found if 0 <= index < count)


class WorkerThread(Thread):
    """A thread that calls a function as a worker of a loader does.

    It is a daemon: what hangs in the user's code must not keep the interpreter.

    Args:
        number: Of the thread, for its name.
        function: Is called with ``args``.
        args: Its arguments.
    """

    def __init__(self, number: int, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(name=f"tlcheck-worker-{number}", daemon=True)
        self._call = partial(function, *args)
        self.outcome: Any = None  # of the call
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Call the function."""
        _torch.use_threads(1)
        try:
            self.outcome = self._call()
        except BaseException as error:  # noqa: BLE001  # handed to the one who asks
            self.error = error
        finally:
            close_here()
