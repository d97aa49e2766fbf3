"""The rules by which objects are copied, each for a class and those derived from it.

A rule gets an object and the `Copier`, and returns the worker's own; or it is a generator, see
`own_copy`.  No rule at all: the object is shared, as it is code, or where threads meet.
"""

from __future__ import annotations

import array
import enum
import functools
import gc
import io
import operator
import re
import struct
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from copyreg import dispatch_table
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._batch.parts import (
    ATOMS,
    OF_CTYPES,
    Layout,
    defaults,
    entries,
    is_flat,
    is_same,
    layout_of,
    state_of,
)
from threadloader._worker.generators import (
    class_generators,
    copy_generator,
    is_generator_class,
    prepare,
)
from threadloader._worker.handles import handle_rule
from threadloader._worker.memory_copy import (
    copy_array,
    copy_buffer,
    copy_c_data,
    copy_file_in_memory,
    copy_memoryview,
    copy_tensor,
    is_memory,
    is_written,
)
from threadloader._worker.own_copy import LIMITS, Copied, Copier, Limits, Rule, Rules, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

# Where threads and processes meet: all that these modules define.
_MEETING = frozenset(
    {
        *("_asyncio", "_contextvars", "_multiprocessing", "_queue", "_thread", "asyncio"),
        *("concurrent", "contextvars", "logging", "multiprocessing", "queue", "threading"),
    }
)
_WAITED_FOR = (threading.Barrier, threading.Condition, threading.Event, threading.Semaphore)
# How a class says that its objects are arrays, frames or tables, for other libraries to read.
_TABLES = (
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__dataframe__"),
    *("__arrow_c_array__", "__arrow_c_stream__", "__arrow_c_schema__"),
)
# Code, and what nobody changes.
_CODE = (
    *(type, types.ModuleType, types.CodeType, property, classmethod, staticmethod, range, slice),
    *(enum.Enum, np.generic, np.dtype, types.GenericAlias, types.UnionType, types.EllipsisType),
    *(re.Match, struct.Struct),
)
_LOADERS = "torch.utils.data.dataloader"
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of classes that are written in Python, among others
# The methods that a marker may have: of an object that does anything, any may set an attribute.
_SHOWING = frozenset(
    {
        *("__init__", "__new__", "__repr__", "__str__", "__format__", "__bool__", "__eq__"),
        *("__ne__", "__hash__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__"),
        *("__annotate__", "__annotate_func__", "__init_subclass__", "__class_getitem__"),
    }
)
_CACHED = type(functools.lru_cache(len))
_SELF = tuple(f.__code__.co_code for f in (lambda self: self, lambda self, _: self))

# What was found.  Two threads may find the same at once.
_found: weakref.WeakKeyDictionary[type, Rule | None] = weakref.WeakKeyDictionary()


def rule_of(kind: type, looks: bool) -> Rule | None:
    """Return the rule for the objects of a class; None to share them.

    Args:
        kind: The class.
        looks: Whether nothing is to be opened, or made by a class's own methods.
    """
    if (rule := EXACT.get(kind)) is not None:
        return rule
    if (rule := handle_rule(kind)) is not None:  # classes are registered at any time
        return None if looks else rule
    if kind not in _found:
        _found[kind] = _find(kind)
    rule = _found[kind]
    return None if looks and rule is rebuild else rule


def _find(kind: type) -> Rule | None:
    if issubclass(kind, _WAITED_FOR):
        return _waited_for
    if issubclass(kind, _CODE) or kind is object or is_meeting(kind):
        return None
    if is_generator_class(kind):
        return copy_generator
    for base, rule in _DERIVED:
        if issubclass(kind, base):
            return rule
    return _find_by_shape(kind)


def is_meeting(kind: type) -> bool:
    """Whether threads, processes or loaders meet at the objects of a class."""
    modules = [str(base.__module__) for base in kind.__mro__]
    return _LOADERS in modules or not _MEETING.isdisjoint(it.partition(".")[0] for it in modules)


