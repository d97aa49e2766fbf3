"""The functions of `random` and `numpy.random`, redirected to the calling thread's stream.

User code calls functions of these modules, which share one generator in the whole process.  While
there are workers, they draw from the calling thread's stream.  In a thread without a stream they do
the same as ever, a little slower (bench: rng).

`random`: the class of its hidden instance becomes a subclass whose primitive draws look for a
stream.  Functions that were imported long ago (``from random import randint``) follow, since they
are methods of that instance.  Functions that are written in C (``random``, ``getrandbits``) or
bypass the subclass (``seed``, ``getstate``, ``setstate``) are replaced in the module.

`numpy.random`: the hidden `RandomState`, which libraries take for ``random_state=None``, is
replaced, and so are its methods in the module.  The functions `seed`, `sample` and `ranf` are no
methods, and ask the replaced one.

Pickles and copies that are made meanwhile are those without workers, and have no class of ours.

Importing this module takes many times as long as a small first batch, and loads `numpy.random`:
`isolation` imports it when something is to be redirected for the first time.
"""

from __future__ import annotations

import random
from functools import partial, update_wrapper
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._lifetime import fork_waits_for, in_forked_child
from threadloader._worker.streams import here
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_Random = random.Random
_shared: Any = vars(random).get("_inst")  # the instance whose methods the functions are
_legacy: Any = vars(np.random.mtrand).get("_rand")  # the same for numpy.random


class _Redirected(_Random):
    """`random.Random`, whose primitive draws come from the thread's stream if there is one.

    `random.Random` makes all other draws of these.  No ``super()``: a method that somebody
    imported meanwhile is called when the instance has its own class again.
    """

    def random(self) -> float:
        return _Random.random(_generator_for(self))

    def getrandbits(self, k: int, /) -> int:
        return _Random.getrandbits(_generator_for(self), k)

    def seed(self, *args: Any, **kwargs: Any) -> None:
        _Random.seed(_generator_for(self), *args, **kwargs)

    def getstate(self) -> Any:
        return _Random.getstate(_generator_for(self))

    def setstate(self, state: Any) -> None:
        _Random.setstate(_generator_for(self), state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Random, (), self.getstate()

    @property
    def gauss_next(self) -> float | None:  # `gauss` keeps every second draw
        return vars(_generator_for(self)).get("gauss_next")

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        vars(_generator_for(self))["gauss_next"] = value


def _generator_for(shared: _Redirected) -> _Random:
    """Return what the calling thread draws from; without a stream the instance that all share."""
    stream = here.stream
    return shared if stream is None else stream.random_generator


class _RedirectedLegacy(np.random.RandomState):
    """The hidden `RandomState` of `numpy.random`, as libraries see it while there are workers.

    If a library keeps it, it still works when there are no workers any more.
    """


def _legacy_method(name: str) -> Callable[..., Any]:
    own = getattr(_legacy, name)
    generator = attrgetter(f"legacy_generator.{name}")

    def method(_: Any, *args: Any, **kwargs: Any) -> Any:
        stream = here.stream
        draw = own if stream is None else generator(stream)
        return draw(*args, **kwargs)

    return update_wrapper(method, own)


class _Equal(partial[Any]):
    """A replaced function, equal to the one in whose place it is.

    numba and torch.compile look up by it what they know of a function, also while there are
    workers.  What they compile draws from generators of their own.
    """

    before: Any

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self.before == getattr(other, "before", other))

    def __hash__(self) -> int:
        return hash(self.before)

    def __reduce__(self) -> Any:
        return self.before.__reduce__()


def _equal(before: Any, function: Callable[..., Any]) -> _Equal:
    """Return a function that is equal to ``before``, with its name and its text."""
    equal = _Equal(function)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__self__"):
        vars(equal)[name] = getattr(before, name, None)
    equal.before = before
    return equal


class _Replaced(NamedTuple):
    """A name that is replaced while there are workers; left alone if somebody else replaces it."""

    module: dict[str, Any]  # its names
    name: str
    before: Any
    after: Any


