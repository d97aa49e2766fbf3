"""The walk over a user's objects that copies what each worker has of its own.

It goes over dataset, transforms, collate functions, their closures and helper objects alike; what
is reached twice is copied once.  Code, data and meeting points of threads are shared.
"""

from __future__ import annotations

import copy
import functools
import os
import types
import weakref
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._fetch.kinds import (
    ATOMS,
    CONTAINERS,
    DATA,
    LARGE,
    MEETING_POINTS,
    attributes,
    bases_hide,
    generator_classes,
    is_array,
    is_dataset,
    is_helper,
    is_model,
    is_ours,
    set_attribute,
    shared_classes,
)
from threadloader._fetch.own_generators import copy_generator, defaults_of, is_own_generator
from threadloader._fetch.single_owner import rule_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Copied", "ObjectCopier", "SharedPart", "walked"]

ENTRIES = 5000  # the most objects and entries that are copied of all transforms together

# A helper object that leads to more objects is no part of what has it.
# Unmeasured, a choice: a trainer of Lightning's leads to 109 before it has anything to train.
REACHED = 100

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_ELSEWHERE = (*MEETING_POINTS, _torch.DataLoader)  # what leads here is no part, either
_EMPTY: Any = object()

SharedPart = tuple[str, type]  # the path to an object that all workers share, and its class


class Copied(dict[int, tuple[Any, Any]]):
    """What one worker has copies of: id -> (original, copy).

    Keeping the original keeps its id from being used again.

    Args:
        own_generators: Whether the worker has random generators of its own, as they are seeded for
            each sample.
    """

    def __init__(self, *, own_generators: bool = True) -> None:
        super().__init__()
        self.shared: list[SharedPart] = []  # what could not be copied, though it may change
        self.own_generators = own_generators
        self.has_generators = False  # whether there are any in what was copied


