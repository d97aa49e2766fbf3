"""Who a worker is: what `get_worker_info()` answers, thread by thread.

User code asks torch's function, imported whenever and under any name, so that very function is
taught about threads (see `_torch.teach_worker_info`).  Without torch there is one here.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader import _torch
from threadloader._lifetime.dropping import DROPPED, Living
from threadloader._lifetime.process import in_forked_child
from threadloader._threads.started_threads import HandingOn
from threadloader._threads.waiting import Tokens, wait_until
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["Startup", "get_worker_info", "in_pass", "introduced", "pass_seed_here"]

T = TypeVar("T")

_FAILED = (
    "a worker could not begin, or its worker_init_fn failed, and the threads have ended; "
    "iter(loader) starts new ones"
)


class _Local(threading.local):
    info: Any = None  # a WorkerInfo, in a worker
    pass_seed: int | None = None


_here = _Local()
_WorkerInfo: Any = type(_torch.make_worker_info(0, 1, 0, None, None))


class _HandedOn(_WorkerInfo):  # type: ignore[misc]  # torch's, or ours
    """What a thread that a worker started is told: the same, but it keeps no dataset alive.

    A thread may outlive its worker by far, and often what ends it is that the dataset is dropped.
    """

    __slots__ = ("_dataset",)

    dataset = property(lambda self: self._dataset())

    @classmethod
    def of(cls, info: Any) -> Any:
        """Return what is handed on of a worker's info."""
        if info is None or type(info) is cls:
            return info
        handed_on = cls.__new__(cls)
        names = set(getattr(info, "__dataclass_fields__", None) or vars(info))
        for name in names - {"dataset"}:
            object.__setattr__(handed_on, name, getattr(info, name))  # it is frozen
        dataset = info.dataset
        try:
            refer: Any = weakref.ref(dataset)
        except TypeError:  # a list, say
            refer = partial(_same, dataset)
        object.__setattr__(handed_on, "_dataset", refer)
        return handed_on


def _same(value: Any) -> Any:
    return value


def _known_here() -> Callable[[], AbstractContextManager[None]] | None:
    """Return what makes another thread know what the calling one does; None for nothing."""
    info, seed = _here.info, _here.pass_seed
    if info is None and seed is None:
        return None
    return partial(_knowing, _HandedOn.of(info), seed)


@contextmanager
def _knowing(info: Any, seed: int | None) -> Iterator[None]:
    before = _here.info, _here.pass_seed
    _here.info, _here.pass_seed = info, seed
    try:
        yield
    finally:
        _here.info, _here.pass_seed = before


_handing_on = HandingOn(_known_here)


@in_forked_child
def _forget() -> None:
    """A process that a worker forks is no worker of ours."""
    _here.info = None


if _torch.AVAILABLE:
    _torch.teach_worker_info(_here)
    get_worker_info = _torch.get_worker_info
else:

    def get_worker_info() -> Any:
        """Return what the calling worker is: its id, the number of workers, seed and dataset.

        None outside workers.  Where torch is installed, this is torch's function.
        """
        return _here.info


def pass_seed_here() -> int | None:
    """Return the seed of the pass over an iterable dataset that the calling thread begins.

    It is one number for all replicas, another one in each epoch, and the same when the epoch is
    resumed.  None where no `ThreadLoader` calls the dataset's ``__iter__``.
    """
    return _here.pass_seed


def in_pass(seed: int | None, function: Callable[..., T], *args: Any) -> T:
    """Call a function that finds ``seed`` by `pass_seed_here`.

    And so do threads that it starts, as long as they live.
    """
    _handing_on.install()
    # No context manager: Ctrl-C can come up in one before it has put back what was there.
    before, _here.pass_seed = _here.pass_seed, seed
    try:
        return function(*args)
    finally:
        _here.pass_seed = before
        function, args = DROPPED, ()  # an error keeps this frame


@contextmanager
def introduced(
    number: int, workers: int, base_seed: int, dataset: Any, rng: Any = None
) -> Iterator[None]:
    """Let `get_worker_info()` describe the calling thread while it is here.

    And threads that it starts meanwhile, as long as they live.

    Args:
        number: The worker, from 0.
        workers: How many there are.
        base_seed: Drawn once for all workers; a worker's seed is this plus its number.
        dataset: What this worker fetches from.
        rng: Has its generators.
    """
    _handing_on.install()
    before = _here.info
    _here.info = _torch.make_worker_info(number, workers, base_seed + number, dataset, rng)
    try:
        yield
    finally:
        _here.info = before


class Startup:
    """Whether all workers of a pool have begun, and with which error.

    Args:
        workers: That are waited for, as they have a ``worker_init_fn`` to run; 0 for none.

    Invariants, whenever ``_lock`` is not held:
        1. Each worker that is not missing any more has run its ``worker_init_fn``.

    Threads:
        begun: worker, once each.
        failed: worker, or who starts the threads.
        wait, watch, take_error: consumer.
        nudge: shared.
    """

    def __init__(self, workers: int) -> None:
        self._epochs: Living[Any] = Living()  # which wait for these workers
        self.awaited = workers > 0
        # Who waits.  Added, taken out and copied by single calls, atomic on both builds.
        self._waiting: set[Tokens] = set()
        self._lock = RLock()  # re-entrant for a finalizer of the user's that runs inside
        # All below: guarded by _lock.
        self._missing = workers
        self._errors: dict[int, BaseException] = {}
        self._failed = False

    def begun(self, number: int, error: BaseException | None) -> None:
        """Note that a worker is ready, or what its ``worker_init_fn`` raised."""
        with self._lock:
            self._missing -= 1
            if error is not None:
                self._errors[number] = error
                self._failed = True
        self.nudge()

    def failed(self, number: int, error: BaseException) -> None:
        """Note the error by which a worker ended, or did not even begin; no epoch waits for it."""
        with suppress(BaseException):  # an error that refuses notes
            error.add_note(f"worker {number} could not run")
        with self._lock:
            self._errors[number] = error
            self._failed = True
        for epoch in self._epochs.all():
            epoch.cancel()

    def watch(self, epoch: Any) -> None:
        """Let ``epoch`` be cancelled if a worker can't begin; its consumer asks `take_error`."""
        self._epochs.add(epoch)
        if self._failed:  # in this order, or it could fail in between and cancel nothing
            epoch.cancel()

    def wait(self, timeout: float | None, epoch: Any) -> bool:
        """Wait until all workers have begun; return False if that takes too long.

        Args:
            timeout: Seconds; None waits for ever.
            epoch: Once it is ``cancelled`` there is nothing to wait for; `nudge` then.
        """
        # Unlocked: one attribute load, and workers that have begun stay so.
        if not self._missing:
            return True
        tokens: Tokens = SimpleQueue()
        try:
            self._waiting.add(tokens)  # in this order, or they could begin, and nobody be told
            return wait_until(lambda: not self._missing or epoch.cancelled, tokens, timeout)
        finally:
            self._waiting.discard(tokens)

    def nudge(self) -> None:
        """Let who waits look again."""
        for tokens in self._waiting.copy():
            tokens.put(None)

    def take_error(self) -> BaseException | None:
        """Return what the lowest of the workers raised, the first time; None if none did.

        It is not kept here, where the threads could reach it: once raised, it leads to the
        consumer's frames, and an iterator that its own threads hold is never dropped.
        """
        # Unlocked, as it is only ever set; each batch asks.
        if not self._failed:
            return None
        with self._lock:
            errors, self._errors = self._errors, {}
        return errors[min(errors)] if errors else ClosedError(_FAILED)
