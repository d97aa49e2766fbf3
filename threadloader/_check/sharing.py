"""What workers share: every object that is reached from the copies of two of them, and its state.

So an object that each worker has a copy of is none of it, and whatever dataset_copy says is taken
into account.  Besides, there are the attributes of classes and the global variables that the code
of these objects uses, and what belongs to the whole process.

A state is shallow: of attributes and entries it has the plain values, and the identity of all
others, which have states of their own.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._check.contents import array_of
from threadloader._check.whose_code import OURS, USER, whose
from threadloader._fetch.copy_rules import is_meeting
from threadloader._fetch.generators import is_generator_class
from threadloader._fetch.own_copy import LARGE
from threadloader._fetch.parts import CONTAINERS, attributes, parts
from threadloader._threads.per_thread import PerThread

if TYPE_CHECKING:
    from types import CodeType


WHOLE_NBYTES = 1 << 20  # of larger arrays some elements are looked at
SOME = 4096  # elements
_EXACT = frozenset({int, float, complex, str, bytes, bool, type(None)})
_NAMED = frozenset({"shared-attribute", "class-attribute", "global-variable"})


class _It:
    """One object, which is equal to itself alone; kept, so that no other gets its id."""

    __slots__ = ("it",)
    __hash__ = None  # type: ignore[assignment]  # never asked for

    def __init__(self, it: object) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _It) and self.it is other.it


@dataclass(frozen=True, slots=True, eq=False)
class SharedObject:
    """One object that workers share.

    Args:
        path: How it is reached, as ``dataset.reader``.
        kind: Of the finding where samples that change it come out wrong.
        value: The object.
        read: Returns its state.
    """

    path: str
    kind: str
    value: Any
    read: Callable[[Any], Any]

    def state(self) -> Any:
        """Return the state now; None where it can't be read."""
        try:
            return self.read(self.value)
        except Exception:  # noqa: BLE001  # a closed file, say, or whatever a class raises
            return None

    def name(self, before: Any, after: Any) -> str:
        """Return the path, with the attribute or variable that differs between two states."""
        if self.kind in _NAMED:
            old, new = (dict(state or ()) for state in (before, after))
            for name in (*new, *old):
                if name not in old or name not in new or old[name] != new[name]:
                    return f"{self.path}.{name}"
        return self.path

    def numbers(self) -> dict[Any, float]:
        """Return the numbers that it holds by their names or places.

        Only of a number is it known that no update may be lost: a cache may forget an entry.
        """
        array = array_of(self.value)
        state = self.state() if array is None else tuple(array.ravel()[:SOME].tolist())
        if isinstance(self.value, (deque, set)) or not isinstance(state, tuple):
            return {}
        entries = [e if type(e) is tuple else (place, e) for place, e in enumerate(state)]
        return {
            name: number
            for name, number in entries
            if type(name) in _EXACT and type(number) in (int, float)
        }


def parts_of_object(value: Any, path: str) -> Iterator[SharedObject]:
    """Yield an object as a part, and its attributes as another; nothing if it can't change."""
    if isinstance(value, type) or (isinstance(value, FunctionType) and not vars(value)):
        return
    found = _reader_of(value)
    if found is not None:
        kind, read = found
        yield SharedObject(path, kind, value, read)
    slots = found is None and any("__slots__" in vars(kind) for kind in type(value).__mro__)
    if slots or hasattr(value, "__dict__"):
        yield SharedObject(path, "shared-attribute", value, _attributes)


def class_attributes(kind: type) -> Any:
    """Return the state of the attributes of a class."""
    return _pairs(
        (name, part)
        for name, part in list(vars(kind).items())
        if not (name.startswith("__") or name == "_abc_impl")
        and not (callable(part) or hasattr(type(part), "__get__"))
    )


def variables(names: frozenset[str], module: dict[str, Any]) -> Any:
    """Return the state of the global variables of a module that have these names."""
    return _pairs((name, module[name]) for name in sorted(names & set(module)))


def process_parts() -> list[SharedObject]:
    """Return what belongs to the whole process."""
    kind = "process-state"
    return [
        SharedObject("the working directory", kind, os, lambda it: it.getcwd()),
        SharedObject("the environment", kind, os, lambda it: dict(it.environ)),
        SharedObject("the standard output", kind, sys, lambda it: (_It(it.stdout), _It(it.stderr))),
    ]


def _reader_of(value: Any) -> tuple[str, Callable[[Any], Any]] | None:
    """Return the kind of an object, and what reads its state; None for one with attributes."""
    if is_generator_class(type(value)):
        return "random-state", _generator
    if isinstance(value, dict):
        return "shared-container", _items
    if isinstance(value, (list, deque, set)):
        return "shared-container", _entries
    if array_of(value) is not None:
        return "shared-container", _array
    if all(hasattr(value, name) for name in ("read", "seek", "tell")):
        return "shared-handle", lambda value: value.tell()
    if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
        return "shared-container", lambda _: None  # how far it is does not show
    return None


def _value(value: Any) -> Any:
    return value if type(value) in _EXACT else _It(value)


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((name, _value(part)) for name, part in pairs)