def is_ours(kind: Any) -> bool:
    """Whether a class or function is of this package: threads may share objects, but datasets."""
    return str(kind.__module__).partition(".")[0] == __name__.partition(".")[0]


def _find_by_shape(kind: type) -> Rule | None:
    if issubclass(kind, np.ndarray):
        return copy_array
    if any(hasattr(kind, name) for name in _TABLES):
        return _data
    if (is_ours(kind) and not _is_dataset(kind)) or _says_shared(kind):
        return _data
    if _torch.may_be_trained(kind):
        return _trained
    if not layout_of(kind).hides_memory:
        return copy_object
    for base, rule in _OF_DERIVED.items():
        if issubclass(kind, base):
            return rule
    return rebuild


def _is_dataset(kind: type) -> bool:
    return issubclass(kind, _torch.Dataset) or all(
        hasattr(kind, name) for name in ("__getitem__", "__len__")
    )


def _says_shared(kind: type) -> bool:
    """Whether a class says that a copy is itself: ``def __copy__(self): return self``."""
    methods = (getattr(kind, name, None) for name in ("__copy__", "__deepcopy__"))
    codes = (getattr(method, "__code__", None) for method in methods)
    return any(code is not None and code.co_code in _SELF for code in codes)


def _data(value: Any, copier: Copier) -> Any:
    return copier.data(value)


def _copy_exception(value: Any, copier: Copier) -> Any:
    """Share an error that has no attributes: as it is raised, it is what the user made."""
    return rebuild(value, copier) if vars(value).keys() - {"__notes__"} else value


def _waited_for(value: Any, copier: Copier) -> Any:
    copier.copied.meets = True
    return value


def _trained(value: Any, copier: Copier) -> Any:
    """Share what the loop trains; but not a dataset, or the owner of a bound collate function."""
    if value is not copier.root and value is not copier.owner and _torch.is_trained(value):
        return copier.data(value)
    return copy_object(value, copier)


# Objects of attributes and slots


class Shape(NamedTuple):
    """How objects of a class are copied by their attributes; asked for once in each walk."""

    layout: Layout
    new: Callable[[type], Any]  # makes an empty one
    generators: tuple[tuple[str, Any], ...]  # those that the class has for all its objects
    is_ended: bool  # whether it has a ``__del__``
    makes_rng: bool  # whether it makes a generator on first use
    is_plain: bool  # whether its objects have a dictionary and nothing else
    is_inert: bool  # whether its methods show, compare or pickle its objects, and do no more

    @classmethod
    def of(cls, kind: type) -> Shape:
        """Return that of a class."""
        layout = layout_of(kind)
        of_c: Any = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP)
        is_ended, makes_rng = hasattr(kind, "__del__"), hasattr(kind, "create_rng")
        generators = class_generators(kind)
        return cls(
            layout,
            of_c.__new__,
            generators,
            is_ended,
            makes_rng,
            not (layout.slots or generators or is_ended or makes_rng),
            _is_inert(kind),
        )


def copy_object(value: Any, copier: Copier) -> Any:
    """Copy an object by its attributes and slots."""
    kind = type(value)
    shape = copier.shapes.get(kind) or copier.shapes.setdefault(kind, Shape.of(kind))
    if shape.makes_rng:
        prepare(value)
    names = shape.layout.dict_of(value)
    if (
        not names
        and shape.is_plain
        and (names is None or (shape.is_inert and _is_named(value, kind)))
    ):
        return value  # without any state; or a marker, a missing value say
    try:
        twin = shape.new(kind)
    except TypeError:
        return rebuild(value, copier)
    copier.keep(value, twin)
    if shape.is_ended:
        copier.copied.silence(twin)
    if shape.is_plain:
        fresh = shape.layout.dict_of(twin)
        fresh.update(dict.copy(names))
        if ATOMS.issuperset(map(type, fresh.values())):
            return twin
    return copy_attributes(value, copier, twin)


def _is_inert(kind: type) -> bool:
    return all(
        name in _SHOWING
        for base in kind.__mro__
        if base is not object
        for name, part in vars(base).copy().items()
        if callable(part) or isinstance(part, (property, classmethod, staticmethod))
    )


