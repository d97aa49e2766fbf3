"""What workers share: every object that is reached from the copies of two of them.

So an object that each worker has a copy of is none of it, and whatever dataset_copy says is taken
into account.  Besides, there are the attributes of classes and the global variables that the code
of these objects uses, and what belongs to the whole process.
"""

from __future__ import annotations

import logging
import re
import threading
import types
import weakref
from collections import deque
from collections.abc import Mapping
from functools import cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._check.states import (
    attributes_part,
    class_part,
    descriptor_part,
    globals_part,
    part_of,
    process_parts,
    same,
)
from threadloader._check.whose_code import OURS, USER, whose
from threadloader._fetch.kinds import LARGE, MEETING_POINTS, attributes
from threadloader._threads.per_thread import PerThread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    from threadloader._check.states import SharedObject

__all__ = ["Sharing", "States", "locks_held"]

MOST_OBJECTS = 20_000
_DESCRIPTOR = re.compile(r"fd|fileno|descriptor", re.IGNORECASE)
_LOCKS = (
    *(type(threading.Lock()), type(threading.RLock())),
    *(threading.Condition, threading.Semaphore),
)
# Each thread has its own of these, or they have locks inside, or they are code or do not change.
_CLOSED = (
    *(PerThread, types.ModuleType, weakref.ref, logging.Filterer, logging.Manager),
    *(types.CodeType, types.FrameType, types.TracebackType, property, PurePath),
)

States = Mapping[int, Any]  # of parts, by their ids


class Sharing:
    """What two workers share.

    Args:
        twins: The copies of two workers.
    """

    def __init__(self, twins: Sequence[Any]) -> None:
        own, others = (_Walk(twin) for twin in twins)
        self.cut_off = own.cut_off
        self.names_used = own.names_used
        locks = {key: lock for key, lock in own.locks.items() if key in others.locks}
        self.locks = [lock for _, lock in locks.values()]
        self.lock_names = {key: path for key, (path, _) in locks.items()}
        self.dicts = [
            (path, value)
            for key, (path, value) in own.found.items()
            if key in others.found and isinstance(value, dict)
        ]
        self.own: list[SharedObject] = []  # of one worker alone
        self.parts = [*own.parts.values(), *process_parts()]
        for key, (path, value) in own.found.items():
            parts = self.parts if key in others.found else self.own
            part = part_of(value, path)
            also = None
            if part is not None and part.kind != "shared-attribute":
                also = attributes_part(value, path)
            parts += [each for each in (part, also) if each is not None]
        for name, number in own.descriptors.items():
            self.parts.append(descriptor_part(number, name))

    def states(self) -> States:
        """Return the states of all parts now."""
        return {id(part): part.state() for part in self.parts}

    def changed(
        self, before: States, *, of: Sequence[SharedObject] | None = None
    ) -> list[SharedObject]:
        """Return the parts that have changed since ``before``."""
        parts = self.parts if of is None else of
        return [
            part
            for part in parts
            if id(part) in before and not same(before[id(part)], part.state())
        ]

    def put_back(self, states: States, parts: Sequence[SharedObject] | None = None) -> None:
        """Bring parts to states that they had, handles last."""
        for part in self.parts if parts is None else parts:
            if id(part) in states:
                part.put_back(states[id(part)])


def locks_held(locks: Sequence[Any]) -> frozenset[int]:
    """Return the ids of the locks that some thread holds now."""
    return frozenset(id(lock) for lock in locks if _is_held(lock))


def _is_held(lock: Any) -> bool:
    if isinstance(lock, threading.Semaphore):
        return bool(lock._value == 0)  # noqa: SLF001  # it has no public name
    if isinstance(lock, threading.Condition):
        return _is_held(lock._lock)  # type: ignore[attr-defined]  # noqa: SLF001  # the same
    if hasattr(lock, "locked"):
        return bool(lock.locked())
    return "<locked" in repr(lock)  # an RLock before Python 3.14


