"""The state of one object that workers share: read, compared, and put back.

A state is shallow: it refers to the attributes and entries, and those have states of their own.
"""

from __future__ import annotations

import locale
import os
import pickle
import random
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FunctionType, GeneratorType
from typing import Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._check.contents import array_of
from threadloader._fetch.kinds import LARGE, attributes

__all__ = [
    "SharedObject",
    "attributes_part",
    "class_part",
    "descriptor_part",
    "globals_part",
    "part_of",
    "process_parts",
]

WHOLE_NBYTES = 1 << 20  # of larger arrays some elements are looked at
SOME = 4096  # elements
_NUMBERS = (int, float)
_EXACT = (int, float, complex, str, bytes, bool, type(None))


class _Entries(tuple[Any, ...]):
    """Names and values, or entries: compared by identity."""

    __slots__ = ()


class _Bytes(NamedTuple):
    """A state that is compared by its bytes, and put back from another form."""

    data: bytes
    original: Any


class SharedObject:
    """One object that workers share.

    Args:
        path: How it is reached, as ``dataset.reader``.
        kind: Of the finding where samples that change it come out wrong.
        value: The object.
        capture: Returns its state.
        restore: Puts a state back; None where nothing can.
    """

    __slots__ = ("_capture", "_restore", "kind", "path", "value")

    def __init__(
        self,
        path: str,
        kind: str,
        value: Any,
        capture: Callable[[Any], Any],
        restore: Callable[[Any, Any], None] | None,
    ) -> None:
        self.path, self.kind, self.value = path, kind, value
        self._capture, self._restore = capture, restore

    @property
    def can_be_put_back(self) -> bool:
        """Whether there is a way back to an earlier state."""
        return self._restore is not None

    @property
    def is_blind(self) -> bool:
        """Whether it is an iterator that does not show how far it is."""
        return self._capture is _progress and self.state() is None

    def state(self) -> Any:
        """Return the state now; None where it can't be read."""
        try:
            return self._capture(self.value)
        except Exception:  # noqa: BLE001  # a closed file, say, or whatever a class raises
            return None

    def put_back(self, state: Any) -> None:
        """Bring the object to a state that it had."""
        if self._restore is None or state is None or same(state, self.state()):
            return
        with suppress(Exception):  # as above
            self._restore(self.value, state)

    def name(self, before: Any, after: Any) -> str:
        """Return the path, with the attribute or variable that differs between two states."""
        if self.kind not in {"shared-attribute", "class-attribute", "global-variable"}:
            return self.path
        old, new = (dict(state or ()) for state in (before, after))
        for name in (*new, *old):
            if not _same_entry(old.get(name, _ABSENT), new.get(name, _ABSENT)):
                return f"{self.path}.{name}"
        return self.path

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that it holds by their names, or an array's memory.

        Only of a number is it known that no update may be lost: a cache may forget an entry.
        """
        state = self.state()
        if isinstance(state, _Bytes):
            return {"": state.data}
        if not isinstance(state, _Entries):
            return {}
        if isinstance(self.value, list):  # threads may append in any order
            return {f"{len(state)} entries": sorted(n for n in state if type(n) in _NUMBERS)}
        return {
            str(pair[0]): pair[1]
            for pair in state
            if type(pair) is tuple and len(pair) == 2 and type(pair[1]) in _NUMBERS
        }


_ABSENT = object()


def same(one: Any, other: Any) -> bool:
    """Whether two states of an object are the same."""
    if one is other:
        return True
    if isinstance(one, _Bytes) and isinstance(other, _Bytes):
        return one.data == other.data
    if isinstance(one, _Entries) and isinstance(other, _Entries):
        return len(one) == len(other) and all(map(_same_entry, one, other))
    return type(one) is type(other) and isinstance(one, _EXACT) and bool(one == other)


def _same_entry(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) <= 2:
        return all(map(_same_entry, one, other))
    return type(one) is type(other) and isinstance(one, _EXACT) and bool(one == other)


def part_of(value: Any, path: str) -> SharedObject | None:
    """Return an object as a part, or None if nothing of it can change."""
    for kinds, kind, capture, restore in _BUILTIN:
        if isinstance(value, kinds):
            return SharedObject(path, kind, value, capture, restore)
    if array_of(value) is not None:
        return SharedObject(path, "shared-container", value, _array, _put_array)
    if all(hasattr(value, name) for name in ("read", "seek", "tell")):
        return SharedObject(path, "shared-handle", value, _position, _seek)
    if isinstance(value, type) or (isinstance(value, FunctionType) and not vars(value)):
        return None
    if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
        return SharedObject(path, "shared-container", value, _progress, None)
    if hasattr(value, "__dict__") or any("__slots__" in vars(kind) for kind in type(value).__mro__):
        return SharedObject(path, "shared-attribute", value, _attributes, _put_attributes)
    return None


def attributes_part(value: Any, path: str) -> SharedObject | None:
    """Return the attributes of an object that is a container or a file, too; None without any."""
    if type(value).__module__ == "builtins" or not hasattr(value, "__dict__"):
        return None
    return SharedObject(path, "shared-attribute", value, _attributes, _put_attributes)


def class_part(kind: type, path: str) -> SharedObject:
    """Return the attributes of a class as a part."""
    return SharedObject(path, "class-attribute", kind, _class_attributes, _put_class_attributes)


def globals_part(names: dict[str, Any], used: frozenset[str], path: str) -> SharedObject:
    """Return the global variables that a function uses as a part."""

    def capture(namespace: dict[str, Any]) -> _Entries:
        return _Entries((name, namespace[name]) for name in sorted(used) if name in namespace)

    def restore(namespace: dict[str, Any], state: Any) -> None:
        before = dict(state)
        for name in used - set(before):
            namespace.pop(name, None)
        namespace.update(before)

    return SharedObject(path, "global-variable", names, capture, restore)


def descriptor_part(descriptor: int, path: str) -> SharedObject:
    """Return a file descriptor's position as a part."""
    return SharedObject(
        path,
        "shared-handle",
        descriptor,
        lambda number: os.lseek(number, 0, os.SEEK_CUR),
        lambda number, state: _ignore(os.lseek(number, state, os.SEEK_SET)),
    )


