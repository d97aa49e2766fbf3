"""The functions of `random` and `numpy.random`, redirected to the calling thread's stream.

User code calls module functions, and those share one generator in the whole process.  While
there are workers they ask for the calling thread's stream first; in threads that have none they
do what they always did, a little slower (bench: rng).

`random`: its hidden instance becomes one of a subclass whose primitive draws look for a stream.
So functions that were imported long ago (``from random import randint``) follow, as they are
methods of that instance; those that are written in C (``random``, ``getrandbits``) or reach past
the subclass (``seed``, ``getstate``, ``setstate``) are replaced in the module.

`numpy.random`: its functions are replaced in the module, and so is the hidden `RandomState`,
which libraries take for ``random_state=None``.
"""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from functools import update_wrapper
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader.rng import drawing_from, here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader.rng import WorkerStream

__all__ = ["isolated"]

_Random = random.Random
_shared: Any = vars(random)["_inst"]  # what the functions are methods of
_legacy: Any = vars(np.random.mtrand)["_rand"]  # the same for numpy.random
# Those of the module that are no methods of the hidden RandomState, but functions that use it.
_FUNCTIONS = ("seed", "sample", "ranf")


class _Redirected(_Random):
    """`random.Random`, whose primitive draws come from the thread's stream if it has one.

    All others are made of these by `random.Random` itself.  No ``super()``: a method that
    somebody imported in the meantime outlives the class of the instance.
    """

    def random(self) -> float:
        stream = here.stream
        return _Random.random(self) if stream is None else stream.random_generator.random()

    def getrandbits(self, k: int, /) -> int:
        stream = here.stream
        if stream is None:
            return _Random.getrandbits(self, k)
        return stream.random_generator.getrandbits(k)

    def seed(self, *args: Any, **kwargs: Any) -> None:
        stream = here.stream
        if stream is None:
            _Random.seed(self, *args, **kwargs)
        else:
            stream.random_generator.seed(*args, **kwargs)

    def getstate(self) -> Any:
        stream = here.stream
        return _Random.getstate(self) if stream is None else stream.random_generator.getstate()

    def setstate(self, state: Any) -> None:
        stream = here.stream
        if stream is None:
            _Random.setstate(self, state)
        else:
            stream.random_generator.setstate(state)

    @property
    def gauss_next(self) -> float | None:  # `gauss` keeps every second draw
        stream = here.stream
        if stream is None:
            return vars(self).get("gauss_next")
        return stream.random_generator.gauss_next  # type: ignore[attr-defined,no-any-return]

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        stream = here.stream
        if stream is None:
            vars(self)["gauss_next"] = value
        else:
            stream.random_generator.gauss_next = value  # type: ignore[attr-defined]


class _RedirectedLegacy(np.random.RandomState):
    """The hidden `RandomState` of `numpy.random`, as libraries see it while there are workers.

    One that a library keeps goes on to work when there are no workers any more.
    """


def _legacy_method(name: str) -> Callable[..., Any]:
    own = getattr(_legacy, name)

    def method(_: Any, *args: Any, **kwargs: Any) -> Any:
        stream = here.stream
        draw = own if stream is None else getattr(stream.legacy_generator, name)
        return draw(*args, **kwargs)

    return update_wrapper(method, own)


def _legacy_function(name: str) -> Callable[..., Any]:
    own = getattr(np.random, name)
    method = "random_sample" if name in ("sample", "ranf") else name

    def function(*args: Any, **kwargs: Any) -> Any:
        stream = here.stream
        draw = own if stream is None else getattr(stream.legacy_generator, method)
        return draw(*args, **kwargs)

    update_wrapper(function, own)
    function.__module__, function.__qualname__ = "numpy.random", name  # for pickle
    return function


def _replacements() -> list[tuple[Any, str, Any, Any]]:
    """Return what is replaced: module, name, before, after."""
    found: list[tuple[Any, str, Any, Any]] = []
    for name in ("random", "getrandbits", "seed", "getstate", "setstate"):
        method = getattr(_Redirected, name).__get__(_shared)
        found.append((random, name, getattr(random, name), method))
    methods = [
        name
        for name in dir(np.random)
        if getattr(getattr(np.random, name), "__self__", None) is _legacy
    ]
    found += [
        (np.random, name, getattr(np.random, name), _legacy_function(name))
        for name in (*methods, *_FUNCTIONS)
    ]
    for name in dir(_legacy):
        if not name.startswith("_") and callable(getattr(_legacy, name)):
            setattr(_RedirectedLegacy, name, _legacy_method(name))
    proxy = _RedirectedLegacy(_legacy._bit_generator)  # noqa: SLF001  # the very same state
    found.append((np.random.mtrand, "_rand", _legacy, proxy))
    return found


class _Hooks:
    """Whether the functions are redirected, and how many need it.

    Invariants, whenever ``_lock`` is not held:
        1. The functions are redirected if ``_holders`` is not 0.

    Threads:
        hold, release: shared.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        # All below: guarded by _lock.
        self._holders = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._replaced = self._replaced or _replacements()
                _shared.__class__ = _Redirected
                for module, name, _, after in self._replaced:
                    setattr(module, name, after)

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders:
                _shared.__class__ = random.Random
                for module, name, before, after in self._replaced:
                    if getattr(module, name) is after:  # else somebody else has replaced it since
                        setattr(module, name, before)

    def forked(self) -> None:
        """Start afresh in a child process: there are no workers, and the lock may be held."""
        self._lock = RLock()
        if self._holders:
            self._holders = 1
            self.release()
        if here.stream is not None:  # a worker forked: the child's random state is its own
            here.stream = here.outer = here.samples = None
            _torch.redirect(False)


_hooks = _Hooks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hooks.forked)


_taught = _torch.teach_random(here)  # for as long as the process lives


@contextmanager
def isolated(stream: WorkerStream | None) -> Iterator[None]:
    """Let the calling thread draw from ``stream``, and from those of its samples, while this lasts.

    Args:
        stream: The worker's; None changes nothing.
    """
    if stream is None:
        yield
        return
    _hooks.hold()
    try:
        with _torch.redirecting(), drawing_from(stream):
            yield
    finally:
        _hooks.release()
