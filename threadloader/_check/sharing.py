"""What workers share: every object that is reached from the copies of two of them.

So an object that each worker has a copy of is none of it, and whatever dataset_copy says is taken
into account.  Besides, there are the attributes of classes and the global variables that the code
of these objects uses, and what belongs to the whole process.
"""

from __future__ import annotations

import logging
import types
import weakref
from collections import deque
from functools import cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._check.states import (
    SharedObject,
    class_attributes,
    parts_of_object,
    process_parts,
    variables,
)
from threadloader._check.whose_code import OURS, USER, whose
from threadloader._fetch.kinds import MEETING_POINTS
from threadloader._fetch.parts import CONTAINERS, parts
from threadloader._threads.per_thread import PerThread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType


__all__ = ["Sharing"]

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
            if not isinstance(value, MEETING_POINTS):
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
        elif not isinstance(value, (_torch.Tensor, *MEETING_POINTS)):
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
