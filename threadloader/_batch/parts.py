"""What objects are made of, read from their memory: attributes, slots, entries, a closure.

By none of their own methods: a class may have a ``__getattr__`` that looks inside another object,
and a ``__dict__`` or ``__class__`` that is not its own.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import functools
import io
import pathlib
import random
import types
import weakref
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# The classes of what leads to nothing and never changes.
_BY_VALUE: frozenset[type] = frozenset(
    {bool, bytes, complex, float, int, str, type(None), type, types.ModuleType}
)
ATOMS: frozenset[type] = _BY_VALUE | {
    *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
    *(pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath),
}
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_POINTER = tuple.__itemsize__  # bytes
OF_CTYPES: Any = (ctypes.Array, ctypes.Structure, ctypes.Union, ctypes.c_int.__base__)


class Layout(NamedTuple):
    """Where objects of a class keep what they have."""

    dict_of: Callable[[Any], Any]  # returns the dict of an object's attributes; None for none
    slots: tuple[types.MemberDescriptorType, ...]
    hides_memory: bool  # that of a C class, beside a dictionary and slots

    @classmethod
    def of(cls, kind: type) -> Layout:
        """Return that of a class."""
        slots = tuple(
            each
            for base in kind.__mro__
            if "__slots__" in vars(base)
            for each in vars(base).values()
            if type(each) is types.MemberDescriptorType
        )
        size = object.__basicsize__ + _POINTER * len(slots)
        # Where they are not negative, in front of the object.
        size += _POINTER * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
        hides = kind.__basicsize__ != size or kind.__itemsize__ != 0
        return cls(_dict_getter(kind), slots, hides)


# What was found.  Two threads may find the same at once.
_layouts: weakref.WeakKeyDictionary[type, Layout] = weakref.WeakKeyDictionary()


def layout_of(kind: type) -> Layout:
    """Return where objects of a class keep what they have."""
    found = _layouts.get(kind)
    if found is None:
        found = _layouts[kind] = Layout.of(kind)
    return found


def _dict_getter(kind: type) -> Callable[[Any], Any]:
    for base in kind.__mro__:
        found = vars(base).get("__dict__")
        if type(found) is types.GetSetDescriptorType and found.__objclass__ is base:
            return found.__get__
    return _dict_by_name if kind.__dictoffset__ else _nothing


def _dict_by_name(value: Any) -> Any:
    """Return the dict of an object of a C class that has no descriptor for it."""
    return object.__getattribute__(value, "__dict__")


def _nothing(_: Any) -> None:
    """Return the dict of an object that has none."""


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute of the instance, those in slots last."""
    layout = layout_of(type(value))
    names = layout.dict_of(value)
    yield from dict.copy(names if isinstance(names, dict) else {}).items()  # not of a class
    for slot in layout.slots:
        try:
            part = slot.__get__(value)
        except AttributeError:  # it has no value
            continue
        yield slot.__name__, part


def set_attribute(twin: Any, name: str, value: Any) -> None:
    """Set an attribute: of a frozen class, a module, or behind a property."""
    layout = layout_of(type(twin))
    for slot in layout.slots:
        if slot.__name__ == name:
            slot.__set__(twin, value)
            return
    layout.dict_of(twin)[name] = value


def delete_attribute(twin: Any, name: str) -> None:
    """Delete an attribute, if there is one."""
    layout = layout_of(type(twin))
    for slot in layout.slots:
        if slot.__name__ == name:
            slot.__delete__(twin)
            return
    layout.dict_of(twin).pop(name, None)


def entries(container: Any) -> list[Any]:
    """Return what is in a container now: pairs of a dict, or else entries.

    Others may put more in meanwhile.
    """
    is_dict = isinstance(container, dict)
    base: Any = next(base for base in (OrderedDict, *CONTAINERS) if isinstance(container, base))
    while True:
        with suppress(RuntimeError, KeyError):  # "mutated during iteration"
            return list(base.items(container) if is_dict else base.__iter__(container))


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Return what an object leads to, with names that are the same in each copy of it."""
    found: list[tuple[Any, Any]] = list(attributes(value))
    if isinstance(value, CONTAINERS):
        inside = entries(value)
        found += inside if isinstance(value, dict) else enumerate(inside)
    elif isinstance(value, types.FunctionType):
        found += [*_closure(value), *defaults(value)]
    elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        found.append(("self", value.__self__))
    elif isinstance(value, functools.partial):
        found += [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    return found


def state_of(value: Any) -> list[Any]:
    """Return what an object holds: to see whether anything in it was set or added since."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return list(value)
    if kind is list or kind is set:
        return list(kind.copy(value))
    if kind is dict:
        found = dict.copy(value)
        return [*found, *found.values()]
    if kind is np.ndarray:
        return value.ravel().tolist() if value.dtype == object else []
    if kind is types.CellType:
        with suppress(ValueError):  # the variable has no value
            return [value.cell_contents]
        return []
    layout = layout_of(kind)
    hides = layout.hides_memory and kind is not _torch.Tensor
    names = None if layout.slots or hides else layout.dict_of(value)
    if isinstance(names, dict):  # a third of the time
        found = dict.copy(names)
        return [*found, *found.values()]
    return [each for pair in parts(value) for each in pair] + _hidden(value)


def _hidden(value: Any) -> list[Any]:
    """Return what an object of C holds beside its parts."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        held: list[Any] = value.ravel().tolist()
        return held
    if isinstance(value, io.StringIO):
        return [value.getvalue()]
    if isinstance(value, OF_CTYPES):
        return [bytes(memoryview(value))]
    return [repr(value.getstate())] if isinstance(value, random.Random) else []


def is_same(now: Any, before: Any) -> bool:
    """Whether a part is the one that was there before; of numbers and texts, an equal one.

    Equal dates may be of two time zones.
    """
    return now is before or (type(now) is type(before) and type(now) in _BY_VALUE and now == before)


def is_flat(container: Any) -> bool:
    """Whether a list, tuple, set or dict holds only what leads to nothing and never changes."""
    while True:
        with suppress(RuntimeError):  # "changed size during iteration"
            if not ATOMS.issuperset(map(type, container)):
                return False
            values = dict.values(container) if isinstance(container, dict) else ()
            return ATOMS.issuperset(map(type, values))


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each variable around a function that has one."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):
            yield name, cell.cell_contents


def defaults(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return name and value of each argument that has a default, keywords last."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return [*zip(names, values, strict=False), *(function.__kwdefaults__ or {}).items()]
