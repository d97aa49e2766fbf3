"""What a sample has left on its worker's objects: data is for all workers, a handle is not.

Users load data on first use (``if self.data is None: self.data = load()``), so that it is not
pickled for worker processes.  Here one worker loads it for all.  A handle, which is anything that
reads on, keeps a place, or draws numbers, each worker opens itself.

Numbers and texts are given to nobody: to compute them again takes no memory, and a number may be
that of an open file.  An array that one sample after the other writes is scratch memory, see
`settled`.
"""

from __future__ import annotations

import functools
import re
import types
import weakref
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import (
    CODE,
    CONTAINERS,
    DATA,
    IMMUTABLE,
    LARGE,
    MEETING_POINTS,
    NUMBERS,
    attributes,
    bases_hide,
    closure,
    generator_classes,
    is_array,
    is_helper,
    is_model,
    one_of_each,
    set_attribute,
    values,
)
from threadloader._fetch.object_copy import Copied, ObjectCopier
from threadloader._fetch.single_owner import is_shared, rule_for

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "AttributesBefore",
    "Change",
    "Memory",
    "changes",
    "give",
    "memory",
    "settled",
    "snapshot",
]
__all__ += ["take_back"]

OBJECTS = 10_000  # that are looked at, at most: what leads to more of them without a handle is data
BYTES = 1 << 16  # of an array that are compared, spread over it

SCRATCH = 1 << 24  # bytes: a larger array is data, and not looked at
FEW = 1 << 12  # bytes or elements of a smaller one that are compared, in some 40 us

_MISSING: Any = object()
_NUMBER_OF_A_HANDLE = re.compile(r"fd|fileno|handle|p(oin)?t(e)?r$", re.IGNORECASE)


class _Object(NamedTuple):
    key: int  # in `Copied`
    value: Any
    attributes: dict[str, tuple[Any, Any]]  # by name: the value, and a dict's or list's entries


class AttributesBefore(NamedTuple):
    """The attributes that one worker's objects had."""

    objects: list[_Object]
    keys: dict[int, int]  # of the objects in `Copied`, by their ids


class Change(NamedTuple):
    """An attribute that has another value than before, or a dict with more entries."""

    key: int  # of the object in `Copied`
    owner: Any  # the object
    name: str
    is_slot: bool
    before: Any  # the value it had; of a dict or list that got a handle: what was in it
    before_key: int | None  # of that value in `Copied`, if each worker has its own
    value: Any
    is_data: bool
    parts: list[tuple[Any, Any]]  # of data that may be written, with what is in them

    @property
    def is_handle(self) -> bool:
        """Whether each worker has to open one for itself."""
        return not (self.is_data or isinstance(self.value, NUMBERS))

    @property
    def is_new_number(self) -> bool:
        """Whether it is a number or a text where there was none."""
        new = self.before is None or self.before is _MISSING
        return new and isinstance(self.value, NUMBERS)

    def before_in(self, to: Copied) -> Any:
        """Return the value that another worker's copy had before, or its container that has grown.

        Args:
            to: What was copied for the other worker.
        """
        if self.before_key is not None and self.before_key in to:
            return to[self.before_key][1]
        return self.value if type(self.before) is _Entries else self.before


def snapshot(copied: Copied, *, originals: bool = False) -> AttributesBefore:
    """Return the attributes that the objects of one worker have now.

    Args:
        copied: What was copied for the worker.
        originals: Whether it uses the user's own objects instead.
    """
    own = [(key, pair[not originals]) for key, pair in copied.items() if pair[0] is not pair[1]]
    keys = {id(value): key for key, value in own}
    objects = []
    for key, value in own:
        code = isinstance(value, (*CONTAINERS, *CODE, types.MethodType))
        if not code and rule_for(type(value)) is None:  # what a library keeps is its own
            names = {name: (part, _entries(part)) for name, part, _ in attributes(value)}
            objects.append(_Object(key, value, names))
    return AttributesBefore(objects, keys)


def changes(before: AttributesBefore) -> list[Change]:
    """Return which attributes have changed since then, and whether they are data now."""
    return [change for each in before.objects for change in _changes_of(each, before)]


def settled(found: list[Change]) -> list[Change]:
    """Return the changes that no sample since has touched: what each writes anew is its own."""
    now = {id(each.owner): {n: part for n, part, _ in attributes(each.owner)} for each in found}
    return [
        each
        for each in found
        if now[id(each.owner)].get(each.name, _MISSING) is each.value
        and all(_content(part) == content for part, content in each.parts)
    ]


class Memory(NamedTuple):
    """An array that samples may write, and what was in it."""

    owner: Any
    name: str
    array: Any
    content: bytes

    @property
    def is_written(self) -> bool:
        """Whether it has other bytes now."""
        return _some_bytes(self.array, FEW) != self.content