def _is_named(value: Any, kind: type) -> bool:
    """Whether the module of a class has an object of it."""
    names = vars(sys.modules.get(kind.__module__, types))
    return any(each is value for each in list(names.values()))


def copy_attributes(value: Any, copier: Copier, twin: Any) -> Steps:
    """Give a twin the twins of an object's attributes."""
    kind = type(value)
    shape = copier.shapes.get(kind) or copier.shapes.setdefault(kind, Shape.of(kind))
    names = shape.layout.dict_of(value)
    if names is not None:
        before = dict.copy(names)
        fresh = shape.layout.dict_of(twin)
        fresh.update(before)
        for name, part in before.items():
            if type(part) not in ATOMS:
                fresh[name] = yield name, part
        for name, part in shape.generators:
            if name not in before:
                fresh[name] = yield name, part
    for slot in shape.layout.slots:
        with suppress(AttributeError):  # it has no value
            part = slot.__get__(value)
            slot.__set__(twin, part)
            if type(part) not in ATOMS:
                slot.__set__(twin, (yield slot.__name__, part))
    return twin


def rebuild(value: Any, copier: Copier) -> Steps:
    """Make an object of a C class again, of what it says by the protocol of `pickle`."""
    kind = type(value)
    reduce = dispatch_table.get(kind)
    made = value.__reduce_ex__(4) if reduce is None else reduce(value)
    if isinstance(made, str):  # a name of its module
        return value
    function, arguments, state, items, pairs, setter = (*made, *(None,) * 6)[:6]
    own = []
    for number, part in enumerate(arguments):
        twin = yield (number,), part
        own.append(twin)
    if (known := copier.copied.get(id(value))) is not None:  # it has led to itself
        return known[1]
    copier.fill()  # it may look into a dict
    twin = copier.keep(value, function(*own))
    for each in items or ():
        twin.append((yield ("item",), each))
    for key, part in pairs or ():
        twin[(yield ("key",), key)] = yield (key,), part
    if state is not None:
        _set_state(twin, (yield "state", state), setter)
    if hasattr(kind, "__del__"):
        copier.copied.silence(twin)
    return twin


def _set_state(twin: Any, state: Any, setter: Callable[[Any, Any], None] | None) -> None:
    if setter is not None:
        setter(twin, state)
    elif hasattr(type(twin), "__setstate__"):
        twin.__setstate__(state)
    else:
        names, slots = state if isinstance(state, tuple) else (state, None)
        for name, part in {**(names or {}), **(slots or {})}.items():
            object.__setattr__(twin, name, part)


# Containers


def _copy_list(value: Any, copier: Copier) -> Any:
    twin = copier.flat_or_data(value)
    return _fill_list(value, copier) if twin is None else twin


def _fill_list(value: Any, copier: Copier) -> Steps:
    twin = copier.keep(value, list.copy(value))
    for place, part in enumerate(twin):
        if type(part) not in ATOMS:
            twin[place] = yield (place,), part
    return twin


def _copy_dict(value: Any, copier: Copier) -> Any:
    twin = copier.flat_or_data(value)
    return _fill_dict(value, copier, copier.keep(value, {}), dict) if twin is None else twin


def _fill_dict(value: Any, copier: Copier, twin: Any, base: Any) -> Steps:
    """Fill the twin of a dict by the methods of a C class, whatever its own do."""
    found, put = entries(value), base.__setitem__
    own, ready = [], True
    for key, part in found:
        own_key = key
        if type(key) not in ATOMS:
            own_key = yield ("key",), key
            ready = False
        if type(part) not in ATOMS:
            part = yield (key,), part  # noqa: PLW2901
        own.append((own_key, part))
        if ready:
            put(twin, key, part)
    if not ready:
        copier.fill_later(twin, lambda: [put(twin, *pair) for pair in own])
    return twin


def _copy_set(value: Any, copier: Copier) -> Any:
    twin = copier.flat_or_data(value)
    return _fill_set(value, copier, copier.keep(value, set())) if twin is None else twin


