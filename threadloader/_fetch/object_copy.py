"""The walk over a user's objects that copies what each worker has of its own.

It goes over dataset, transforms, collate functions, their closures and helper objects alike; what
is reached twice is copied once.  Code, data and meeting points of threads are shared.
"""

from __future__ import annotations

import copy
import functools
import operator
import os
import types
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._fetch.kinds import Kind, bases_hide, is_model, kind_of
from threadloader._fetch.own_generators import copy_generator, defaults_of, is_own_generator
from threadloader._fetch.parts import (
    ATOMS,
    CONTAINERS,
    LARGE,
    attributes,
    entries,
    parts,
    reached,
    set_attribute,
    shallow_copy,
)
from threadloader._fetch.single_owner import is_written, rule_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


ENTRIES = 5000  # the most objects and entries that are copied of all transforms together

# A helper object that leads to more objects is no part of what has it.
# Unmeasured, a choice: a trainer of Lightning's leads to 109 before it has anything to train.
REACHED = 100

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
        opens: Whether files and the like are opened again; if not, the copies are good for nothing.
    """

    def __init__(self, copied: Copied, *, opens: bool = True) -> None:
        self._done = copied
        self._opens = opens
        self._entries_left = ENTRIES
        self._owners: dict[int, Any] = {}  # the objects that methods are bound to, by id
        self._cells: dict[int, types.CellType] = {}  # the new cells, by the ids of the old
        self._path: list[str] = []
        self._holder: Any = None  # the copy whose attributes are copied now
        self._defaults: Callable[[type], Any] = functools.cache(defaults_of)
        self._pid = os.getpid()

    def copy_root(self, name: str, value: Any, *, deep: bool = False) -> Any:
        """Return the copy of what the user gave to the loader.

        Args:
            name: Of the argument.
            value: The dataset, or a function.
            deep: Whether to copy a dataset like a transform.
        """
        self._path = [name]
        kind = kind_of(value)
        if is_model(value):
            return self._owner(value)
        if kind is Kind.CONTAINER:
            is_data = len(value) > REACHED and type(value) in CONTAINERS  # graphs, say
            return self._keep(value, value) if is_data else self.copy(value, deep=False)
        if kind in (Kind.DATASET, Kind.HIDDEN, Kind.HELPER, Kind.RECORD):
            return self._object(value, deep=deep)
        return self.copy(value, deep=True)

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
        if type(value) in ATOMS:
            return value
        done = self._done.get(id(value))
        if done is not None:
            return done[1]
        kind = kind_of(value)
        return value if kind.is_shared else self._WAYS[kind](self, value, deep)

    def _generator(self, value: Any, _deep: bool) -> Any:
        if not (self._done.own_generators and is_own_generator(value)):
            return value
        self._done.has_generators = True
        return self._keep(value, copy_generator(value))

    def _dataset(self, value: Any, _deep: bool) -> Any:
        return self._object(value, deep=False)

    def _called(self, value: Any, _deep: bool) -> Any:
        # The model that is trained, not an augmentation with weights.
        trained = (self._owners or self._path[0] == "collate_fn") and is_model(value)
        return value if trained else self._object(value, deep=True)

    def _helper(self, value: Any, deep: bool) -> Any:
        if (not deep or self._owners) and self._leads_away(value):
            return self._keep(value, value)
        return self._object(value, deep=True)

    def _record(self, value: Any, deep: bool) -> Any:
        if deep:
            return self._helper(value, deep)
        if _holds_parts(value):
            return self._object(value, deep=False)
        if kind_of(value) is Kind.HIDDEN:  # it may be large: a trie, an index
            if _refuses(value):
                self._note(value)
            self._keep(value, value)
        return value

    def _opened(self, value: Any, _deep: bool) -> Any:
        """Return what the table of libraries has for a worker."""
        rule: Any = rule_for(type(value))
        try:
            again = functools.partial(self.copy, deep=True)
            twin = rule(value, self._holder, again) if self._opens else value
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  # whatever opening a file raises
            twin = value
            self._note(value)
        return self._keep(value, twin)

    def _note(self, value: Any) -> None:
        """Note that all workers share an object which may change."""
        self._done.shared.append((".".join(self._path), type(value)))

    def _keep(self, value: Any, twin: Any) -> Any:
        self._done[id(value)] = (value, twin)
        return twin

    # Objects and containers

    def _object(self, value: Any, *, deep: bool) -> Any:
        """Copy one object, and those of its attributes that are not shared."""
        self._entries_left -= deep
        if deep and self._entries_left < 0:
            return self._keep(value, value)
        twin = None if self._closes_handle(value) else _twin_of(value)
        if twin is None:
            self._note(value)
            return self._keep(value, value)
        self._keep(value, twin)
        if twin is not value:
            self._copy_attributes(twin, deep=deep)
        return twin

    def _copy_attributes(self, twin: Any, *, deep: bool) -> None:
        before, self._holder = self._holder, twin
        noted, guards, shares = len(self._done.shared), [], False
        self._copy_defaults(twin)
        for name, part, is_slot in attributes(twin):
            if type(part) is int and part == self._pid and "pid" in name.lower():
                guards.append((name, is_slot))
            self._path.append(name)
            copied = self.copy(part, deep=deep)
            self._path.pop()
            if copied is not part:
                set_attribute(twin, name, copied, is_slot=is_slot)
            elif type(part) not in ATOMS:
                shares |= kind_of(part) in (Kind.HIDDEN, Kind.RECORD)
        if guards and (shares or len(self._done.shared) > noted):
            # Who compares it with this process's opens a handle of its own.
            del self._done.shared[noted:]
            for name, is_slot in guards:
                set_attribute(twin, name, None, is_slot=is_slot)
        self._holder = before

    def _copy_defaults(self, twin: Any) -> None:
        """Give a copy generators in the place of those that its class has for all objects."""
        names = getattr(twin, "__dict__", None)
        if names is not None and self._done.own_generators:
            for name, generator in self._defaults(type(twin)):
                names.setdefault(name, generator)
        if hasattr(type(twin), "create_rng"):  # it is to have one, see `_prepare` of own_generators
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
        for key, entry in entries(value):
            twin[key] = self.copy(entry, deep=deep)
        return twin

    # Functions

    def _owner(self, value: Any) -> Any:
        """Copy the object that a method is bound to, or that a closure holds."""
        kind = kind_of(value)
        known = id(value) in self._done or not hasattr(value, "__dict__")
        if known or kind not in (Kind.CALLED, Kind.HIDDEN, Kind.HELPER, Kind.RECORD):
            return self.copy(value, deep=kind is not Kind.CONTAINER)
        self._owners[id(value)] = value
        twin = self._object(value, deep=True)
        del self._owners[id(value)]
        return twin

    def _held(self, value: Any) -> Any:
        """Return the copy of the value of a closure's variable, or of a default."""
        if type(value) in ATOMS or is_model(value):
            return value
        if kind_of(value) not in (Kind.HELPER, Kind.RECORD):
            return self.copy(value, deep=not isinstance(value, CONTAINERS))
        # One without attributes is compared by identity: a marker for a missing value, say.
        return self._owner(value) if getattr(value, "__dict__", None) else value

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
        cells, defaults = function.__closure__ or (), function.__defaults__ or ()
        keywords = function.__kwdefaults__ or {}
        before = (*cells, *defaults, *keywords.values())
        cells = tuple(self._cell(cell, function) for cell in cells)
        defaults = tuple(map(self._held, defaults))
        keywords = {key: self._held(part) for key, part in keywords.items()}
        if all(map(operator.is_, before, (*cells, *defaults, *keywords.values()))):
            return function
        # Where it calls itself, the copy is to call the copy.
        own = types.CellType()
        cells = tuple(own if _contents(cell) is function else cell for cell in cells)
        own.cell_contents = twin = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, defaults or None, cells
        )
        twin.__kwdefaults__ = keywords or None
        twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
        twin.__doc__ = function.__doc__
        twin.__dict__.update(function.__dict__)
        return self._keep(function, twin)  # type: ignore[no-any-return]

    def _cell(self, cell: types.CellType, function: types.FunctionType) -> types.CellType:
        """Return the cell that a copy of ``function`` has in the place of ``cell``."""
        held = _contents(cell)
        if held is _EMPTY or held is function:
            return cell
        if id(cell) not in self._cells:
            twin = self._held(held)
            self._cells[id(cell)] = cell if twin is held else types.CellType(twin)
        return self._cells[id(cell)]

    # What is no part

    def _leads_away(self, value: Any) -> bool:
        """Whether a helper object is no part of what has it; see the class."""
        left = REACHED
        for part in reached(value, _parts_of_helper):
            kind = kind_of(part)
            if id(part) in self._owners or kind is Kind.MEETING or is_written(part):
                return True
            left -= not kind.is_shared
            if left < 0:
                return True
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
        return kind_of(part) is Kind.OPENED and self.copy(part, deep=True) is not part

    _WAYS = {  # noqa: RUF012  # nobody changes it
        Kind.FUNCTION: _function,
        Kind.CONTAINER: _container,
        Kind.GENERATOR: _generator,
        Kind.OPENED: _opened,
        Kind.DATASET: _dataset,
        Kind.CALLED: _called,
        Kind.HIDDEN: _record,
        Kind.HELPER: _helper,
        Kind.RECORD: _record,
    }


