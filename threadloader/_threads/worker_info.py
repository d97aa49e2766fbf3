"""Who a worker is: what `get_worker_info()` answers, thread by thread.

User code asks torch's function, imported whenever and under any name, so that very function is
taught about threads (see `_torch.teach_worker_info`).  Without torch there is one here.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader import _torch
from threadloader._lifetime.dropping import DROPPED
from threadloader._lifetime.process import in_forked_child
from threadloader._threads.started_threads import HandingOn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["get_worker_info", "in_pass", "introduced", "pass_seed_here"]

T = TypeVar("T")


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
