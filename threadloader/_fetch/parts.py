"""What an object leads to: its attributes, what is in a container, what a function holds."""

from __future__ import annotations

import functools
import types
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


OBJECTS = 10_000  # that are looked at, at most: what leads to more of them is data
LARGE = 1000  # a container with more entries counts as data: paths, a vocabulary

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# What leads to nothing and never changes; and the classes that objects have exactly, code included.
NUMBERS = (bool, int, float, complex, str, bytes, np.generic, types.NoneType)
ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None), type, types.ModuleType})


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Return what an object leads to, by names that are the same in each copy of it.

    A large container is data, and its entries are not looked at.
    """
    found: list[tuple[Any, Any]] = []
    if isinstance(value, CONTAINERS):
        found = entries(value) if len(value) <= LARGE else []
    elif isinstance(value, types.FunctionType):
        held = (*closure(value), *(value.__defaults__ or ()))
        found = list(enumerate((*held, *(value.__kwdefaults__ or {}).values())))
    elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        found = [("self", value.__self__)]
    elif isinstance(value, functools.partial):
        found = list(enumerate((value.func, *value.args, *value.keywords.values())))
    # "__orig_class__": of `Counter[int]()`
    return found + [(name, it) for name, it, _ in attributes(value) if name != "__orig_class__"]


def reached(
    root: Any, onward: Callable[[Any], Iterable[tuple[Any, Any]]], most: float = OBJECTS
) -> Iterator[Any]:
    """Yield an object and all that it leads to, each once, but for numbers and texts.

    Args:
        root: The object.
        onward: Returns what one of them leads to, as `parts`; asked after that one was yielded.
        most: How many are yielded.
    """
    seen: dict[int, Any] = {}
    found = [root]
    while found and len(seen) < most:
        value = found.pop()
        if type(value) not in ATOMS and id(value) not in seen:
            seen[id(value)] = value
            yield value
            found += [part for _, part in onward(value)]


def entries(container: Any) -> list[tuple[Any, Any]]:
    """Return keys and values of a container; others may put more in meanwhile."""
    while True:
        with suppress(RuntimeError):  # "mutated during iteration"
            return list(container.items() if isinstance(container, dict) else enumerate(container))


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


def shallow_copy(value: Any) -> Any:
    """Return an object with the same attributes, by none of its own methods.

    Raises:
        TypeError: It is an instance of a class of C, a list say.
    """
    twin = object.__new__(type(value))
    for name, part, is_slot in attributes(value):
        set_attribute(twin, name, part, is_slot=is_slot)
    return twin


def closure(function: types.FunctionType) -> list[Any]:
    """Return the values of a function's closure; a variable may have none."""
    held = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            held.append(cell.cell_contents)
    return held