class ObjectCopier:
    """Copies one graph of objects; an object that is reached twice is copied once.

    - Of a dataset, the datasets, callable objects and helper objects are copied; its containers
      are, if they have such entries.  Of these in turn everything is copied but data.
    - A method is bound to the copy of its object, and a closure has copies of what it holds.  Lists
      and dicts there, where users collect results, are shared unless they have such entries.
    - A helper that leads to a lock, a thread, a loader or to many objects is no part of what has
      it, and is shared: a trainer, a client, a writer of logs.  So is one that leads back to the
      object of a method.
    - Of what is written in Python there is always a copy, unless its class refuses by a
      ``__copy__``.  What a C class refuses to copy is made anew, or noted as shared.

    Args:
        copied: What was copied before; gets what is copied now.
    """

    def __init__(self, copied: Copied) -> None:
        self._done = copied
        self._entries_left = ENTRIES
        self._owners: dict[int, Any] = {}  # the objects that methods are bound to, by id
        self._cells: dict[int, types.CellType] = {}  # the new cells, by the ids of the old
        self._path: list[str] = []
        self._defaults: dict[type, list[tuple[str, Any]]] = {}  # by class; see `defaults_of`
        self._ways: dict[type, Callable[[ObjectCopier, Any, bool], Any]] = {}
        self._holder: Any = None  # the copy whose attributes are copied now
        self._pid = os.getpid()

    def copy_root(self, name: str, value: Any, *, deep: bool = False) -> Any:
        """Return the copy of what the user gave to the loader.

        Args:
            name: Of the argument.
            value: The dataset, or a function.
            deep: Whether to copy a dataset like a transform.
        """
        self._path = [name]
        if isinstance(value, CONTAINERS):
            if len(value) > REACHED and type(value) in CONTAINERS:  # the data: graphs, say
                return self._keep(value, value)
            return self._container(value, False)
        if is_model(value):
            return self._owner(value)
        if isinstance(value, shared_classes()) and not isinstance(value, types.FunctionType):
            return self._keep(value, value)
        if callable(value) and not is_dataset(value):
            return self.copy(value, deep=True)
        return self.copy_object(value, deep=deep)

    def copy_for(self, holder: Any, value: Any) -> Any:
        """Return the copy of an attribute for one copy of the object that has it."""
        self._holder = holder
        return self.copy(value, deep=True)

    def copy(self, value: Any, *, deep: bool) -> Any:
        """Return the copy of ``value``, or ``value`` itself if it is shared.

        Args:
            value: The value of an attribute.
            deep: Whether it belongs to a transform, of which everything is copied, or to a dataset,
                of which only the datasets, transforms and helpers are copied.
        """
        kind = type(value)
        if kind in ATOMS:
            return value
        if id(value) in self._done:
            return self._done[id(value)][1]
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._way_for(value)
        return way(self, value, deep)

    def _way_for(self, value: Any) -> Callable[[ObjectCopier, Any, bool], Any]:
        """Return what copies a value; the class decides."""
        kind = type(value)
        for classes, way in self._BY_CLASS:
            if isinstance(value, classes()):
                return way  # type: ignore[no-any-return]
        if rule_for(kind) is not None:
            return ObjectCopier._by_rule
        if is_array(value) or (is_ours(kind) and not is_dataset(value)):
            return ObjectCopier._shared
        if is_dataset(value):
            return ObjectCopier._dataset
        if callable(value):
            return ObjectCopier._called
        if bases_hide(kind) and not hasattr(kind, "__copy__"):
            return ObjectCopier._in_c
        return ObjectCopier._helper if is_helper(kind) else ObjectCopier._plain

    def _shared(self, value: Any, _deep: bool) -> Any:  # as the others
        return value

    def _generator(self, value: Any, _deep: bool) -> Any:
        if not (self._done.own_generators and is_own_generator(value)):
            return value
        self._done.has_generators = True
        return self._keep(value, copy_generator(value))

    def _dataset(self, value: Any, _deep: bool) -> Any:
        return self.copy_object(value, deep=False)

    def _called(self, value: Any, _deep: bool) -> Any:
        # The model that is trained, not an augmentation with weights.
        trained = (self._owners or self._path[0] == "collate_fn") and is_model(value)
        return value if trained else self.copy_object(value, deep=True)

    def _helper(self, value: Any, deep: bool) -> Any:
        if (not deep or self._owners) and self._leads_away(value):
            return self._keep(value, value)
        return self.copy_object(value, deep=True)

    def _plain(self, value: Any, deep: bool) -> Any:
        if deep:
            return self._helper(value, deep)
        return self.copy_object(value, deep=False) if _holds_parts(value) else value

    def _in_c(self, value: Any, deep: bool) -> Any:
        if deep:
            return self._helper(value, deep)
        if _is_record(value) and _holds_parts(value):
            return self.copy_object(value, deep=False)
        # It may be large: a trie, an index.
        if _refuses(value):
            self._note(value)
        return self._keep(value, value)

    def _by_rule(self, value: Any, _deep: bool) -> Any:
        """Return what the table of libraries has for a worker."""
        try:
            twin = self._opened_again(value)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  # whatever opening a file raises
            twin = value
            self._note(value)
        return self._keep(value, twin)

    def _opened_again(self, value: Any) -> Any:
        rule: Any = rule_for(type(value))
        return rule(value, self._holder, functools.partial(self.copy, deep=True))

    def _note(self, value: Any) -> None:
        """Note that all workers share an object which may change."""
        self._done.shared.append((".".join(self._path), type(value)))

    def copy_object(self, value: Any, *, deep: bool) -> Any:
        """Copy one object, and those of its attributes that are not shared."""
        if deep:
            self._entries_left -= 1
        if deep and self._entries_left < 0:
            return self._keep(value, value)
        if self._closes_handle(value):
            self._note(value)
            return self._keep(value, value)
        twin = self._twin_of(value)
        self._keep(value, twin)
        if twin is not value:
            self._copy_attributes(twin, deep=deep)
        return twin

    def _twin_of(self, value: Any) -> Any:
        """Return a copy with the attributes of ``value``, or ``value`` itself if it is shared."""
        kind = type(value)
        if _torch.is_module(value) and not hasattr(kind, "__copy__"):
            # Not by the methods for pickle: Lightning's modules would lose their trainer.  Those
            # in C++ have a copy of their own.
            return _by_structure(value)
        try:
            twin = copy.copy(value)
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            if not hasattr(kind, "__copy__") and not bases_hide(kind):
                return _by_structure(value)
            self._note(value)
            return value
        return twin if type(twin) is kind else value

    def _copy_attributes(self, twin: Any, *, deep: bool) -> None:
        before, self._holder = self._holder, twin
        noted, guards, shares = len(self._done.shared), [], False
        self._copy_defaults(twin)
        for name, part, is_slot in attributes(twin):
            kind = type(part)
            if kind in ATOMS:
                if kind is int and part == self._pid and "pid" in name.lower():
                    guards.append((name, is_slot))
                continue
            self._path.append(name)
            copied = self.copy(part, deep=deep)
            self._path.pop()
            if copied is part:
                shares |= self._ways.get(kind) in (ObjectCopier._in_c, ObjectCopier._plain)
            else:
                set_attribute(twin, name, copied, is_slot=is_slot)
        if guards and (shares or len(self._done.shared) > noted):
            # Who compares it with this process's opens a handle of its own.
            del self._done.shared[noted:]
            for name, is_slot in guards:
                set_attribute(twin, name, None, is_slot=is_slot)
        self._holder = before

    def _copy_defaults(self, twin: Any) -> None:
        """Give a copy generators in the place of those that its class has for all objects."""
        kind = type(twin)
        if kind not in self._defaults:
            self._defaults[kind] = defaults_of(kind) if self._done.own_generators else []
        for name, generator in self._defaults[kind]:
            names = getattr(twin, "__dict__", None)
            if names is not None and name not in names:
                names[name] = generator
        if hasattr(kind, "create_rng"):  # it is to have one, see `prepare`
            self._done.has_generators = True

    def _container(self, value: Any, deep: bool) -> Any:
        if deep or callable(value):
            deep = True
            # All containers of a transform are copied, unless they are data.
            if len(value) > min(LARGE, self._entries_left):
                return self._keep(value, value)
            self._entries_left -= len(value)
        elif not _holds_parts(value):
            # Noted all the same: to a function that refers to it, it is the dataset's.
            return self._keep(value, value)
        try:
            twin = self._container_of_copies(value, deep=deep)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            return self._keep(value, value)
        if type(value) not in CONTAINERS:
            self._copy_attributes(twin, deep=deep)
        return twin

    def _container_of_copies(self, value: Any, *, deep: bool) -> Any:
        if isinstance(value, (tuple, set, frozenset)):
            copies = [self.copy(entry, deep=deep) for entry in value]
            make = getattr(value, "_make", type(value))  # of a named tuple
            return self._keep(value, make(copies))
        # Noted before its entries are copied: a container may contain itself.
        twin = self._keep(value, copy.copy(value))
        for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
            twin[key] = self.copy(entry, deep=deep)
        return twin

    def _keep(self, value: Any, twin: Any) -> Any:
        self._done[id(value)] = (value, twin)
        return twin

    # Functions

    def _owner(self, value: Any) -> Any:
        """Copy the object that a method is bound to, or that a closure holds."""
        if id(value) in self._done or not hasattr(value, "__dict__") or is_dataset(value):
            return self.copy(value, deep=True)
        if isinstance(value, (*CONTAINERS, *shared_classes(), _torch.DataLoader)):
            return self.copy(value, deep=False)
        if rule_for(type(value)) is not None:
            return self.copy(value, deep=True)
        self._owners[id(value)] = value
        twin = self.copy_object(value, deep=True)
        del self._owners[id(value)]
        return twin

    def _function(self, function: Any, _deep: bool) -> Any:
        """Return a function of the same code over the worker's own objects."""
        if isinstance(function, types.MethodType):
            # A method kept on self is bound to the original; its copy, to the copy.
            return types.MethodType(function.__func__, self._owner(function.__self__))
        if isinstance(function, functools.partial):
            keywords = {key: self._held(part) for key, part in function.keywords.items()}
            args = map(self._held, function.args)
            func = self.copy(function.func, deep=True)
            return self._keep(function, functools.partial(func, *args, **keywords))
        return self._with_closure(function)

    def _with_closure(self, function: types.FunctionType) -> types.FunctionType:
        self._keep(function, function)  # unless it turns out to need a copy
        if not (function.__closure__ or function.__defaults__ or function.__kwdefaults__):
            return function
        cells = [self._cell(cell, function) for cell in function.__closure__ or ()]
        defaults = tuple(map(self._held, function.__defaults__ or ()))
        keywords = {key: self._held(part) for key, part in (function.__kwdefaults__ or {}).items()}
        before = (*(function.__closure__ or ()), *(function.__defaults__ or ()))
        before += tuple((function.__kwdefaults__ or {}).values())
        after = (*cells, *defaults, *keywords.values())
        if all(old is new for old, new in zip(before, after, strict=True)):
            return function
        for number, cell in enumerate(cells):
            if _contents(cell) is function:  # it calls itself
                cells[number] = types.CellType()
        twin = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, closure=tuple(cells)
        )
        for cell in cells:
            if _contents(cell) is _EMPTY:
                cell.cell_contents = twin
        twin.__defaults__, twin.__kwdefaults__ = defaults or None, keywords or None
        twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
        twin.__doc__ = function.__doc__
        twin.__dict__.update(function.__dict__)
        self._done[id(function)] = function, twin
        return twin

    def _cell(self, cell: types.CellType, function: types.FunctionType) -> types.CellType:
        """Return the cell that a copy of ``function`` has in the place of ``cell``."""
        held = _contents(cell)
        if held is _EMPTY or held is function:
            return cell
        if id(cell) not in self._cells:
            twin = self._held(held)
            self._cells[id(cell)] = cell if twin is held else types.CellType(twin)
        return self._cells[id(cell)]

    def _held(self, value: Any) -> Any:
        """Return the copy of the value of a closure's variable, or of a default."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if isinstance(value, CONTAINERS):
            return self.copy(value, deep=False)
        if is_model(value):
            return value
        if callable(value) or is_dataset(value) or rule_for(kind) is not None:
            return self.copy(value, deep=True)
        # An object without attributes is compared by identity: a marker for a missing value, say.
        if bases_hide(kind):
            return self.copy(value, deep=True)
        return self._owner(value) if getattr(value, "__dict__", None) else value

    # What is no part

    def _leads_away(self, value: Any) -> bool:
        """Whether a helper object is no part of what has it; see the class."""
        seen: dict[int, Any] = {}
        found = [value]
        while found:
            part = found.pop()
            if id(part) in self._owners or isinstance(part, _ELSEWHERE) or _is_written(part):
                return True
            if type(part) in ATOMS or id(part) in seen or isinstance(part, shared_classes()):
                continue
            seen[id(part)] = part
            if len(seen) > REACHED:
                return True
            if rule_for(type(part)) is None and not is_array(part):
                found += _parts(part)
        return False

    def _closes_handle(self, value: object) -> bool:
        """Whether ``value`` closes something when it dies, which its copy would close, too.

        It does if its ``__del__`` reads an attribute that is not None now, and is not made anew for
        each worker; what it only deletes stays open.  A file that is opened on first use is None
        before, and then each copy opens its own.
        """
        if not hasattr(type(value), "__del__"):
            return False
        names = _names_read(type(value), "__del__", set())
        before, self._holder = self._holder, value
        try:
            return any(
                name in names and part is not None and not self._is_made_anew(part)
                for name, part, _ in attributes(value)
            )
        finally:
            self._holder = before

    def _is_made_anew(self, part: Any) -> bool:
        if isinstance(part, CONTAINERS) and not part:
            return True
        return rule_for(type(part)) is not None and self.copy(part, deep=True) is not part

    # What copies objects of some classes; the first that fits.
    _BY_CLASS: tuple[tuple[Callable[[], tuple[type, ...]], Any], ...] = (
        (lambda: _FUNCTIONS, _function),
        (lambda: CONTAINERS, _container),
        (generator_classes, _generator),
        (lambda: (*shared_classes(), _torch.DataLoader, Enum), _shared),
    )


class _Walker(ObjectCopier):
    """Finds the objects of which workers have copies, and opens nothing again for them."""

    def _opened_again(self, value: Any) -> Any:
        return value


def walked(roots: Mapping[str, Any]) -> Copied:
    """Return the user's objects of which each worker has copies; the copies are good for nothing.

    Args:
        roots: The user's dataset and functions, by the names of the arguments.
    """
    found = Copied()
    with suppress(Exception):  # whatever a class raises to refuse; a list of transforms too deep
        for name, value in roots.items():
            _Walker(found).copy_root(name, value)
    return found


def _by_structure(value: Any) -> Any:
    """Return an object of the same class with the same attributes."""
    twin = object.__new__(type(value))
    for name, part, is_slot in attributes(value):
        set_attribute(twin, name, part, is_slot=is_slot)
    return twin


def _refuses(value: Any) -> bool:
    """Whether an object of a C class refuses to be pickled; the class decides."""
    kind = type(value)
    if kind not in _refusing:
        if isinstance(value, weakref.ref):
            _refusing[kind] = False
        else:
            try:
                value.__reduce_ex__(4)
                _refusing[kind] = False
            except Exception:  # noqa: BLE001  # whatever a class raises to refuse
                _refusing[kind] = True
    return _refusing[kind]


# What was found, as it may take long to ask.
_refusing: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_written(part: Any) -> bool:
    """Whether a part is a file that is open for writing."""
    return type(part).__module__ == "_io" and not part.closed and part.writable()


def _holds_parts(value: Any) -> bool:
    """Whether a container or a record on a dataset has datasets, transforms or helpers in it.

    Of each class one entry is looked at, and of each container, in containers and records, too.  A
    large container has none: a list of paths, say.
    """
    seen: dict[int, Any] = {}
    kinds: set[type] = set()
    found = [value]
    left = ENTRIES
    while found and left > 0:
        each = found.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        for part in _parts(each):
            kind, left = type(part), left - 1
            if kind in ATOMS or kind in kinds or isinstance(part, DATA):
                continue
            if kind not in CONTAINERS:
                kinds.add(kind)
                if not isinstance(part, CONTAINERS) and _is_part(kind, part):
                    return True
            if isinstance(part, CONTAINERS) or _is_record(part):
                found.append(part)
    return False


def _is_record(part: Any) -> bool:
    """Whether an object has attributes and no methods: a namespace, say."""
    return getattr(part, "__dict__", None) is not None and not isinstance(
        part, (*shared_classes(), Enum)
    )


def _is_part(kind: type, entry: Any) -> bool:
    if is_dataset(entry) or callable(entry) or rule_for(kind) is not None:
        return True
    shared = isinstance(entry, (*shared_classes(), Enum)) or is_array(entry)
    return not shared and (is_helper(kind) or (bases_hide(kind) and _refuses(entry)))


def _parts(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object and the entries of a container.

    A large container is data, and its entries are not looked at.
    """
    if isinstance(value, CONTAINERS) and len(value) <= LARGE:
        yield from list(value.values() if isinstance(value, dict) else value)
    for name, part, _ in attributes(value):
        if name != "__orig_class__":  # of `Counter[int]()`
            yield part


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value
        return _EMPTY


def _names_read(kind: type, method: str, seen: set[str]) -> set[str]:
    """Return the attributes that a method reads, and the methods of its class that it calls."""
    import dis  # noqa: PLC0415  # few classes need it

    seen.add(method)
    code = getattr(getattr(kind, method, None), "__code__", None)
    for step in () if code is None else dis.get_instructions(code):
        if step.opname in {"LOAD_ATTR", "LOAD_METHOD"} and step.argval not in seen:
            _names_read(kind, step.argval, seen)
    return seen
