"""The state of one object that workers share: read, and compared with an earlier one.

A state is shallow: of attributes and entries it has the plain values, and the identity of all
others, which have states of their own.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from threadloader import _torch
from threadloader._check.contents import array_of
from threadloader._fetch.kinds import Kind, kind_of
from threadloader._fetch.parts import LARGE, attributes

__all__ = ["SharedObject", "class_attributes", "parts_of_object", "process_parts", "variables"]

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
    if kind_of(value) is Kind.GENERATOR:
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
    return _pairs((name, part) for name, part, _ in attributes(value))


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
