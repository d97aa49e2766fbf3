"""What a sample has left on its worker's objects: data is for all workers, a handle is not.

Users load data on first use (``if self.data is None: self.data = load()``), so that it is not
pickled for worker processes.  Here one worker loads it for all.  A handle, which is anything that
reads on, keeps a place, or draws numbers, each worker opens itself.

Numbers and texts are given to nobody: to compute them again takes no memory, and a number may be
that of an open file.  An array that one sample after the other writes is scratch memory, see
`settled`.
"""

from __future__ import annotations

import re
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import Kind, bases_hide, has_methods, is_model, kind_of
from threadloader._fetch.object_copy import Copied, ObjectCopier
from threadloader._fetch.parts import (
    ATOMS,
    CONTAINERS,
    LARGE,
    NUMBERS,
    attributes,
    entries,
    parts,
    reached,
    set_attribute,
)
from threadloader._fetch.single_owner import is_shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


BYTES = 1 << 16  # of an array that are compared, spread over it

SCRATCH = 1 << 24  # bytes: a larger array is data, and not looked at
FEW = 1 << 12  # bytes or elements of a smaller one that are compared, in some 40 us

_MISSING: Any = object()
_NUMBER_OF_A_HANDLE = re.compile(r"fd|fileno|handle|p(oin)?t(e)?r$", re.IGNORECASE)


class _Object(NamedTuple):
    key: int  # in `Copied`
    value: Any
    attributes: dict[str, tuple[Any, Any]]  # by name: the value, and a copy of a dict or list


class AttributesBefore(NamedTuple):
    """The attributes that one worker's objects had."""

    objects: list[_Object]
    keys: dict[int, int]  # of the objects in `Copied`, by their ids


class Change(NamedTuple):
    """An attribute that has another value than before, or a dict or list that got a handle."""

    key: int  # of the object in `Copied`
    owner: Any  # the object
    name: str
    is_slot: bool
    value: Any
    before: Any  # the value it had
    before_key: int | None  # of that value in `Copied`, if each worker has its own
    entries: Any = None  # of a dict or list that got a handle, what was in it
    is_data: bool = False
    parts: Sequence[tuple[Any, Any]] = ()  # of data that may be written, with what is in them

    @property
    def is_handle(self) -> bool:
        """Whether each worker has to open one for itself."""
        return not (self.is_data or isinstance(self.value, NUMBERS))

    @property
    def is_number_of_a_handle(self) -> bool:
        """Whether it is one, by its name: a file descriptor, a pointer."""
        return _is_number_of_a_handle(self.name, self.value)

    def before_in(self, to: Copied) -> Any:
        """Return the value that another worker's copy had before.

        Args:
            to: What was copied for the other worker.
        """
        if self.before_key is not None and self.before_key in to:
            return to[self.before_key][1]
        return self.before

    def set_back(self, twin: Any, to: Copied) -> None:
        """Give another worker's object what it had; of a dict or list one for itself."""
        before = self.before_in(to) if self.entries is None else _like(self.value, self.entries)
        self.set(twin, before)

    def set(self, twin: Any, value: Any) -> None:
        """Set the attribute of another worker's object, or delete it for `_MISSING`."""
        if value is not _MISSING:
            set_attribute(twin, self.name, value, is_slot=self.is_slot)
            return
        with suppress(AttributeError):  # it was not set
            object.__delattr__(twin, self.name)


def snapshot(copied: Copied, *, originals: bool = False) -> AttributesBefore:
    """Return the attributes that the objects of one worker have now.

    Args:
        copied: What was copied for the worker.
        originals: Whether it uses the user's own objects instead.
    """
    own = [(key, pair[not originals]) for key, pair in copied.items() if pair[0] is not pair[1]]
    keys = {id(value): key for key, value in own}
    objects = [
        _Object(key, value, {name: (part, _entries(part)) for name, part, _ in attributes(value)})
        for key, value in own
        # What a library keeps is its own.
        if kind_of(value) not in (Kind.CONTAINER, Kind.FUNCTION, Kind.OPENED)
    ]
    return AttributesBefore(objects, keys)


