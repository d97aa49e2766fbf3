"""One copy of the dataset object for each worker, sharing the data.

User code written for worker processes keeps state on ``self``: a file opened on first use, the
parameters that a transform drew for this sample.  In threads that state would be shared.  So
each worker gets its own *objects* over the same *data*: the dataset and the datasets inside it
are copied shallowly, the transforms on them deeply; arrays, tensors, lists of paths and
whatever else they refer to stays one.
"""

from __future__ import annotations

import copy
import functools
import queue
import random
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Literal

import numpy as np

from threadloader import _torch

__all__ = ["CONTAINERS", "LARGE", "MEETING_POINTS", "SHARED", "Copied", "Copier", "DatasetCopy"]
__all__ += ["attributes", "copy_dataset", "deep_copy", "is_dataset", "shallow"]

DatasetCopy = Literal["auto", "shared", "deep"] | Callable[[Any], Any]

# id -> (original, copy); keeping the original keeps its id from being used again.
Copied = dict[int, tuple[Any, Any]]

LARGE = 1000  # entries from which on a container counts as data: paths, a vocabulary

ENTRIES = 5000  # objects and entries copied of all transforms together; beyond that they are data

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# Data, and objects with no state of their own.
_DATA = (np.ndarray, np.generic, _torch.Tensor, str, bytes, int, float, complex, range)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
# Generators lock themselves; a copy in each worker would draw the same numbers as all others.
_GENERATORS = (
    *(random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    _torch.Generator,
)
# What threads meet at has to be one object.
MEETING_POINTS = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
    *(threading.Semaphore, threading.Barrier, threading.Thread, threading.local),
    *(queue.Queue, queue.SimpleQueue, Executor),
)
SHARED = (*_DATA, *_CODE, *_GENERATORS, *MEETING_POINTS, BaseException)


def copy_dataset(dataset: Any, how: DatasetCopy, copied: Copied | None = None) -> Any:
    """Return the dataset that one worker uses.

    Args:
        dataset: The user's dataset.
        how: ``"auto"`` copies dataset objects and transforms and shares the data; what refuses
            to be copied is shared.  ``"shared"`` is the object itself.  ``"deep"`` is
            ``copy.deepcopy``, data included.  A callable is called with the dataset.
        copied: Is told what was copied, for a collate function that refers to it.

    Raises:
        Exception: What ``copy.deepcopy`` or the callable raises.
    """
    copied = {} if copied is None else copied
    if callable(how) or how == "shared":
        twin = how(dataset) if callable(how) else dataset
        copied[id(dataset)] = dataset, twin
        return twin
    if how == "deep":
        return deep_copy(dataset, copied)
    if isinstance(dataset, (*CONTAINERS, *SHARED)):
        return dataset
    try:
        return Copier(copied).copy_object(dataset, deep=False)
    except RecursionError:  # a linked list of transforms, say
        copied.clear()
        return dataset


def deep_copy(value: Any, copied: Copied, shared: Iterable[Any] = ()) -> Any:
    """Return a ``copy.deepcopy``.

    Args:
        value: What is copied.
        copied: What was copied before; is told what is copied now.
        shared: Parts that are not copied.

    Raises:
        Exception: What ``copy.deepcopy`` raises; ``copied`` is as before then.
    """
    memo: dict[int, Any] = {key: twin for key, (_, twin) in copied.items()}
    memo.update((id(part), part) for part in shared)
    twin = copy.deepcopy(value, memo)
    kept = memo.pop(id(memo), ())  # the originals, so that no other object gets their ids
    copied.update((key, (kept, part)) for key, part in memo.items() if key not in copied)
    return twin