def _attributes(value: Any) -> Any:
    return _pairs(attributes(value))


def _items(value: dict[Any, Any]) -> Any:
    return len(value) if len(value) > LARGE else _pairs(list(value.items()))


def _entries(value: Any) -> Any:
    return len(value) if len(value) > LARGE else tuple(map(_value, list(value)))


def _array(value: Any) -> Any:
    array = array_of(value)
    if array is None or not array.flags.writeable or array.dtype.hasobject:
        return None
    if array.nbytes > WHOLE_NBYTES:
        flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()[:SOME]
        array = flat[:: max(1, flat.size // SOME)]
    return array.tobytes()


def _generator(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, _torch.Generator):
        return value.get_state().numpy().tobytes()
    return pickle.dumps(value)


MOST_OBJECTS = 20_000
MOST_PARTS = 400  # as they are looked at often
_PLAIN = (str, bytes, int, float, complex, bool, type(None), range, slice)
# Each thread has its own of these, or they have locks inside, or they are code or do not change.
_CLOSED = (
    *(PerThread, types.ModuleType, weakref.ref, logging.Filterer, logging.Manager),
    *(types.CodeType, types.FrameType, types.TracebackType, property, PurePath),
)
_DEFINED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: others can't be changed


class Sharing:
    """What two workers share.

    Args:
        twin: The dataset of a worker.
        other: That of another.

    Attributes:
        parts: What may change of what they share; the least deep first.
        objects: All that they share.
        cut_off: Whether there are too many objects to look at all of them.
    """

    def __init__(self, twin: Any, other: Any) -> None:
        walk, others = _Walk(twin), _Walk(other)
        shared = [walk.found[key] for key in walk.found if key in others.found]
        self.objects = [value for _, value in shared]
        found = [*process_parts(), *walk.parts.values()]
        for path, value in shared:
            if not is_meeting(type(value)):
                found += parts_of_object(value, path)
        self.parts = found[:MOST_PARTS]
        self.cut_off = walk.cut_off or len(found) > MOST_PARTS


class _Walk:
    """All objects that are reached from one, each with its path."""

    def __init__(self, root: Any) -> None:
        self.found: dict[int, tuple[str, Any]] = {}
        self.parts: dict[Any, SharedObject] = {}  # of classes and modules
        left: deque[tuple[str, Any]] = deque([("dataset", root)])
        while left and len(self.found) < MOST_OBJECTS:
            path, value = left.popleft()
            if id(value) not in self.found and not isinstance(value, (*_PLAIN, *_CLOSED)):
                self.found[id(value)] = (path, value)
                left.extend(self._leads_to(path, value))
        self.cut_off = bool(left)

    def _leads_to(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, types.FunctionType):
            owner = whose(value.__code__.co_filename)
            if owner != OURS:
                yield from ((f"a variable of {path}", part) for _, part in parts(value))
            if owner == USER:  # the variables of a library are its own affair
                yield from self._of_globals(value.__globals__, _names_used(value.__code__))
        elif not (isinstance(value, _torch.Tensor) or is_meeting(type(value))):
            yield type(value).__qualname__, type(value)
            entries = isinstance(value, CONTAINERS)
            for name, part in parts(value):
                place = repr(name) if isinstance(name, int | str) else "..."
                yield f"{path}[{place}]" if entries else f"{path}.{name}", part

    def _of_class(self, kind: type) -> Iterator[tuple[str, Any]]:
        if not kind.__flags__ & _HEAP or kind.__module__ in {"builtins", "abc", "typing"}:
            return
        yield from ((base.__qualname__, base) for base in kind.__bases__)
        if kind.__module__.partition(".")[0] == "torch":
            return
        self.parts[id(kind)] = SharedObject(
            kind.__qualname__, "class-attribute", kind, class_attributes
        )
        for name, part in list(vars(kind).items()):
            function = getattr(part, "__func__", None) or getattr(part, "fget", None) or part
            if not name.startswith("__") or isinstance(function, types.FunctionType):
                yield f"{kind.__qualname__}.{name}", function

    def _of_globals(self, names: dict[str, Any], used: frozenset[str]) -> Iterator[tuple[str, Any]]:
        module = names.get("__name__", "")
        # No program assigns again to what it has defined or imported.
        assigned = frozenset(name for name in used if not isinstance(names.get(name), _DEFINED))
        place = id(names) ^ hash(used)
        if place in self.parts:
            return
        read = partial(variables, assigned)
        self.parts[place] = SharedObject(module, "global-variable", names, read)
        for name in used & set(names):
            value = names[name]
            if not isinstance(value, types.ModuleType):
                yield f"{module}.{name}", value
            elif whose(getattr(value, "__file__", None) or "<frozen>") == USER:
                # What the function uses of the module has the same names.
                yield from self._of_globals(vars(value), used - {name})


@cache
def _names_used(code: CodeType) -> frozenset[str]:
    """Return the global names of a function and of the functions inside it, and of attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_used(constant)
    return frozenset(names)
