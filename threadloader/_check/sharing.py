"""What workers share: what a dataset's copies are made without, and all that this leads to.

The rule that copies for workers says what it shares, and by which path; so whatever dataset_copy
says is taken into account.  Besides, there are the attributes of classes and the global variables
that the code of these objects uses, and what belongs to the whole process.

A state is shallow: all entries and attributes, but not what is in these, which have states of their
own.
"""

from __future__ import annotations

import os
import pickle
import sys
import types
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._batch.parts import ATOMS, CONTAINERS, attributes, is_same, parts, state_of
from threadloader._check.contents import array_of
from threadloader._threads.per_thread import PerThread
from threadloader._worker.copy_rules import RULES, is_meeting, is_ours, rule_of
from threadloader._worker.generators import is_generator_class
from threadloader._worker.own_copy import LIMITS, Copied, Copier, Steps
from threadloader._worker.program_code import is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType

    from threadloader._worker.own_copy import Rule


WHOLE_NBYTES = 1 << 20  # of larger arrays some elements are looked at
SOME = 4096  # elements
WHOLE_LENGTH = 100_000  # of longer containers only that is looked at
MOST_OBJECTS = 20_000
MOST_ENTRIES = 1_000  # objects in one container
MOST_NAMES = 100  # in a path
MOST_PARTS = 4_000  # as they are looked at often
_NAMED = frozenset({"shared-attribute", "class-attribute", "global-variable"})
# Each thread has its own of these, or they are code, or they keep what they have found.
_CLOSED = (PerThread, types.ModuleType, PurePath)
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: others can't be changed


