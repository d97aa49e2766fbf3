"""What kind of object one is, which decides whether workers share it: one table, by the class.

Workers share what never changes, data, and where threads meet.  An object that is written in Python
has no state beside its attributes, so it can always be copied; what an object of a C class hides,
only its class can say.
"""

from __future__ import annotations

import functools
import queue
import random
import threading
import types
import weakref
from concurrent.futures import Executor
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._fetch.parts import CONTAINERS
from threadloader._fetch.single_owner import SHARED, rule_for

if TYPE_CHECKING:
    from collections.abc import Callable


class Kind(Enum):
    """The table's rows in their order: the first that fits a class is its objects' kind."""

    FUNCTION = auto()  # or a method, or a partial
    CONTAINER = auto()
    GENERATOR = auto()  # of random numbers
    CONSTANT = auto()  # a text, a class, a module, a date, an exception: leads to nothing
    MEETING = auto()  # a lock, a thread, a queue, a loader
    OPENED = auto()  # by a library that is known, see `single_owner`
    DATA = auto()  # an array, a frame, a table; or what locks itself
    DATASET = auto()
    CALLED = auto()  # a transform, say
    HIDDEN = auto()  # of a C class, which has memory beside attributes
    HELPER = auto()  # has methods
    RECORD = auto()  # attributes alone

    @property
    def is_shared(self) -> bool:
        """Whether workers share such objects, and all that they lead to."""
        return self in (Kind.CONSTANT, Kind.MEETING, Kind.DATA)


# Threads can meet only at one and the same object.
MEETING_POINTS = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
    *(threading.Semaphore, threading.Barrier, threading.Thread, threading.local),
    *(queue.Queue, queue.SimpleQueue, Executor),
)
_MEETING = (*MEETING_POINTS, _torch.DataLoader)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_CONSTANT = (
    *(str, bytes, int, float, complex, range, np.generic, types.NoneType, Enum, BaseException),
    *(type, types.BuiltinFunctionType, types.ModuleType, types.MappingProxyType),
)
# The modules of classes whose objects never change.
_IMMUTABLE = ("datetime", "decimal", "fractions", "pathlib", "re", "uuid", "zoneinfo")

# How a class says that its objects are arrays, frames or tables, for other libraries to read.
_ARRAYS = (
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__dataframe__"),
    *("__arrow_array__", "__arrow_c_array__", "__arrow_c_stream__"),
)

# What a helper object may do.
_WORKS = ("__getitem__", "__iter__", "__next__", "__enter__", "__getattr__")
_POINTER = tuple.__itemsize__  # bytes


@functools.cache  # asked for late: `numpy.random` takes a while to import
def _generators() -> tuple[type, ...]:
    generators = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return (*generators, _torch.Generator)


_TABLE: tuple[tuple[Kind, Callable[[Any, type], bool]], ...] = (
    (Kind.FUNCTION, lambda value, _: isinstance(value, _FUNCTIONS)),
    (Kind.CONTAINER, lambda value, _: isinstance(value, CONTAINERS)),
    (Kind.GENERATOR, lambda value, _: isinstance(value, _generators())),
    (Kind.CONSTANT, lambda value, kind: isinstance(value, _CONSTANT) or _is_immutable(kind)),
    (Kind.MEETING, lambda value, _: isinstance(value, _MEETING)),
    (Kind.OPENED, lambda _, kind: rule_for(kind) not in (None, SHARED)),
    (Kind.DATA, lambda value, kind: rule_for(kind) is SHARED or is_array(value)),
    (Kind.DATASET, lambda value, _: _is_dataset(value)),
    (Kind.DATA, lambda _, kind: is_ours(kind)),
    (Kind.CALLED, lambda value, _: callable(value)),
    (Kind.HIDDEN, lambda _, kind: bases_hide(kind) and not hasattr(kind, "__copy__")),
    (Kind.HELPER, lambda _, kind: has_methods(kind)),
    (Kind.RECORD, lambda *_: True),
)
# What was found.  Two threads may find the same at once.
_found: weakref.WeakKeyDictionary[type, Kind] = weakref.WeakKeyDictionary()


def kind_of(value: Any) -> Kind:
    """Return the kind of an object; its class decides."""
    kind = type(value)
    found = _found.get(kind)
    if found is None:
        found = next(each for each, fits in _TABLE if fits(value, kind))
        _found[kind] = found
    return found


def _is_immutable(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _IMMUTABLE


def has_methods(kind: type) -> bool:
    """Whether objects of a class are helpers of a dataset: neither data nor its records."""
    return not hasattr(kind, "__copy__") and any(
        isinstance(part, types.FunctionType) and (name[:2] != "__" or name in _WORKS)
        for base in kind.__mro__[:-1]
        for name, part in vars(base).items()
    )


def is_ours(kind: type) -> bool:
    """Whether a class is of this package: threads may share its objects, but for datasets."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def bases_hide(kind: type) -> bool:
    """Whether objects of a class have memory beside a dictionary and slots: that of a C class."""
    size = object.__basicsize__
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        names = (names,) if isinstance(names, str) else tuple(names)
        size += _POINTER * sum(name not in ("__dict__", "__weakref__") for name in names)
    # Where they are not negative, in front of the object.
    size += _POINTER * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return kind.__basicsize__ != size or kind.__itemsize__ != 0


def is_array(value: object) -> bool:
    """Whether a value is an array, frame or table, of any library's."""
    kind = type(value)
    if isinstance(value, _torch.Tensor) or any(hasattr(kind, name) for name in _ARRAYS):
        return True
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):  # ValueError: it is closed
        return False
    return True


def _is_dataset(value: object) -> bool:
    """Whether ``value`` is a dataset: torch's, or of a class with an index and a length.

    Only classes written in Python count, and none that defines its own copy (a data frame would
    copy its data).
    """
    kind = type(value)
    return _torch.is_dataset(value) or (
        not hasattr(kind, "__copy__")
        and all(
            isinstance(getattr(kind, name, None), types.FunctionType)
            for name in ("__getitem__", "__len__")
        )
    )


def is_model(value: object) -> bool:
    """Whether ``value`` is a module of torch's that has parameters."""
    if not _torch.is_module(value):
        return False
    return next(iter(value.parameters()), None) is not None  # type: ignore[attr-defined]
