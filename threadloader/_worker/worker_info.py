"""Who a worker is: what `get_worker_info()` answers, thread by thread.

User code calls torch's function, which it may have imported at any time and under any name.  So
that very function learns about threads (see `_torch.teach_worker_info`).  Without torch there is
a function here.

In torch, threads that a dataset starts are in a worker's process, and `get_worker_info()` answers
there.  Here they would belong to no worker.  Where threads inherit context variables, as since
Python 3.14 without a GIL, one tells them.  Until then, and with a GIL, once there are workers
`Thread.start` lets the new thread know what the calling one does, whatever its class.

A thread of an executor or a pool knows what the thread knew that started it, whoever submits its
tasks.  Not covered: ``_thread.start_new_thread``, and threads of C libraries.
"""

from __future__ import annotations

import sys
import threading
import weakref
from contextlib import contextmanager
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader import _torch
from threadloader._lifetime import DROPPED, in_forked_child
from threadloader._worker.surroundings import PASS_SEED, WORKER_INFO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")

_MISSING: Any = object()
_INHERITS = bool(getattr(sys.flags, "thread_inherit_context", False))


class _Local(threading.local):
    info: Any  # a WorkerInfo, in a worker
    # The same, as worker 0 of 1, and what threads are told of that; see `in_part`.
    alone: tuple[Any, Any, Any] = (None, None, None)
    pass_seed: int | None

    def __init__(self) -> None:  # in each thread
        self.info, self.pass_seed = WORKER_INFO.get(), PASS_SEED.get()


_here = _Local()
_WorkerInfo: Any = type(_torch.make_worker_info(0, 1, 0, None, None))


class _PropagatedInfo(_WorkerInfo):  # type: ignore[misc]  # torch's, or ours
    """The info of a worker in a thread that it started: the same, but it keeps no dataset alive.

    A thread may outlive its worker by far, and often ends because the dataset is dropped.
    """

    __slots__ = ("_dataset",)

    dataset = property(lambda self: self._dataset())

    @classmethod
    def of(cls, info: Any) -> Any:
        """Return a worker's info for a thread that it starts."""
        if info is None or type(info) is cls:
            return info
        propagated = cls.__new__(cls)
        names = set(getattr(info, "__dataclass_fields__", None) or vars(info))
        for name in names - {"dataset"}:
            object.__setattr__(propagated, name, getattr(info, name))  # it is frozen
        dataset = info.dataset
        try:
            refer: Any = weakref.ref(dataset)
        except TypeError:  # a list, say
            refer = partial(_same, dataset)
        object.__setattr__(propagated, "_dataset", refer)
        return propagated


def _same(value: Any) -> Any:
    return value


# What stands in the place of `Thread.start`, and whether it is installed.
_replaced: dict[str, Any] = {}


def _propagate() -> None:
    """Begin to tell threads that are started who their worker is, for good.

    It is never undone: others may have replaced the same function since.  There is no lock, which a
    child could be forked with: whoever comes second puts the same function in place again, since
    `dict.setdefault` is atomic on both builds.  Until 3.14 without a GIL; later ones inherit it.
    """
    if _INHERITS or "installed" in _replaced:
        return
    thread: Any = Thread
    thread.start = _replaced.setdefault("start", _start(thread.start))
    _replaced["installed"] = True


def _start(original: Callable[[Thread], None]) -> Callable[[Thread], None]:
    @wraps(original)
    def start(self: Thread) -> None:
        info, seed = _here.info, _here.pass_seed
        if info is None and seed is None:
            return original(self)
        told = _PropagatedInfo.of(info)
        # On the instance, since subclasses have a run() of their own; it may have one, too.
        names, run = vars(self), self.run
        before = names.get("run", _MISSING)

        def run_in_context() -> None:
            put_back()
            _here.info, _here.pass_seed = told, seed
            run()

        def put_back() -> None:
            if names.get("run") is run_in_context:
                names.pop("run") if before is _MISSING else names.update(run=before)

        names["run"] = run_in_context
        try:
            return original(self)
        except BaseException:  # no thread is to be had, or it was started before
            put_back()
            raise

    return start


@in_forked_child
def _forget() -> None:
    """Forget the worker: a process that it forks is none of this loader's workers."""
    _here.info = None
    if _INHERITS:
        WORKER_INFO.set(None)