class _Walk:
    """All objects that are reached from one, each with its path."""

    def __init__(self, root: Any) -> None:
        self.found: dict[int, tuple[str, Any]] = {}
        self.locks: dict[int, tuple[str, Any]] = {}
        self.parts: dict[int, SharedObject] = {}  # of classes and modules
        self.descriptors: dict[str, int] = {}
        self.cut_off = False
        self.names_used: set[str] = set()  # by the user's code, those of attributes included
        self._left: deque[tuple[str, Any]] = deque([("dataset", root)])
        while self._left:
            path, value = self._left.popleft()
            if len(self.found) >= MOST_OBJECTS:
                self.cut_off = True
                return
            self._visit(path, value)

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, _LOCKS):
            self.locks.setdefault(id(value), (path, value))
        if id(value) in self.found or isinstance(value, (*_PLAIN, *_CLOSED, *MEETING_POINTS)):
            return
        self.found[id(value)] = (path, value)
        self._left.extend(self._parts(path, value))

    def _parts(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(path, value)
        elif isinstance(value, types.MethodType):
            yield path, value.__self__
            yield path, value.__func__
        elif isinstance(value, partial):
            yield path, value.func
            yield from ((f"{path}.args[{n}]", part) for n, part in enumerate(value.args))
            yield from ((f"{path}.keywords[{n!r}]", p) for n, p in value.keywords.items())
        elif isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            yield from _entries(path, value)
            yield from self._of_object(path, value)
        elif not isinstance(value, _torch.Tensor):
            yield from self._of_object(path, value)

    def _of_object(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        yield type(value).__qualname__, type(value)
        for name, part, _ in attributes(value):
            if type(part) is int and part > 2 and _DESCRIPTOR.search(name):
                self.descriptors[f"{path}.{name}"] = part
            yield f"{path}.{name}", part

    def _of_class(self, kind: type) -> Iterator[tuple[str, Any]]:
        if not kind.__flags__ & _HEAP or kind.__module__ in {"builtins", "abc", "typing"}:
            return
        for base in kind.__bases__:
            yield base.__qualname__, base
        if kind.__module__.partition(".")[0] == "torch":
            return
        self.parts[id(kind)] = class_part(kind, kind.__qualname__)
        for name, part in list(vars(kind).items()):
            function = getattr(part, "__func__", None) or getattr(part, "fget", None) or part
            if not name.startswith("__") or isinstance(function, types.FunctionType):
                yield f"{kind.__qualname__}.{name}", function

    def _of_function(self, path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        owner = whose(function.__code__.co_filename)
        if owner == OURS:
            return
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=False
        ):
            try:
                yield name, cell.cell_contents
            except ValueError:  # the variable has no value
                continue
        for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield f"a default of {path}", part
        yield from vars(function).items()
        used, names = _names_used(function.__code__), function.__globals__
        if owner == USER:
            self.names_used |= used
            yield from self._of_globals(names, used)
        else:  # its variables are its own affair, but for its locks
            yield from ((n, names[n]) for n in used & set(names) if isinstance(names[n], _LOCKS))

    def _of_globals(self, names: dict[str, Any], used: frozenset[str]) -> Iterator[tuple[str, Any]]:
        module = names.get("__name__", "")
        variables = frozenset(name for name in used if not _is_defined(names.get(name)))
        place = id(names) ^ hash(used)
        if place in self.parts:
            return
        self.parts[place] = globals_part(names, variables, module)
        for name in used & set(names):
            value = names[name]
            if not isinstance(value, types.ModuleType):
                yield f"{module}.{name}", value
            elif whose(getattr(value, "__file__", None) or "<frozen>") == USER:
                # What the function uses of the module has the same names.
                yield from self._of_globals(vars(value), used - {name})


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: others can't be changed
_PLAIN = (str, bytes, int, float, complex, bool, type(None), range, slice)


def _is_defined(value: Any) -> bool:
    """Whether a global name is one that no program assigns to again."""
    return isinstance(
        value, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
    )


def _entries(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if len(value) > LARGE:
        return
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, part in pairs:
        yield f"{path}[{key!r}]" if isinstance(key, int | str) else f"{path}[...]", part


@cache
def _names_used(code: CodeType) -> frozenset[str]:
    """Return the global names of a function and of the functions inside it, and of attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_used(constant)
    return frozenset(names)