def memory(now: AttributesBefore) -> list[Memory]:
    """Return the arrays that the objects have now, of those that may be scratch memory."""
    return [
        Memory(each.value, name, part, _some_bytes(part, FEW))
        for each in now.objects
        for name, (part, _) in each.attributes.items()
        if _is_scratch(part)
    ]


def _is_scratch(part: Any) -> bool:
    """Whether an array is small, can be written, and belongs to this process alone."""
    if isinstance(part, _torch.Tensor):
        return not _torch.is_shared(part) and part.element_size() * part.numel() <= SCRATCH
    if isinstance(part, np.ndarray):
        base = part.base
        own = base is None or isinstance(base, np.ndarray)
        return (
            own
            and not isinstance(part, np.memmap)
            and part.flags.writeable
            and part.nbytes <= SCRATCH
        )
    return isinstance(part, bytearray) and len(part) <= SCRATCH


def give(found: list[Change], to: Copied) -> None:
    """Give data to another worker's copies, where these are as the first worker's were.

    What an object has opened beside its data is made anew for the other worker, as it may have been
    opened under one condition with the data; where that can't be, the object gets nothing.  A dict
    or list that all workers have, and in which one has put a handle, each gets for itself, as it
    was.

    Args:
        found: The changes of the first worker's objects.
        to: What was copied for the other worker.
    """
    owners = {change.key: change.owner for change in found}
    for key, owner in owners.items():
        if key not in to or to[key][1] is owner:
            continue
        twin = to[key][1]
        now = {name: part for name, part, _ in attributes(twin)}
        same = [
            change
            for change in found
            if change.key == key and now.get(change.name, _MISSING) is change.before_in(to)
        ]
        for change in same:
            if type(change.before) is _Entries:
                _set(twin, change, change.before.as_were(change.value))
        loaded = [change for change in same if type(change.before) is not _Entries]
        if any(change.is_data for change in loaded):
            _give_object(loaded, twin, owners, to)


def _give_object(found: list[Change], twin: Any, owners: dict[int, Any], to: Copied) -> None:
    known = Copied()
    for key in owners.keys() & to.keys():
        known[id(owners[key])] = owners[key], to[key][1]
    copier = ObjectCopier(known)
    # Data first, as handles may be made of it.
    handles = [change for change in found if change.is_handle]
    for change in found:
        if change.is_data or change.is_new_number:
            _set(twin, change, change.value)
    try:
        for change in handles:
            _set(twin, change, copier.copy_for(twin, change.value))
    except Exception:  # noqa: BLE001  # whatever opening a file raises
        known.shared.append(("", type(twin)))
    if known.shared or any(map(_is_number_of_a_handle, found)):
        for change in found:
            _set(twin, change, change.before_in(to))


def _is_number_of_a_handle(change: Change) -> bool:
    return type(change.value) is int and bool(_NUMBER_OF_A_HANDLE.search(change.name))


def take_back(found: list[Change], to: Copied) -> None:
    """Set attributes of another worker's copies to what they were before the changes.

    What was made anew for the other worker is left, and so are numbers beside no handle.

    Args:
        found: The changes of the first worker's objects, of which these are copies.
        to: What was copied for the other worker.
    """
    handles = (change for change in found if change.is_handle or _is_number_of_a_handle(change))
    objects = {change.key for change in handles}
    for change in found:
        twin = to[change.key][1] if change.key in to else change.owner
        now = {name: part for name, part, _ in attributes(twin)}.get(change.name, _MISSING)
        if (
            twin is not change.owner
            and now is change.value
            and (change.is_data or change.key in objects)
        ):
            before = change.before_in(to)
            if type(change.before) is _Entries:
                before = change.before.as_were(change.value)
            _set(twin, change, before)


def _set(twin: Any, change: Change, value: Any) -> None:
    """Set an attribute, or delete it for `_MISSING`."""
    if value is not _MISSING:
        set_attribute(twin, change.name, value, is_slot=change.is_slot)
        return
    with suppress(AttributeError):  # it was not set
        object.__delattr__(twin, change.name)


class _Entries(NamedTuple):
    """What was in a dict or list."""

    kept: Any  # a shallow copy

    def as_were(self, grown: Any) -> Any:
        """Return a container of the same type, with the entries of before."""
        if type(grown) is list:
            return list(self.kept)
        twin = grown.copy()
        twin.clear()
        twin.update(self.kept)
        return twin


def _entries(part: Any) -> Any:
    """Return what is in a dict or list, in which a sample may put handles; None for none."""
    if isinstance(part, dict) and len(part) <= LARGE:
        return _Entries(dict(part))
    if type(part) is list and len(part) <= LARGE:
        return _Entries(list(part))
    return None