def _fill_set(value: Any, copier: Copier, twin: Any, update: Any = set.update) -> Steps:
    found = list(value) if isinstance(value, weakref.WeakSet) else entries(value)
    own = []
    for part in found:
        each = part if type(part) in ATOMS else (yield ("entry",), part)
        own.append(each)
    copier.fill_later(twin, lambda: update(twin, own))
    return twin


def _copy_tuple(value: Any, copier: Copier, base: Any = tuple) -> Any:
    """Copy a tuple or a frozenset, unless none of its parts is."""
    if len(value) <= copier.most and is_flat(value):
        return value
    return copier.data(value) if copier.is_data(value) else _refill(value, copier, base)


def _refill(value: Any, copier: Copier, base: Any) -> Steps:
    found, own = list(base.__iter__(value)), []
    for place, part in enumerate(found):
        own.append(part if type(part) in ATOMS else (yield (place,), part))
    if (known := copier.copied.get(id(value))) is not None:  # it has led to itself
        return known[1]
    layout = layout_of(type(value))
    if all(a is b for a, b in zip(own, found, strict=True)) and not layout.dict_of(value):
        return value
    if base is frozenset:
        copier.fill()  # whose keys hash themselves
    twin = copier.keep(value, base.__new__(type(value), own))
    return (yield from copy_attributes(value, copier, twin))


def _copy_deque(value: Any, copier: Copier, base: Any = deque) -> Steps:
    if copier.is_data(value):
        return copier.data(value)
    twin = base.__new__(type(value))
    base.__init__(twin, (), value.maxlen)
    copier.keep(value, twin)
    found = entries(value)
    for place, part in enumerate(found):
        base.append(twin, part if type(part) in ATOMS else (yield (place,), part))
    return twin


def _copy_derived(value: Any, copier: Copier, base: Any) -> Steps:
    """Copy a container of a class that is derived from one of C, with its attributes."""
    kind = type(value)
    if kind in (OrderedDict, defaultdict, Counter) and copier.is_data(value):
        return copier.data(value)
    twin = yield from _FILL_DERIVED[base](value, copier, base)
    if twin is value or base in (tuple, frozenset):
        return twin
    if issubclass(kind, defaultdict):
        twin.default_factory = yield "default_factory", value.default_factory
    return (yield from copy_attributes(value, copier, twin))


def _fill_derived_list(value: Any, copier: Copier, base: Any) -> Steps:
    twin = copier.keep(value, base.__new__(type(value)))
    for place, part in enumerate(entries(value)):
        base.append(twin, part if type(part) in ATOMS else (yield (place,), part))
    return twin


def _fill_derived_dict(value: Any, copier: Copier, base: Any) -> Steps:
    twin = copier.keep(value, base.__new__(type(value)))
    return (yield from _fill_dict(value, copier, twin, base))


def _fill_derived_set(value: Any, copier: Copier, base: Any) -> Steps:
    twin = copier.keep(value, base.__new__(type(value)))
    return (yield from _fill_set(value, copier, twin))


def _refill_derived(value: Any, copier: Copier, base: Any) -> Steps:
    try:
        return (yield from _refill(value, copier, base))
    except TypeError:  # a struct sequence
        return (yield from rebuild(value, copier))


_FILL_DERIVED: dict[Any, Callable[[Any, Copier, Any], Steps]] = {
    OrderedDict: _fill_derived_dict,
    dict: _fill_derived_dict,
    list: _fill_derived_list,
    set: _fill_derived_set,
    deque: _copy_deque,
    tuple: _refill_derived,
    frozenset: _refill_derived,
}
_OF_DERIVED: dict[Any, Rule] = {
    base: functools.partial(_copy_derived, base=base) for base in _FILL_DERIVED
}


def _copy_mapping(value: Any, _copier: Copier) -> Steps:
    (mapping,) = gc.get_referents(value)
    return types.MappingProxyType((yield "mapping", mapping))