def _replaced() -> Iterator[_Replaced]:
    if _shared is None:
        _warn_of("random")
    else:
        for name in ("random", "getrandbits", "seed", "getstate", "setstate"):
            before = vars(random)[name]
            method = getattr(_Redirected, name).__get__(_shared)
            yield _Replaced(vars(random), name, before, _equal(before, method))
    if _legacy is None:
        _warn_of("numpy.random")
        return
    for name in dir(_legacy):
        if not name.startswith("_") and callable(getattr(_legacy, name)):
            setattr(_RedirectedLegacy, name, _legacy_method(name))
    proxy = _RedirectedLegacy(_legacy._bit_generator)  # noqa: SLF001  # the very same state
    for name, before in vars(np.random).copy().items():
        if getattr(before, "__self__", None) is _legacy:
            yield _Replaced(vars(np.random), name, before, _equal(before, getattr(proxy, name)))
    yield _Replaced(vars(np.random.mtrand), "_rand", _legacy, proxy)


def _warn_of(module: str) -> None:
    warn_user(
        f"this {module} lacks the private names by which its functions are redirected: samples' "
        "numbers of it don't follow from the seed.  Draw from sample_rng()"
    )


class Hooks:
    """Whether the functions are redirected, and who needs that.

    Invariants, whenever ``_lock`` is not held:
        1. The functions are redirected if and only if there are ``_holders``.

    Threads:
        hold, release: shared, also from finalizers, which may run inside of either.
        lock: the thread that forks.
        forked: the thread of the child.
    """

    def __init__(self) -> None:
        self._replaced = tuple(_replaced())
        self._lock = RLock()
        # All below: guarded by _lock.
        self._holders: set[object] = set()
        self._redirected: bool | None = False  # None half-way: Ctrl-C may come up there
        self._settling = False  # whether `_settle` runs: a finalizer inside it leaves it the work

    def hold(self, holder: object) -> None:
        """Redirect the functions until `release` is called with the same holder."""
        with self._lock:
            self._holders.add(holder)
            self._settle()

    def release(self, holder: object) -> None:
        """Take back a `hold`.  Idempotent."""
        with self._lock:
            self._holders.discard(holder)  # the hold may be one of the parent process
            self._settle()

    def _settle(self) -> None:
        """Redirect the functions, or stop that, as the holders say.  Call with ``_lock`` held."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._redirected is not (redirect := bool(self._holders)):
                self._redirected = None
                self._exchange(redirect=redirect)
                self._redirected = redirect
        finally:
            self._settling = False

    def _exchange(self, *, redirect: bool) -> None:
        """Replace the names, or put back what they were; twice does no harm."""
        if redirect and _shared is not None:
            _shared.__class__ = _Redirected
        for module, name, before, after in self._replaced:
            old, new = (before, after) if redirect else (after, before)
            if module.get(name) is old:
                module[name] = new
        if not redirect and _shared is not None:  # last: its methods may be called until here
            _shared.__class__ = _Random

    def lock(self) -> RLock:
        """Return the lock, which a fork waits for.

        To exchange a class, a free-threaded build stops all threads.  A child that is forked
        meanwhile waits for ever when it stops them next, to collect garbage say (CPython 3.13.15:
        5 of 5 forks beside threads that do nothing else; since 3.14.7 none of 300).
        """
        return self._lock

    def forked(self) -> None:
        """Start anew in a child process: it has no workers, and the lock may be held."""
        self._lock = RLock()
        self._holders, self._settling = set(), False
        self._redirected = None  # not known: the fork may have come half-way
        self._settle()
        if here.stream is not None:  # a worker forked: the child's random state is its own
            here.stream = here.outer = None
            if operators is not None:
                operators.stop()


operators = _torch.teach_random(here)  # None where none are redirected
hooks = Hooks()
in_forked_child(hooks.forked)
fork_waits_for(hooks.lock)