def changes(before: AttributesBefore) -> list[Change]:
    """Return which attributes have changed since then, and whether they are data now."""
    return [change for each in before.objects for change in _changes_of(each, before.keys)]


def is_changed(before: AttributesBefore) -> bool:
    """Whether an attribute was set or deleted, or a list or dict that is copied has other entries.

    One that all workers share may have grown by what their samples collect in it.
    """
    return any(_differs(each, before.keys) for each in before.objects)


def _differs(each: _Object, copied: dict[int, int]) -> bool:
    now, before = _values_of(each.value), each.attributes
    if now.keys() != before.keys():
        return True
    for name, part in now.items():
        was, kept = before[name]
        if not _is_same(part, was):
            return True
        if kept is not None and id(part) in copied and not _has_same(part, kept):
            return True
    return False


def _has_same(now: Any, before: Any) -> bool:
    """Whether a list or dict has the same entries, in the same order."""
    pairs = zip(entries(now), entries(before), strict=False)
    return len(now) == len(before) and all(
        key == other and _is_same(entry, kept) for (key, entry), (other, kept) in pairs
    )


def _is_same(now: Any, before: Any) -> bool:
    return now is before or (type(now) is type(before) and type(now) in ATOMS and now == before)


def settled(found: list[Change]) -> list[Change]:
    """Return the changes that no sample since has touched: what each writes anew is its own."""
    now = {id(each.owner): _values_of(each.owner) for each in found}
    return [
        each
        for each in found
        if now[id(each.owner)].get(each.name, _MISSING) is each.value
        and all(_content(part) == content for part, content in each.parts)
    ]


def _values_of(value: Any) -> dict[str, Any]:
    return {name: part for name, part, _ in attributes(value)}


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
        own = part.base is None or isinstance(part.base, np.ndarray)
        own = own and not isinstance(part, np.memmap)
        return bool(own and part.flags.writeable and part.nbytes <= SCRATCH)
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
    twins = {id(each.owner): (each.owner, to[each.key][1]) for each in found if each.key in to}
    for owner, twin in twins.values():
        now = _values_of(twin)
        same = [
            each
            for each in found
            if each.owner is owner is not twin
            and now.get(each.name, _MISSING) is each.before_in(to)
        ]
        for grown in same:
            if grown.entries is not None:
                grown.set_back(twin, to)
        same = [each for each in same if each.entries is None]
        if any(change.is_data for change in same) and not _given(same, twin, twins):
            for change in same:
                change.set_back(twin, to)


def _given(found: list[Change], twin: Any, twins: dict[int, tuple[Any, Any]]) -> bool:
    """Give another worker's object what this one's has, or return False if that can't be.

    Args:
        found: The changes of one object.
        twin: The other worker's.
        twins: All objects that have changed, and the other worker's.
    """
    known = Copied()
    known.update(twins)
    copier = ObjectCopier(known)
    for change in found:  # data first, as handles may be made of it
        is_new = change.before is None or change.before is _MISSING
        if change.is_data or (is_new and isinstance(change.value, NUMBERS)):
            change.set(twin, change.value)
    try:
        for change in found:
            if change.is_handle:
                change.set(twin, copier.copy_for(twin, change.value))
    except Exception:  # noqa: BLE001  # whatever opening a file raises
        return False
    return not (known.shared or any(change.is_number_of_a_handle for change in found))


def take_back(found: list[Change], to: Copied) -> None:
    """Set attributes of another worker's copies to what they were before the changes.

    What was made anew for the other worker is left, and so are numbers beside no handle.

    Args:
        found: The changes of the first worker's objects, of which these are copies.
        to: What was copied for the other worker.
    """
    with_handles = {each.key for each in found if each.is_handle or each.is_number_of_a_handle}
    for change in found:
        twin = to[change.key][1] if change.key in to else change.owner
        stays = _values_of(twin).get(change.name, _MISSING) is not change.value
        if not (twin is change.owner or stays) and (change.is_data or change.key in with_handles):
            change.set_back(twin, to)