def _copy_number_or_text(value: Any, copier: Copier) -> Any:
    """Copy one of a class of the user's, if it can have attributes."""
    layout = layout_of(type(value))
    if layout.dict_of(value) is None:
        return value
    base: Any = next(base for base in (str, bytes, int, float, complex) if isinstance(value, base))
    twin = base.__new__(type(value), base.__new__(base, value))
    return copy_attributes(value, copier, copier.keep(value, twin))


# Code that holds objects


def _copy_function(value: Any, copier: Copier) -> Steps:
    """Copy a function that holds objects: in variables around it, defaults, or attributes."""
    if _is_of_module(value) or not (
        value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value)
    ):
        return value
    fresh: list[tuple[types.CellType, Any]] = []
    cells = tuple(_cell(each, copier, fresh) for each in value.__closure__ or ())
    twin = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells or None
    )
    copier.keep(value, twin)
    for name in ("__qualname__", "__doc__", "__module__"):
        setattr(twin, name, getattr(value, name))
    if sys.version_info >= (3, 14):
        twin.__annotate__ = value.__annotate__
    else:  # until 3.13 they are evaluated already
        twin.__annotations__ = value.__annotations__
    for name, (cell, part) in zip(value.__code__.co_freevars, fresh, strict=False):
        if type(part) not in ATOMS:
            cell.cell_contents = yield name, part
    yield from _fill_defaults(value, twin)
    for name, part in dict.copy(vars(value)).items():
        vars(twin)[name] = yield name, part
    return twin


def _fill_defaults(value: Any, twin: Any) -> Steps:
    fresh: dict[str, Any] = {}
    for name, part in defaults(value):
        fresh[name] = yield name, part
    keywords = {name: fresh.pop(name) for name in value.__kwdefaults__ or ()}
    twin.__defaults__, twin.__kwdefaults__ = tuple(fresh.values()) or None, keywords or None


def _is_of_module(function: Any) -> bool:
    """Whether a function is one of its module's, or of a class there, which all share."""
    name, *inner = function.__qualname__.split(".")
    found = vars(sys.modules.get(function.__module__ or "", types)).get(name)
    for name in inner:
        found = getattr(found, name, None)
    return found is function


def _cell(cell: Any, copier: Copier, fresh: list[tuple[Any, Any]]) -> Any:
    """Return the twin of a variable; note those that are new, with what they hold."""
    known = copier.copied.get(id(cell))
    if known is not None:
        return known[1]
    twin = copier.keep(cell, types.CellType())
    with suppress(ValueError):  # it has no value
        part = twin.cell_contents = cell.cell_contents
        fresh.append((twin, part))
    return twin


def _copy_cell(value: Any, copier: Copier) -> Steps:
    fresh: list[tuple[Any, Any]] = []
    twin = _cell(value, copier, fresh)
    for cell, part in fresh:
        cell.cell_contents = yield "cell_contents", part
    return twin


def _copy_method(value: Any, _copier: Copier) -> Steps:
    function = yield "__func__", value.__func__
    return types.MethodType(function, (yield "__self__", value.__self__))


def _copy_method_of_c(value: Any, _copier: Copier) -> Steps:
    """Bind a method of a C class to the twin of its object."""
    owner = value.__self__
    if owner is None or isinstance(owner, (type, types.ModuleType)):
        return value
    twin = yield "__self__", owner
    if twin is owner:
        return value
    for base in type(owner).__mro__:
        method: Any = vars(base).get(value.__name__)
        if type(method) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            return method.__get__(twin)
    return getattr(twin, value.__name__)


def _copy_cached(value: Any, _copier: Copier) -> Steps:
    """Copy a cached function if it holds objects; the twin has a cache of its own."""
    twin = value if _is_of_module(value) else (yield "__wrapped__", value.__wrapped__)
    if twin is value or twin is value.__wrapped__:
        return value
    return functools.update_wrapper(functools.lru_cache(**value.cache_parameters())(twin), twin)


