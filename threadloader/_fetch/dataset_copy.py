"""A copy of the dataset object for each worker; the data is shared.

User code written for worker processes keeps state on ``self``: a file opened on first use, the
parameters that a transform drew for this sample.  Threads would share that state.  So each worker
gets its own *objects* over the same *data*: the dataset and the datasets inside it are copied
shallowly, the transforms on them deeply.  Arrays, tensors, lists of paths and all other objects
are shared.
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

__all__ = ["CONTAINERS", "LARGE", "MEETING_POINTS", "Copied", "DatasetCopy", "ObjectCopier"]
__all__ += ["attributes", "copy_dataset", "deep_copy", "is_dataset", "shallow", "shared_classes"]

DatasetCopy = Literal["auto", "shared", "deep"] | Callable[[Any], Any]

# id -> (original, copy); keeping the original keeps its id from being used again.
Copied = dict[int, tuple[Any, Any]]

LARGE = 1000  # a container with more entries counts as data: paths, a vocabulary

ENTRIES = 5000  # the most objects and entries that are copied of all transforms together

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# Data, and objects with no state of their own.
_DATA = (np.ndarray, np.generic, _torch.Tensor, str, bytes, int, float, complex, range)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
# Threads can meet only at one and the same object.
MEETING_POINTS = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
    *(threading.Semaphore, threading.Barrier, threading.Thread, threading.local),
    *(queue.Queue, queue.SimpleQueue, Executor),
)


@functools.cache  # asked for late: `numpy.random` takes a while to import
def shared_classes() -> tuple[type, ...]:
    """Return the classes whose objects are never copied."""
    # Generators lock themselves; copies of one would all draw the same numbers.
    generators = (
        *(random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
        _torch.Generator,
    )
    return (*_DATA, *_CODE, *generators, *MEETING_POINTS, BaseException)


def copy_dataset(dataset: Any, how: DatasetCopy, copied: Copied | None = None) -> Any:
    """Return the dataset that one worker uses.

    Args:
        dataset: The user's dataset.
        how: ``"auto"`` copies dataset objects and transforms, and shares the data and objects that
            refuse to be copied.  ``"shared"`` is the object itself.  ``"deep"`` is
            ``copy.deepcopy``, data included.  A callable is called with the dataset.
        copied: Gets what is copied, for a collate function that refers to it.

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
    data = isinstance(dataset, (*CONTAINERS, *_DATA))  # first: the others import `numpy.random`
    if data or isinstance(dataset, shared_classes()):
        return dataset
    try:
        return ObjectCopier(copied).copy_object(dataset, deep=False)
    except RecursionError:  # a linked list of transforms, say
        copied.clear()
        return dataset


def deep_copy(value: Any, copied: Copied, shared: Iterable[Any] = ()) -> Any:
    """Return a ``copy.deepcopy``.

    Args:
        value: The object.
        copied: What was copied before; gets what is copied now.
        shared: Parts of it that are not copied.

    Raises:
        Exception: What ``copy.deepcopy`` raises; ``copied`` is as before then.
    """
    memo: dict[int, Any] = {key: twin for key, (_, twin) in copied.items()}
    memo.update((id(part), part) for part in shared)
    twin = copy.deepcopy(value, memo)
    kept = memo.pop(id(memo), ())  # the originals, so that no other object gets their ids
    copied.update((key, (kept, part)) for key, part in memo.items() if key not in copied)
    return twin


class ObjectCopier:
    """Copies one graph of objects; an object that is reached twice is copied once.

    Args:
        copied: What was copied before; gets what is copied now.
    """

    def __init__(self, copied: Copied | None = None) -> None:
        self._done: Copied = {} if copied is None else copied
        self._entries_left = ENTRIES

    def copy(self, value: Any, *, deep: bool) -> Any:
        """Return the copy of ``value``, or ``value`` itself if it is shared.

        Args:
            value: The value of an attribute.
            deep: Whether it belongs to a transform, of which everything is copied, or to a dataset,
                of which only the datasets and transforms are copied.
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
        if isinstance(value, shared_classes()):
            return value
        if is_dataset(value):
            return self.copy_object(value, deep=False)
        if deep or callable(value):
            return self.copy_object(value, deep=True)
        return value

    def copy_object(self, value: Any, *, deep: bool) -> Any:
        """Copy one object, and those of its attributes that are not shared."""
        if deep:
            self._entries_left -= 1
        shared = _closes_handle(value) or (deep and self._entries_left < 0)
        twin = value if shared else self._twin_of(value)
        self._done[id(value)] = (value, twin)
        if twin is not value:
            self._copy_attributes(twin, deep=deep)
        return twin

    def _twin_of(self, value: Any) -> Any:
        """Return a copy with the attributes of ``value``, or ``value`` itself if it is shared."""
        return shallow(value)

    def _copy_attributes(self, twin: Any, *, deep: bool) -> None:
        for name, part, is_slot in attributes(twin):
            copied = self.copy(part, deep=deep)
            if copied is part:
                continue
            # Not by setattr(): a frozen class, a module or a property may have one of its own.
            if is_slot:
                object.__setattr__(twin, name, copied)
            else:
                twin.__dict__[name] = copied

    def _container(self, value: Any, *, deep: bool) -> Any:
        if deep:
            # All containers of a transform are copied, unless they are data.
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
        # Noted before its entries are copied: a container may contain itself.
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
    """Yield name and value of each attribute of the instance, and whether it is in a slot."""
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
    one_of_each = {type(entry): entry for entry in entries}  # the type decides
    return any(is_dataset(entry) or callable(entry) for entry in one_of_each.values())


def is_dataset(value: object) -> bool:
    """Whether ``value`` is a dataset: torch's, or of a class with an index and a length.

    Only classes written in Python count, and none that extends a container or defines its own copy
    (a data frame would copy its data).
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
    """Whether ``value`` closes something when it dies, which its copy would close, too.

    It does if its ``__del__`` names an attribute that is not None now.  A file that is opened on
    first use is None before, and then each copy opens its own.
    """
    if not hasattr(type(value), "__del__"):
        return False
    names = _names_used(type(value), "__del__", set())
    return any(
        name in names and part is not None and not (isinstance(part, CONTAINERS) and not part)
        for name, part, _ in attributes(value)
    )


def _names_used(kind: type, method: str, seen: set[str]) -> set[str]:
    """Return the names in a method, and in the methods of its class that it calls."""
    seen.add(method)
    code = getattr(getattr(kind, method, None), "__code__", None)
    if code is not None:
        for name in code.co_names:
            if name not in seen:
                _names_used(kind, name, seen)
    return seen