@dataclass(frozen=True, slots=True, eq=False)
class SharedObject:
    """One object that workers share.

    Args:
        path: How it is reached, as ``dataset.reader``.
        kind: Of the finding where samples that change it come out wrong.
        value: The object.
        read: Returns its state: what it holds, by names.
    """

    path: str
    kind: str
    value: Any
    read: Callable[[Any], Mapping[Any, Any]]

    def state(self) -> Mapping[Any, Any]:
        """Return the state now; empty where it can't be read."""
        try:
            return self.read(self.value)
        except Exception:  # noqa: BLE001  # a closed file, say, or whatever a class raises
            return {}

    def changed(self, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> str:
        """Return the path, with the attribute or variable that differs; empty if nothing does."""
        for name in {**now, **before}:
            if name not in before or name not in now or not is_same(now[name], before[name]):
                return f"{self.path}.{name}" if self.kind in _NAMED else self.path
        return ""


def process_parts() -> list[SharedObject]:
    """Return what belongs to the whole process."""
    kind = "process-state"
    return [
        SharedObject("the working directory", kind, os, lambda it: {"": it.getcwd()}),
        SharedObject("the environment", kind, os, lambda it: dict(it.environ)),
        SharedObject("the standard output", kind, sys, lambda it: {1: it.stdout, 2: it.stderr}),
    ]


class Sharing:
    """What the workers of a dataset share.

    Args:
        dataset: The user's.
        how: As for `copy_of`; "replica" for an iterable one.

    Attributes:
        parts: What may change of what they share.
        cut_off: Whether there are too many objects to look at all of them.
    """

    def __init__(self, dataset: Any, how: str) -> None:
        self._of_code: dict[Any, SharedObject] = {}  # of classes and modules
        own, self._walk = _Noting(rule_of, how), _Noting(_shared_rule, how)
        if how == "shared":
            own.shared.append(("dataset", dataset))
        else:
            own.copy("dataset", dataset)
        shared = self._walk.shared
        for path, value in own.shared:
            self._walk.copy(path, value)
        copied = (("", original) for original, _ in own.copied.values())
        for _, value in chain(copied, shared):  # which grows
            self._look_at_code(value)
        found = [*process_parts(), *self._of_code.values()]
        found += [part for path, value in shared if (part := _part_of(path, value)) is not None]
        self.parts = found[:MOST_PARTS]
        self.cut_off = self._walk.cut_off or len(found) > MOST_PARTS

    def _look(self, path: str, value: Any) -> None:
        """Look at what an object leads to; at a class, and those that it is derived from."""
        if not isinstance(value, type):
            self._walk.copy(path, value)
            return
        for base in value.__mro__:
            self._look_at_class(base)

    def _look_at_code(self, value: Any) -> None:
        """Look at the class of an object, at classes that it holds, or at a function's code."""
        if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
            # The variables of a library are its own affair.
            self._look_at_globals(value.__globals__, _names_used(value.__code__))
        for part in (type(value), value, *(part for _, part in attributes(value))):
            if isinstance(part, type):
                self._look("", part)

    def _look_at_class(self, kind: type) -> None:
        closed = kind.__module__.partition(".")[0] in {"builtins", "abc", "typing", "torch"}
        if closed or not kind.__flags__ & _HEAP or id(kind) in self._of_code:
            return
        path = kind.__qualname__
        self._of_code[id(kind)] = SharedObject(path, "class-attribute", kind, _own_names)
        for name, part in list(vars(kind).items()):
            function = getattr(part, "__func__", None) or getattr(part, "fget", None) or part
            if not name.startswith("__") or isinstance(function, FunctionType):
                self._look(f"{path}.{name}", function)

    def _look_at_globals(self, names: dict[str, Any], used: frozenset[str]) -> None:
        module, place = names.get("__name__", ""), (id(names), used)
        if place in self._of_code:
            return

        def read(module: dict[str, Any]) -> Mapping[Any, Any]:
            return {name: module[name] for name in sorted(used) if name in module}

        self._of_code[place] = SharedObject(module, "global-variable", names, read)
        for name, value in read(names).items():
            if not isinstance(value, types.ModuleType):
                self._look(f"{module}.{name}", value)
            elif is_users(getattr(value, "__file__", None) or "<frozen>"):
                # What the function uses of the module has the same names.
                self._look_at_globals(vars(value), used - {name})


class _Noting(Copier):
    """Notes what it shares, each with its path."""

    def __init__(self, rule: Callable[[type, bool], Rule | None], how: str) -> None:
        super().__init__(Copied(), RULES._replace(rule_of=rule), limits=LIMITS.get(how))
        self.shared: list[tuple[str, Any]] = []
        self.cut_off = False

    def keep(self, value: Any, twin: Any) -> Any:
        """Note a twin; and an object that is shared."""
        if twin is value and id(value) not in self.copied:
            # Of a long chain not each link: that would take the square of its length.
            path = self.path if len(self._stack) < MOST_NAMES else "dataset..."
            self.shared.append((path, value))
        return super().keep(value, twin)


def _shared_rule(kind: type, _: bool) -> Rule | None:
    """Return the rule for objects of a class that are reached by what is shared."""
    closed = issubclass(kind, (*_CLOSED, _torch.Tensor)) or is_meeting(kind)
    return None if closed else _look_inside


def _look_inside(value: Any, copier: Any) -> Steps:
    """Share an object, and what it leads to."""
    copier.keep(value, value)
    if isinstance(value, FunctionType) and is_ours(value):
        return value
    inside = (pair for pair in parts(value) if type(pair[1]) not in ATOMS)
    for number, (name, part) in enumerate(inside):
        if number == MOST_ENTRIES or len(copier.shared) >= MOST_OBJECTS:
            copier.cut_off = True
            break
        yield (name,) if isinstance(value, CONTAINERS) else name, part
    return value


def _part_of(path: str, value: Any) -> SharedObject | None:
    """Return an object with the kind of the finding; None if it can't change, or threads meet."""
    kind = type(value)
    of_a_file = (hasattr(value, name) for name in ("read", "seek", "tell"))
    if isinstance(value, _CLOSED) or is_meeting(kind):
        return None
    if is_generator_class(kind):
        return SharedObject(path, "random-state", value, lambda it: {"": pickle.dumps(it)})
    if isinstance(value, (dict, list, deque, set)):
        return SharedObject(path, "shared-container", value, _entries)
    if (array := array_of(value)) is not None:
        kept = SharedObject(path, "shared-container", value, _memory)
        return kept if array.flags.writeable else None
    if not isinstance(value, FunctionType) and all(of_a_file):
        return SharedObject(path, "shared-handle", value, _place_in_file)
    return SharedObject(path, "shared-attribute", value, lambda it: dict(attributes(it)))


def _place_in_file(value: Any) -> Mapping[Any, Any]:
    return {**dict(attributes(value)), "tell()": value.tell()}


def _entries(value: Any) -> Mapping[Any, Any]:
    return dict(enumerate(state_of(value))) if len(value) <= WHOLE_LENGTH else {"": len(value)}


def _memory(value: Any) -> Mapping[Any, Any]:
    array: Any = array_of(value)
    if array.nbytes > WHOLE_NBYTES:
        array = array.flat[:: max(1, array.size // SOME)]
    return {"": array.tobytes()}


def _own_names(kind: type) -> Mapping[Any, Any]:
    return {name: it for name, it in list(vars(kind).items()) if not name.startswith("__")}


@cache
def _names_used(code: CodeType) -> frozenset[str]:
    """Return the global names of a function and of the functions inside it, and of attributes."""
    inside = (_names_used(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inside)