def _copy_partial(value: Any, copier: Copier) -> Steps:
    function = yield "func", value.func
    arguments = yield "args", value.args
    keywords = yield "keywords", value.keywords
    if (known := copier.copied.get(id(value))) is not None:  # it has led to itself
        return known[1]
    make = functools.partial.__new__
    twin = copier.keep(value, make(type(value), function, *arguments, **keywords))
    return (yield from copy_attributes(value, copier, twin))


# Weak references, which lead to the twins


def _copy_ref(value: Any, _copier: Copier) -> Steps:
    target = value()
    if target is None:
        return value
    twin = yield "()", target
    if twin is target:
        return value
    if isinstance(value, weakref.WeakMethod):
        return weakref.WeakMethod(twin)
    callback = value.__callback__
    return type(value)(twin, None if callback is None else (yield "__callback__", callback))


def _copy_proxy(value: Any, _copier: Copier) -> Steps:
    try:
        target = value.__repr__.__self__
    except ReferenceError:
        return value
    twin = yield "()", target
    return value if twin is target else weakref.proxy(twin)


def _copy_weak_dict(value: Any, copier: Copier) -> Steps:
    twin = copier.keep(value, type(value)())
    own = []
    for key, part in list(value.items()):
        own_key = yield ("key",), key
        own.append((own_key, (yield (key,), part)))
    copier.fill_later(twin, lambda: twin.update(own))
    return twin


def _copy_weak_set(value: Any, copier: Copier) -> Steps:
    twin = copier.keep(value, type(value)())
    return (yield from _fill_set(value, copier, twin, type(value).update))


EXACT: dict[Any, Rule] = {
    list: _copy_list,
    dict: _copy_dict,
    set: _copy_set,
    tuple: _copy_tuple,
    frozenset: functools.partial(_copy_tuple, base=frozenset),
    deque: _copy_deque,
    np.ndarray: copy_array,
    types.FunctionType: _copy_function,
    types.CellType: _copy_cell,
    types.MethodType: _copy_method,
    types.BuiltinMethodType: _copy_method_of_c,
    types.MethodWrapperType: _copy_method_of_c,
    types.MappingProxyType: _copy_mapping,
    types.SimpleNamespace: copy_object,
    memoryview: copy_memoryview,
    _CACHED: _copy_cached,
    weakref.ProxyType: _copy_proxy,
    weakref.CallableProxyType: _copy_proxy,
}
_DERIVED: tuple[tuple[Any, Rule], ...] = (
    (np.memmap, _data),
    (BaseException, _copy_exception),
    ((str, bytes, int, float, complex), _copy_number_or_text),
    (_torch.Tensor, copy_tensor),
    ((bytearray, array.array), copy_buffer),
    ((io.BytesIO, io.StringIO), copy_file_in_memory),
    (OF_CTYPES, copy_c_data),
    (functools.partial, _copy_partial),
    (weakref.ref, _copy_ref),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), _copy_weak_dict),
    (weakref.WeakSet, _copy_weak_set),
)


RULES = Rules(rule_of, _data, _OF_DERIVED[tuple], copy_attributes)


# What is copied by these rules


def new_copier(copied: Copied, *, looks: bool = False, limits: Limits | None = None) -> Copier:
    """Return a `Copier` by these rules."""
    return Copier(copied, RULES, looks=looks, limits=limits)


def copy_of(dataset: Any, how: str) -> tuple[Any, Copied]:
    """Return a worker's own of a dataset, and what was copied for that.

    Args:
        dataset: The user's.
        how: "auto", "deep" or "shared", as the argument ``dataset_copy``.
    """
    copied = Copied()
    if how == "shared":
        return dataset, copied
    return new_copier(copied, limits=LIMITS[how]).copy("dataset", dataset), copied


def is_current(copied: Copied) -> bool:
    """Whether the originals hold what they held when they were copied."""
    states = {} if copied.states is None else copied.states
    for key, state in states.items():
        original, twin = copied[key]
        now = state_of(original)
        same = len(now) == len(state) and (
            all(map(operator.is_, now, state)) or all(map(is_same, now, state))
        )
        if not same:
            return False
        if is_memory(original) and is_written(original, twin):
            return False
    return True
