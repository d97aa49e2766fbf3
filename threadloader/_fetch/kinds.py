"""What kind of object one is: data, code, a meeting point of threads, or an object with attributes.

Workers share data, code and meeting points.  An object that is written in Python has no state
beside its attributes, so it can always be copied; what an object of a C class hides, only its class
can say.
"""

from __future__ import annotations

import functools
import queue
import random
import threading
import types
from collections import deque
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CODE", "CONTAINERS", "DATA", "IMMUTABLE", "LARGE", "MEETING_POINTS", "attributes"]
__all__ += ["bases_hide", "closure", "generator_classes", "is_array", "is_dataset", "is_model"]
__all__ += ["ATOMS", "NUMBERS", "entries", "is_helper", "is_ours", "one_of_each", "set_attribute"]
__all__ += ["shared_classes", "values"]

LARGE = 1000  # a container with more entries counts as data: paths, a vocabulary

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
DATA = (np.ndarray, np.generic, _torch.Tensor, str, bytes, bytearray, int, float, complex, range)
# What leads to nothing and never changes; and the classes that objects have exactly, code included.
NUMBERS = (bool, int, float, complex, str, bytes, np.generic, types.NoneType)
ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None), type, types.ModuleType})
# Objects with no state of their own.
CODE = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
    types.MappingProxyType,
)
# Threads can meet only at one and the same object.
MEETING_POINTS = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
    *(threading.Semaphore, threading.Barrier, threading.Thread, threading.local),
    *(queue.Queue, queue.SimpleQueue, Executor),
)

# The modules of classes whose objects never change.
IMMUTABLE = ("datetime", "decimal", "fractions", "pathlib", "re", "uuid", "zoneinfo")

# How a class says that its objects are arrays, frames or tables, for other libraries to read.
_ARRAYS = (
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__dataframe__"),
    *("__arrow_array__", "__arrow_c_array__", "__arrow_c_stream__"),
)

# What a helper object may do.
_WORKS = ("__getitem__", "__iter__", "__next__", "__enter__", "__getattr__")
_POINTER = tuple.__itemsize__  # bytes


@functools.cache  # asked for late: `numpy.random` takes a while to import
def generator_classes() -> tuple[type, ...]:
    """Return the classes of random generators."""
    generators = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return (*generators, _torch.Generator)


@functools.cache
def shared_classes() -> tuple[type, ...]:
    """Return the classes whose objects are never copied."""
    # Generators lock themselves; copies of one would all draw the same numbers.
    return (*DATA, *CODE, *generator_classes(), *MEETING_POINTS, BaseException)


def is_helper(kind: type) -> bool:
    """Whether objects of a class are helpers of a dataset: neither data nor its records.

    They have a method.
    """
    if hasattr(kind, "__copy__") or kind.__module__.partition(".")[0] in IMMUTABLE:
        return False
    return any(
        isinstance(part, types.FunctionType) and (name[:2] != "__" or name in _WORKS)
        for base in kind.__mro__[:-1]
        for name, part in vars(base).items()
    )


def is_ours(kind: type) -> bool:
    """Whether a class is of this package: threads may share its objects, but for datasets."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def entries(container: Any) -> list[Any]:
    """Return what is in a container, or the pairs of a dict; others may put more in meanwhile."""
    while True:
        with suppress(RuntimeError):  # "mutated during iteration"
            return list(container.items() if isinstance(container, dict) else container)


def values(container: Any) -> list[Any]:
    """Return what is in a container, or the values of a dict; see `entries`."""
    found = entries(container)
    return [value for _, value in found] if isinstance(container, dict) else found


def one_of_each(container: Any) -> dict[type, Any]:
    """Return one entry of a container for each class, by the class, which decides."""
    return {type(value): value for value in values(container)}


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


def attributes(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield name and value of each attribute of the instance, and whether it is in a slot."""
    # Not by getattr(): a class may have a ``__getattr__`` that looks inside another object.
    read = object.__getattribute__
    try:
        names = read(value, "__dict__")
    except (AttributeError, TypeError):  # TypeError: a class
        names = {}
    for name, part in list(names.items()):
        yield name, part, False
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{kind.__name__.lstrip('_')}{slot}" if private else slot
            if name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):  # it has no value
                    yield name, read(value, name), True


def set_attribute(twin: Any, name: str, value: Any, *, is_slot: bool) -> None:
    """Set an attribute: of a frozen class, a module, or behind a property."""
    if is_slot:
        object.__setattr__(twin, name, value)
    else:
        twin.__dict__[name] = value


def closure(function: types.FunctionType) -> list[Any]:
    """Return the values of a function's closure; a variable may have none."""
    held = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            held.append(cell.cell_contents)
    return held


def is_array(value: object) -> bool:
    """Whether a value is an array, frame or table, of any library's."""
    kind = type(value)
    if isinstance(value, DATA[:3]) or any(hasattr(kind, name) for name in _ARRAYS):
        return True
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):  # ValueError: it is closed
        return False
    return True


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


def is_model(value: object) -> bool:
    """Whether ``value`` is a module of torch's that has parameters."""
    if not _torch.is_module(value):
        return False
    return next(iter(value.parameters()), None) is not None  # type: ignore[attr-defined]