def walked(roots: Mapping[str, Any]) -> Copied:
    """Return the user's objects of which each worker has copies; the copies are good for nothing.

    Args:
        roots: The user's dataset and functions, by the names of the arguments.
    """
    found = Copied()
    with suppress(Exception):  # whatever a class raises to refuse; a list of transforms too deep
        for name, value in roots.items():
            ObjectCopier(found, opens=False).copy_root(name, value)
    return found


def _twin_of(value: Any) -> Any:
    """Return a copy with the attributes of ``value``; itself to be shared; None if it refuses."""
    kind = type(value)
    copies_itself = hasattr(kind, "__copy__")
    if copies_itself or not _torch.is_module(value):
        try:
            twin = copy.copy(value)
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            if copies_itself or bases_hide(kind):
                return None
        else:
            return twin if type(twin) is kind else value
    # A module not by the methods for pickle: Lightning's would lose their trainer.
    return shallow_copy(value)


def _refuses(value: Any) -> bool:
    """Whether an object of a C class refuses to be pickled; the class decides."""
    kind = type(value)
    if kind_of(value) is not Kind.HIDDEN or isinstance(value, weakref.ref):
        return False
    if kind not in _refusing:
        try:
            value.__reduce_ex__(4)
            _refusing[kind] = False
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            _refusing[kind] = True
    return _refusing[kind]


# What was found, as it may take long to ask.
_refusing: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()

_PARTS = (*(Kind.FUNCTION, Kind.OPENED, Kind.DATASET, Kind.CALLED, Kind.HELPER, Kind.GENERATOR),)


def _holds_parts(value: Any) -> bool:
    """Whether a container or a record on a dataset has datasets, transforms or helpers in it.

    Of each class one entry is looked at, and of each container, in containers and records, too.
    """
    classes: set[type] = set()

    def onward(value: Any) -> Iterator[tuple[Any, Any]]:
        if kind_of(value) in (Kind.CONTAINER, Kind.HIDDEN, Kind.RECORD):
            for name, part in parts(value):
                if (kind := type(part)) in CONTAINERS or kind not in classes:
                    classes.add(kind)
                    yield name, part

    return any(
        kind_of(part) in _PARTS or _refuses(part)
        for part in reached(value, onward)
        if part is not value
    )


def _parts_of_helper(value: Any) -> Iterator[tuple[Any, Any]]:
    kind = kind_of(value)
    if not (kind.is_shared or kind in (Kind.FUNCTION, Kind.GENERATOR, Kind.OPENED)):
        yield from parts(value)


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
