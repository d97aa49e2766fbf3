"""Who a worker is: what `get_worker_info()` answers, thread by thread.

User code calls torch's function, which it may have imported at any time and under any name.  So
that very function learns about threads (see `_torch.teach_worker_info`).  Without torch there is
a function here.

In torch, threads that a dataset starts are in a worker's process, and `get_worker_info()` answers
there.  Here they would belong to no worker.  So once there are workers, `Thread.start` asks for
the calling thread's context, and the new thread runs in it, whatever its class.

Any thread may start a thread of a `ThreadPoolExecutor`, which then works for all.  So such a thread
has no context of its own: each task runs in the context of its submitter.  Not covered:
``_thread.start_new_thread``, threads of C libraries, an executor's ``initializer``, and tasks of
other pools, which run in the context of the pool's maker.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader import _torch
from threadloader._lifetime import DROPPED, in_forked_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    # Makes a context manager, inside of which another thread has the asking thread's context.
    MakesContext = Callable[[], AbstractContextManager[None]]


T = TypeVar("T")

_MISSING: Any = object()


class _Local(threading.local):
    info: Any = None  # a WorkerInfo, in a worker
    alone: tuple[Any, Any] = (None, None)  # the same, and as worker 0 of 1; see `in_part`
    pass_seed: int | None = None
    submits = False  # whether the thread is about to start an executor's thread


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


def _context_here() -> MakesContext | None:
    """Return a maker of the calling thread's context for another one; None outside workers."""
    info, seed = _here.info, _here.pass_seed
    if info is None and seed is None:
        return None
    return partial(_in_context, _PropagatedInfo.of(info), seed)


@contextmanager
def _in_context(info: Any, seed: int | None) -> Iterator[None]:
    before = _here.info, _here.pass_seed
    _here.info, _here.pass_seed = info, seed
    try:
        yield
    finally:
        _here.info, _here.pass_seed = before


# What propagates contexts in the place of functions of Python's, and whether it is installed.
_replaced: dict[str, Any] = {}


def _propagate() -> None:
    """Begin to propagate contexts to threads that are started, for good.

    It is never undone: others may have replaced the same functions since.  There is no lock, which
    a child could be forked with: whoever comes second puts the same functions in place again, since
    `dict.setdefault` is atomic on both builds.
    """
    if "installed" in _replaced:
        return
    thread: Any = Thread
    executor: Any = ThreadPoolExecutor
    thread.start = _replaced.setdefault("start", _start(thread.start))
    executor.submit = _replaced.setdefault("submit", _submit(executor.submit))
    _replaced["installed"] = True


def _start(original: Callable[[Thread], None]) -> Callable[[Thread], None]:
    @wraps(original)
    def start(self: Thread) -> None:
        context = _context_here()
        if context is None or _here.submits:
            return original(self)
        # On the instance, since subclasses have a run() of their own; it may have one, too.
        names, run = vars(self), self.run
        before = names.get("run", _MISSING)

        def run_in_context() -> None:
            put_back()
            with context():
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


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        context = _context_here()
        if context is None or not _runs_here(self):
            return original(self, fn, *args, **kwargs)
        before, _here.submits = _here.submits, True
        try:
            return original(self, partial(_call, context, fn), *args, **kwargs)
        finally:
            _here.submits = before

    return submit


def _call(context: MakesContext, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function in its submitter's context."""
    with context():
        return function(*args, **kwargs)


def _runs_here(executor: Any) -> bool:
    """Whether tasks run in this interpreter; to another one only what can be pickled is sent."""
    return all(
        kind.__module__ != "concurrent.futures.interpreter" for kind in type(executor).__mro__
    )


@in_forked_child
def _forget() -> None:
    """Forget the worker: a process that it forks is none of this loader's workers."""
    _here.info = None


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
    before, _here.pass_seed = _here.pass_seed, seed
    try:
        return function(*args)
    finally:
        _here.pass_seed = before
        function, args = DROPPED, ()  # an error keeps this frame


def in_part(seed: int | None, function: Callable[..., T], *args: Any) -> T:
    """Call a function as `in_pass` does; inside of it a worker is worker 0 of 1.

    So a part that was asked for is not shared out once more, by who looks at `get_worker_info`.
    """
    info = _here.info
    try:
        if info is not None:
            if _here.alone[0] is not info:
                alone = _torch.make_worker_info(0, 1, info.seed, info.dataset, info.rng)
                _here.alone = info, alone
            _here.info = _here.alone[1]
        return in_pass(seed, function, *args)
    finally:
        _here.info = info
        function, args = DROPPED, ()  # an error keeps this frame
        info = alone = DROPPED  # the same


class Introduction:
    """Lets `get_worker_info()` describe the consumer's thread as a worker, for a call at a time.

    Args:
        number: See `introduced`; so for the others.
        workers: See `introduced`.
        base_seed: See `introduced`.
        dataset: See `introduced`.
        rng: See `introduced`.
    """

    __slots__ = ("_info",)

    def __init__(
        self, number: int, workers: int, base_seed: int, dataset: Any, rng: Any = None
    ) -> None:
        _propagate()
        self._info = _torch.make_worker_info(number, workers, base_seed + number, dataset, rng)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in which the calling thread is that worker."""
        # No context manager: Ctrl-C can come up in one before it has put back what was there.
        grad = _torch.grad_enabled()  # a sample may switch it off, which ends with a thread
        before, _here.info = _here.info, self._info
        try:
            return function(*args)
        finally:
            _here.info = before
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
    before = _here.info
    _here.info = _torch.make_worker_info(number, workers, base_seed + number, dataset, rng)
    try:
        yield
    finally:
        _here.info = before