def _entries(part: Any) -> Any:
    """Return a copy of a dict or list, in which a sample may put handles; None of all else."""
    if (isinstance(part, dict) or type(part) is list) and len(part) <= LARGE:
        return dict(part) if isinstance(part, dict) else list(part)
    return None


def _like(container: Any, kept: Any) -> Any:
    """Return a dict or list of the same type with other entries."""
    if type(container) is list:
        return list(kept)
    twin = container.copy()
    twin.clear()
    twin.update(kept)
    return twin


def _changes_of(each: _Object, keys: dict[int, int]) -> Iterator[Change]:
    for name, value, is_slot in attributes(each.value):
        before, kept = each.attributes.get(name, (_MISSING, None))
        if before is value and (kept is None or not _got_handles(value, kept, keys)):
            continue
        change = Change(each.key, each.value, name, is_slot, value, before, keys.get(id(before)))
        if before is value:
            yield change._replace(entries=kept)
        else:
            writable: list[tuple[Any, Any]] = []
            is_data = not isinstance(value, NUMBERS) and _is_data(value, keys, writable)
            yield change._replace(is_data=is_data, parts=writable)


def _got_handles(container: Any, before: Any, keys: dict[int, int]) -> bool:
    """Whether handles were put into a dict, or in the place of None into a list."""
    if type(container) is not list:
        new = [entry for key, entry in entries(container) if key not in before]
    elif len(container) == len(before):
        pairs = zip(before, container, strict=True)
        new = [entry for old, entry in pairs if old is None and entry is not None]
    else:  # users collect something in it
        new = []
    return any(not _is_data(entry, keys, []) for entry in new)


# What is data


def _is_data(value: Any, own: dict[int, int], writable: list[tuple[Any, Any]]) -> bool:
    """Whether an object and all that it leads to is data, which workers can share.

    Args:
        value: The object.
        own: The ids of objects of which each worker has its own.
        writable: Gets its parts that may be written, with what is in them.
    """
    for part in reached(value, _parts_of_data):
        if id(part) in own or not _may_be_data(part):
            return False
        content = _content(part) if len(writable) < LARGE else None
        if content is not None:
            writable.append((part, content))
    return True


def _may_be_data(part: Any) -> bool:
    """Whether an object can be shared if all that it leads to can."""
    kind, cls = kind_of(part), type(part)
    if kind is Kind.OPENED:
        return bool(is_shared(part))
    if kind.is_shared or kind in (Kind.FUNCTION, Kind.CONTAINER) or is_model(part):
        return True
    # C keeps something, or something is closed; or its methods may keep a place.
    if bases_hide(cls) or hasattr(cls, "__del__") or has_methods(cls):
        return False
    return not any(_is_number_of_a_handle(name, each) for name, each, _ in attributes(part))


def _is_number_of_a_handle(name: str, value: Any) -> bool:
    return type(value) is int and bool(_NUMBER_OF_A_HANDLE.search(name))


def _parts_of_data(part: Any) -> list[tuple[Any, Any]]:
    """Return what an object leads to; of a large container an entry of each class."""
    kind = kind_of(part)
    is_code = isinstance(part, types.BuiltinFunctionType)  # a method of a file, say
    if (kind.is_shared and not is_code) or kind is Kind.OPENED or is_model(part):
        return []
    large = entries(part) if isinstance(part, CONTAINERS) and len(part) > LARGE else ()
    return [*parts(part), *{type(each): (name, each) for name, each in large}.values()]


def _content(part: Any) -> Any:
    """Return what shows that somebody writes an object; None if nobody can."""
    if isinstance(part, (np.ndarray, _torch.Tensor)):
        return _some_bytes(part)
    if isinstance(part, (tuple, frozenset)):
        return None
    if isinstance(part, CONTAINERS):
        few = [each if isinstance(each, NUMBERS) else id(each) for _, each in entries(part)[:LARGE]]
        return len(part), few
    names = [(name, id(each)) for name, each, _ in attributes(part)]
    return names or None


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