class Copier:
    """Copies one graph of objects; what is reached twice is copied once.

    Args:
        copied: What was copied before; is told what is copied now.
    """

    def __init__(self, copied: Copied | None = None) -> None:
        self._done: Copied = {} if copied is None else copied
        self._entries_left = ENTRIES

    def copy(self, value: Any, *, deep: bool) -> Any:
        """Return the copy of ``value``, or ``value`` itself where it is shared.

        Args:
            value: What an attribute holds.
            deep: Whether it belongs to a transform, all of which is copied, or to a dataset, of
                which only the datasets and transforms are.
        """
        if id(value) in self._done:
            return self._done[id(value)][1]
        kind = type(value)
        if isinstance(value, CONTAINERS):
            return self._container(value, deep=deep or callable(value))
        if kind is types.MethodType:
            # A method kept on self is bound to the original; its copy, to the copy.
            owner = self.copy(value.__self__, deep=deep)
            return types.MethodType(value.__func__, owner)
        if kind is functools.partial:
            keywords = self.copy(value.keywords, deep=True)
            args = self.copy(value.args, deep=True)
            return functools.partial(self.copy(value.func, deep=True), *args, **keywords)
        if isinstance(value, SHARED):
            return value
        if is_dataset(value):
            return self.copy_object(value, deep=False)
        if deep or callable(value):
            return self.copy_object(value, deep=True)
        return value

    def copy_object(self, value: Any, *, deep: bool) -> Any:
        """Copy one object and what is to be copied of its attributes."""
        if deep:
            self._entries_left -= 1
        shared = _closes_handle(value) or (deep and self._entries_left < 0)
        twin = value if shared else self._twin_of(value)
        self._done[id(value)] = (value, twin)
        if twin is not value:
            self._copy_attributes(twin, deep=deep)
        return twin

    def _twin_of(self, value: Any) -> Any:
        """Return a copy that has the attributes of ``value``; or ``value``, which is shared."""
        return shallow(value)

    def _copy_attributes(self, twin: Any, *, deep: bool) -> None:
        for name, part, is_slot in attributes(twin):
            copied = self.copy(part, deep=deep)
            if copied is part:
                continue
            # Neither by setattr(): a frozen class, a module or a property may have its own.
            if is_slot:
                object.__setattr__(twin, name, copied)
            else:
                twin.__dict__[name] = copied

    def _container(self, value: Any, *, deep: bool) -> Any:
        if deep:
            # Of a transform all, unless it is data.
            if len(value) > min(LARGE, self._entries_left):
                return value
            self._entries_left -= len(value)
        elif not _holds_parts(value):
            return value
        try:
            twin = self._container_of_copies(value, deep=deep)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            return self._keep(value, value)
        if type(value) not in CONTAINERS:
            self._copy_attributes(twin, deep=deep)
        return twin

    def _container_of_copies(self, value: Any, *, deep: bool) -> Any:
        if isinstance(value, (tuple, set, frozenset)):
            copies = [self.copy(entry, deep=deep) for entry in value]
            make = getattr(value, "_make", type(value))  # of a named tuple
            return self._keep(value, make(copies))
        # First of all, for a container that contains itself.
        twin = self._keep(value, copy.copy(value))
        for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
            twin[key] = self.copy(entry, deep=deep)
        return twin

    def _keep(self, value: Any, twin: Any) -> Any:
        self._done[id(value)] = (value, twin)
        return twin


def shallow(value: Any) -> Any:
    """Return a shallow copy, or ``value`` itself if its class refuses or returns another type."""
    try:
        twin = copy.copy(value)
    except Exception:  # noqa: BLE001  # whatever a class raises to refuse
        return value
    return twin if type(twin) is type(value) else value


def attributes(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield name and value of what is kept on the instance, and whether it is in a slot."""
    for name, part in list(getattr(value, "__dict__", {}).items()):
        yield name, part, False
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{kind.__name__.lstrip('_')}{slot}" if private else slot
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name), True


def _holds_parts(container: Any) -> bool:
    """Whether a container on a dataset has datasets or transforms in it."""
    if len(container) > LARGE:
        return False  # a list of paths, say
    entries = container.values() if isinstance(container, Mapping) else container
    one_of_each = {type(entry): entry for entry in entries}  # what it is, its type decides
    return any(is_dataset(entry) or callable(entry) for entry in one_of_each.values())


def is_dataset(value: object) -> bool:
    """Whether ``value`` is a dataset: torch's, or of a class that is indexed and sized.

    Only classes written in Python count, and none that extends a container or says how to copy
    itself (a data frame would copy its data).
    """
    if _torch.is_dataset(value):
        return True
    kind = type(value)
    if isinstance(value, CONTAINERS) or hasattr(kind, "__copy__"):
        return False
    return all(
        isinstance(getattr(kind, name, None), types.FunctionType)
        for name in ("__getitem__", "__len__")
    )


def _closes_handle(value: object) -> bool:
    """Whether ``value`` closes something open when it dies, which its copy would close too.

    That is, whether its ``__del__`` speaks of an attribute that holds something by now; a file
    that is opened on first use is None before, and then each copy may have its own.
    """
    if not hasattr(type(value), "__del__"):
        return False
    names = _names_used(type(value), "__del__", set())
    return any(
        name in names and part is not None and not (isinstance(part, CONTAINERS) and not part)
        for name, part, _ in attributes(value)
    )


def _names_used(kind: type, method: str, seen: set[str]) -> set[str]:
    """Return the names that a method speaks of, and the methods of its class that it calls."""
    seen.add(method)
    code = getattr(getattr(kind, method, None), "__code__", None)
    if code is not None:
        for name in code.co_names:
            if name not in seen:
                _names_used(kind, name, seen)
    return seen