def _changes_of(each: _Object, snapshot: AttributesBefore) -> Iterator[Change]:
    for name, value, is_slot in attributes(each.value):
        before, entries = each.attributes.get(name, (_MISSING, None))
        make = functools.partial(Change, each.key, each.value, name, is_slot)
        before_key = snapshot.keys.get(id(before))
        if before is not value:
            parts: list[tuple[Any, Any]] = []
            data = not isinstance(value, NUMBERS) and _is_data(value, snapshot.keys, parts)
            yield make(before, before_key, value, data, parts)
        elif entries is not None and _got_handles(value, entries.kept, snapshot):
            yield make(entries, before_key, value, is_data=False, parts=[])


def _got_handles(container: Any, before: Any, snapshot: AttributesBefore) -> bool:
    """Whether handles were put into a dict, or in the place of None into a list."""
    if type(container) is list:
        if len(container) != len(before):
            return False  # a list that users collect something in
        pairs = zip(before, container, strict=True)
        new = [entry for old, entry in pairs if old is None and entry is not None]
    else:
        new = [entry for key, entry in list(container.items()) if key not in before]
    return any(not _is_data(entry, snapshot.keys, []) for entry in new)


# What is data


def _is_data(value: Any, own: dict[int, int], writable: list[tuple[Any, Any]]) -> bool:
    """Whether an object and all that it leads to is data, which workers can share.

    Args:
        value: The object.
        own: The ids of objects of which each worker has its own.
        writable: Gets its parts that may be written, with what is in them.
    """
    seen: dict[int, Any] = {}
    found = [value]
    while found and len(seen) <= OBJECTS:
        part = found.pop()
        if id(part) in seen or isinstance(part, NUMBERS):
            continue
        if id(part) in own:
            return False
        seen[id(part)] = part
        parts = _parts_of_data(part)
        if parts is None:
            return False
        if len(writable) < LARGE and (content := _content(part)) is not None:
            writable.append((part, content))
        found += parts
    return True


def _content(part: Any) -> Any:
    """Return what shows that somebody writes an object; None if nobody can."""
    if isinstance(part, (np.ndarray, _torch.Tensor)):
        return _some_bytes(part)
    if isinstance(part, (tuple, frozenset)):
        return None
    if isinstance(part, CONTAINERS):
        few = [each if isinstance(each, NUMBERS) else id(each) for each in values(part)[:LARGE]]
        return len(part), few
    names = [(name, id(each)) for name, each, _ in attributes(part)]
    return names or None


def _parts_of_data(part: Any) -> list[Any] | None:
    """Return what an object of a kind that can be shared leads to; None for another kind."""
    shared = is_shared(part)
    if shared is not None:
        return [] if shared else None
    if callable(part) and (parts := _parts_of_function(part)) is not None:
        return parts
    if isinstance(part, CONTAINERS):
        return [*_entries_to_look_at(part), *(each for _, each, _ in attributes(part))]
    if isinstance(part, (*DATA, *CODE, *MEETING_POINTS)) or is_array(part) or is_model(part):
        return []
    return _parts_of_object(part)


def _parts_of_function(function: Any) -> list[Any] | None:
    if isinstance(function, types.FunctionType):
        defaults = function.__defaults__ or (), (function.__kwdefaults__ or {}).values()
        return [*defaults[0], *defaults[1], *closure(function)]
    if isinstance(function, (types.BuiltinFunctionType, types.MethodType)):
        return [function.__self__]  # a method of a file, say
    if isinstance(function, functools.partial):
        return [function.func, function.args, function.keywords]
    return None


def _parts_of_object(part: Any) -> list[Any] | None:
    kind = type(part)
    if kind.__module__.partition(".")[0] in IMMUTABLE or isinstance(part, Enum):
        return []
    if isinstance(part, (*generator_classes(), weakref.ref)):
        return None
    # C keeps something, or something is closed; or its methods may keep a place.
    if bases_hide(kind) or hasattr(kind, "__del__") or is_helper(kind):
        return None
    named = list(attributes(part))
    if any(type(each) is int and _NUMBER_OF_A_HANDLE.search(name) for name, each, _ in named):
        return None
    return [each for _, each, _ in named]


def _entries_to_look_at(container: Any) -> list[Any]:
    return values(container) if len(container) <= LARGE else list(one_of_each(container).values())


def _some_bytes(array: Any, most: int = BYTES) -> bytes:
    """Return some of an array's bytes, by which it shows that somebody writes it."""
    try:
        if isinstance(array, bytearray):
            return bytes(array[:: max(1, len(array) // most)])
        numbers = array if isinstance(array, np.ndarray) else array.detach().numpy()
        if numbers.dtype.hasobject:
            return b""
        flat = numbers.reshape(-1) if numbers.flags.c_contiguous else numbers[:1].ravel()
        step = max(1, flat.nbytes // most)
        return flat[::step].tobytes()
    except Exception:  # noqa: BLE001  # of another device, or a subclass's own
        return b""