def process_parts() -> list[SharedObject]:
    """Return what belongs to the whole process."""
    return [
        SharedObject(name, "process-state", None, read, write)
        for name, read, write in (
            ("the working directory", lambda _: str(Path.cwd()), lambda _, state: os.chdir(state)),
            ("the environment", _environment, _put_environment),
            (
                "the locale",
                lambda _: locale.setlocale(locale.LC_ALL),
                lambda _, state: _ignore(locale.setlocale(locale.LC_ALL, state)),
            ),
            (
                "the default timeout of sockets",
                lambda _: socket.getdefaulttimeout(),
                lambda _, state: socket.setdefaulttimeout(state),
            ),
            (
                "the recursion limit",
                lambda _: sys.getrecursionlimit(),
                lambda _, state: sys.setrecursionlimit(state),
            ),
            (
                "the standard output",
                lambda _: _Entries((sys.stdout, sys.stderr)),
                lambda _, state: _put_output(state),
            ),
        )
    ]


def _ignore(_: object) -> None:
    """Return nothing of a call that returns something."""


def _environment(_: None) -> _Entries:
    return _Entries(sorted(os.environ.items()))


def _put_environment(_: None, state: Any) -> None:
    before = dict(state)
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def _put_output(state: Any) -> None:
    sys.stdout, sys.stderr = state


def _attributes(value: Any) -> _Entries:
    return _Entries((name, part) for name, part, _ in attributes(value))


def _put_attributes(value: Any, state: Any) -> None:
    before = dict(state)
    for name, _, is_slot in list(attributes(value)):
        if name not in before:
            object.__delattr__(value, name) if is_slot else vars(value).pop(name, None)
    for name, part in before.items():
        if name in getattr(value, "__dict__", {}) or not hasattr(type(value), name):
            value.__dict__[name] = part
        else:
            object.__setattr__(value, name, part)