if _torch.AVAILABLE:
    _torch.teach_worker_info(_here)
    get_worker_info = _torch.get_worker_info
else:

    def get_worker_info() -> Any:
        """Return the calling worker's id, number of workers, seed and dataset; None in no worker.

        Where torch is installed, this is torch's function.
        """
        return _here.info


def pass_seed_here() -> int | None:
    """Return the seed of the pass over an iterable dataset that the calling thread begins.

    It is one number for all replicas, another one in each epoch, and the same when the epoch is
    resumed.  None where no `ThreadLoader` calls the dataset's ``__iter__``.
    """
    return _here.pass_seed


def in_pass(seed: int | None, function: Callable[..., T], *args: Any) -> T:
    """Call a function inside of which `pass_seed_here` returns ``seed``.

    It also returns it in threads that the function starts, as long as they live.
    """
    _propagate()
    # No context manager: Ctrl-C can come up in one before it has put back what was there.
    before = _here.pass_seed
    try:
        _here.pass_seed = seed
        if _INHERITS:
            PASS_SEED.set(seed)
        return function(*args)
    finally:
        _here.pass_seed = before
        if _INHERITS:
            PASS_SEED.set(before)
        function, args = DROPPED, ()  # an error keeps this frame


def in_part(seed: int | None, function: Callable[..., T], *args: Any) -> T:
    """Call a function as `in_pass` does; inside of it a worker is worker 0 of 1.

    So a part that was asked for is not shared out once more, by who looks at `get_worker_info`.
    """
    info, told = _here.info, WORKER_INFO.get()
    try:
        if info is not None:
            if _here.alone[0] is not info:
                alone = _torch.make_worker_info(0, 1, info.seed, info.dataset, info.rng)
                _here.alone = info, alone, _PropagatedInfo.of(alone)
            _here.info = _here.alone[1]
            if _INHERITS:
                WORKER_INFO.set(_here.alone[2])
        return in_pass(seed, function, *args)
    finally:
        _here.info = info
        if _INHERITS:
            WORKER_INFO.set(told)
        function, args = DROPPED, ()  # an error keeps this frame
        info = told = alone = DROPPED  # the same


class Introduction:
    """Lets `get_worker_info()` describe the consumer's thread as a worker, for a call at a time.

    Args:
        number: See `introduced`; so for the others.
        workers: See `introduced`.
        base_seed: See `introduced`.
        dataset: See `introduced`.
        rng: See `introduced`.
    """

    __slots__ = ("_info", "_told")

    def __init__(
        self, number: int, workers: int, base_seed: int, dataset: Any, rng: Any = None
    ) -> None:
        _propagate()
        self._info = _torch.make_worker_info(number, workers, base_seed + number, dataset, rng)
        self._told = _PropagatedInfo.of(self._info)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in which the calling thread is that worker."""
        # No context manager: Ctrl-C can come up in one before it has put back what was there.
        grad = _torch.grad_enabled()  # a sample may switch it off, which ends with a thread
        info, told = _here.info, WORKER_INFO.get()
        try:
            _here.info = self._info
            if _INHERITS:
                WORKER_INFO.set(self._told)
            return function(*args)
        finally:
            _here.info = info
            if _INHERITS:
                WORKER_INFO.set(told)
            _torch.restore_grad(grad)
            self = function = DROPPED  # an error keeps this frame
            args = ()


@contextmanager
def introduced(
    number: int, workers: int, base_seed: int, dataset: Any, rng: Any = None
) -> Iterator[None]:
    """Let `get_worker_info()` describe the calling thread as a worker, inside this context.

    It also describes threads that are started meanwhile, as long as they live.

    Args:
        number: The worker, from 0.
        workers: How many there are.
        base_seed: Drawn once for all workers; a worker's seed is this plus its number.
        dataset: This worker's copy.
        rng: An object with its generators.
    """
    _propagate()
    before, told = _here.info, WORKER_INFO.get()
    _here.info = _torch.make_worker_info(number, workers, base_seed + number, dataset, rng)
    if _INHERITS:
        WORKER_INFO.set(_PropagatedInfo.of(_here.info))
    try:
        yield
    finally:
        _here.info = before
        if _INHERITS:
            WORKER_INFO.set(told)