def _class_attributes(kind: type) -> _Entries:
    return _Entries(
        (name, part)
        for name, part in list(vars(kind).items())
        if not (name.startswith("__") or name == "_abc_impl" or _is_code(part))
    )


def _is_code(part: object) -> bool:
    return callable(part) or hasattr(type(part), "__get__")


def _put_class_attributes(kind: type, state: Any) -> None:
    before = dict(state)
    for name, _ in _class_attributes(kind):
        if name not in before:
            delattr(kind, name)
    for name, part in before.items():
        if vars(kind).get(name, _ABSENT) is not part:
            setattr(kind, name, part)


def _dict(value: dict[Any, Any]) -> Any:
    return len(value) if len(value) > LARGE else _Entries(list(value.items()))


def _put_dict(value: dict[Any, Any], state: Any) -> None:
    if isinstance(state, _Entries):
        value.clear()
        value.update(state)


def _list(value: Any) -> Any:
    return len(value) if len(value) > LARGE else _Entries(list(value))


def _put_list(value: Any, state: Any) -> None:
    if isinstance(state, _Entries):
        value.clear()
        value.extend(state)


def _put_set(value: set[Any], state: Any) -> None:
    if isinstance(state, _Entries):
        value.clear()
        value.update(state)


def _array(value: Any) -> Any:
    array = array_of(value)
    if array is None or not array.flags.writeable or array.dtype.hasobject:
        return None
    if array.nbytes <= WHOLE_NBYTES:
        return _Bytes(array.tobytes(), array.copy())
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()[:SOME]
    return _Bytes(flat[:: max(1, flat.size // SOME)].tobytes(), None)


def _put_array(value: Any, state: _Bytes) -> None:
    array = array_of(value)
    if array is not None and state.original is not None:
        array[...] = state.original


def _position(value: Any) -> Any:
    if getattr(value, "closed", False):
        return None
    try:
        return value.tell()
    except OSError:  # of text that is iterated over
        return value.buffer.tell()


def _seek(value: Any, state: int) -> None:
    value.seek(state)


def _progress(value: Any) -> Any:
    if isinstance(value, GeneratorType):
        return -1 if value.gi_frame is None else value.gi_frame.f_lasti
    if isinstance(value, count):
        return repr(value)
    hint = getattr(value, "__length_hint__", None)
    return None if hint is None else hint()


def _numpy_state(value: Any) -> _Bytes:
    source = getattr(value, "bit_generator", value)
    state = source.state if hasattr(source, "state") else source.get_state(legacy=False)
    return _Bytes(pickle.dumps(state), state)


def _put_numpy_state(value: Any, state: _Bytes) -> None:
    source = getattr(value, "bit_generator", value)
    if hasattr(source, "state"):
        source.state = state.original
    else:
        source.set_state(state.original)


def _torch_state(value: Any) -> _Bytes:
    state = value.get_state()
    return _Bytes(state.numpy().tobytes(), state)


# Types, kind of finding, capture, restore.
_BUILTIN: tuple[tuple[Any, str, Callable[[Any], Any], Callable[[Any, Any], None] | None], ...] = (
    (
        random.Random,
        "random-state",
        lambda value: _Bytes(repr(value.getstate()).encode(), value.getstate()),
        lambda value, state: value.setstate(state.original),
    ),
    (
        (np.random.Generator, np.random.BitGenerator, np.random.RandomState),
        "random-state",
        _numpy_state,
        _put_numpy_state,
    ),
    (
        _torch.Generator,
        "random-state",
        _torch_state,
        lambda value, state: value.set_state(state.original),
    ),
    ((dict, OrderedDict), "shared-container", _dict, _put_dict),
    ((list, deque), "shared-container", _list, _put_list),
    (set, "shared-container", _list, _put_set),
)
