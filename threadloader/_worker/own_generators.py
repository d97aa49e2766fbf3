"""Random generators that a user's objects carry: seeded anew for each sample, or for each batch.

Worker processes have a copy of each, and which samples one loads depends on their number.  Here
what a sample draws follows from its own stream, and from the seed that the user gave the generator.
After the samples of a ticket the states are what they were: for the objects of the user, which the
calling thread uses, no sample was ever loaded.
"""

from __future__ import annotations

import types
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader._lifetime import DROPPED
from threadloader._worker.copy_rules import new_copier
from threadloader._worker.generators import Seeding, is_own_generator
from threadloader._worker.own_copy import Copied, name_of
from threadloader._worker.streams import here, sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from threadloader._worker.own_copy import Found


# What is made once, and holds what it holds.
_FIXED = (tuple, frozenset, types.FunctionType, types.MethodType, types.CellType, partial)

T = TypeVar("T")


class _Place:
    """Where an object has a generator.

    Args:
        found: The generator that is there now.
        key: The path to it, and the seed that the user gave it.
    """

    __slots__ = ("_holder", "_latest", "_name", "_own", "_stays", "key")

    def __init__(self, found: Found, key: bytes) -> None:
        self.key = key
        self._holder, self._name = found.holder, found.name
        is_entry = type(found.name) is tuple
        self._stays = isinstance(found.holder, (*_FIXED, types.BuiltinMethodType, type(None))) or (
            is_entry and type(found.holder) not in (dict, list)
        )
        self._latest = found.generator  # when it was looked for; samples may exchange it
        self._own: Seeding | None = Seeding.of(found.generator)

    @property
    def place(self) -> tuple[int, Any]:
        """What tells it from another."""
        return id(self._holder), self._name

    def get(self) -> Seeding | None:
        """Return the generator that is there now; None if there is none."""
        holder, name = self._holder, self._name
        if self._stays:
            return self._own
        try:
            is_entry = type(name) is tuple
            get = type(holder).__getitem__ if is_entry else object.__getattribute__
            value = get(holder, name[0] if is_entry else name)
        except Exception:  # noqa: BLE001  # it was deleted
            return None
        if value is not self._latest:
            self._own = Seeding.of(value) if is_own_generator(value) else None
            self._latest = value
        return self._own


class OwnGenerators:
    """The generators of the objects that one worker uses.

    Args:
        root: The dataset, or a function.
        copied: What the worker has copies of; None where the objects are the user's own, which the
            calling thread uses alone.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = ("_are_users", "_looks", "_places", "_root", "_shared")

    def __init__(self, root: Any, copied: Copied | None) -> None:
        self._root = root
        self._are_users = copied is None
        # Of a copy now: later nobody knows how the user has seeded them.
        has_some = copied is not None and bool(copied.generators)
        self._shared = {} if copied is None else copied.shared_pairs()
        self._places = self._find() if has_some else []
        # And at the first call, by when a worker_init_fn may have made others.
        self._looks = copied is None or copied.may_get_generators

    def __bool__(self) -> bool:
        return self._looks or bool(self._places)

    def call(self, function: Callable[..., T], *args: Any, each: bool = False) -> T:
        """Call a function that makes samples or a batch.

        Args:
            function: Is called with ``args``.
            args: Its arguments; the first one is a function of the user's if it is called for
                ``each`` sample.
            each: Whether to seed before each call of that function, not once.
        """
        states: list[tuple[Seeding, Any]] = []
        try:
            if here.stream is None:  # all generators are left as they are
                return function(*args)
            if self._looks:
                self._look()
            if not self._places:
                return function(*args)
            if self._are_users:  # nobody looks at the state of a copy
                found = {id(it.it): it for place in self._places if (it := place.get()) is not None}
                states = [(it, it.lend()) for it in found.values()]
            if not each:
                self.seed()
                return function(*args)
            return function(Seeded(self.seed, args[0]), *args[1:])
        finally:
            for generator, state in states:
                generator.put(state)
            # An error keeps this frame.
            self = function = args = states = found = generator = state = DROPPED

    def _find(self, *, seeds: bool = True) -> list[_Place]:
        return _places_in(self._root, self._shared, seeds=seeds)

    def _look(self) -> None:
        self._looks = False
        known = {each.place for each in self._places}
        places = self._find(seeds=self._are_users)
        self._places += [each for each in places if each.place not in known]

    def seed(self) -> None:
        """Seed all generators for the sample that the calling thread loads, or for the batch."""
        sample = sample_seed().to_bytes(8, "little")
        for place in self._places:
            generator = place.get()
            if generator is not None:
                generator.seed(blake2b(sample + place.key, digest_size=32).digest())


class Seeded:
    """A function of the user's that makes a sample a call; before each, generators are seeded.

    Args:
        seed: Seeds them for the sample that is made next.
        function: The user's.
    """

    __slots__ = ("_function", "_seed")

    def __init__(self, seed: Callable[[], object], function: Callable[[Any], Any]) -> None:
        self._seed = seed
        self._function = function

    def __call__(self, argument: Any) -> Any:
        self._seed()
        try:
            return self._function(argument)
        finally:
            self = argument = DROPPED  # an error keeps this frame


class SeededFunction:
    """A function of the user's, with generators that are seeded for each call."""

    __slots__ = ("function", "own")

    def __init__(self, function: Callable[..., Any], own: OwnGenerators) -> None:
        self.function = function
        self.own = own

    def __call__(self, *args: Any) -> Any:
        try:
            if not self.own:  # it has looked, and found none
                return self.function(*args)
            return self.own.call(self.function, *args)
        finally:
            self, args = DROPPED, ()  # an error keeps this frame


def seeded(function: Any, copied: Copied | None) -> Any:
    """Return a function that has its generators seeded for each call, if it has any.

    Args:
        function: A worker's copy; or the user's.
        copied: As for `OwnGenerators`.
    """
    if function is None or str(getattr(function, "__module__", "")).startswith("torch."):
        return function  # torch's own have none
    own = OwnGenerators(function, copied)
    return SeededFunction(function, own) if own else function


def generators_in(
    root: Any, shared: Mapping[int, tuple[Any, Any]] = MappingProxyType({})
) -> list[Found]:
    """Return the generators that an object leads to, each once; nothing is opened or copied.

    Args:
        root: The object.
        shared: What nobody looks into, as in `Copied`.
    """
    copied = Copied()
    copied.update(shared)
    new_copier(copied, looks=True).copy("", root)
    return [each for each in copied.generators if is_own_generator(each.generator)]


def _places_in(
    root: Any, shared: Mapping[int, tuple[Any, Any]], *, seeds: bool = True
) -> list[_Place]:
    """Return where an object, and those that it leads to, have generators.

    Args:
        root: The object.
        shared: See `generators_in`.
        seeds: Whether the seeds of the generators count.
    """
    found = generators_in(root, shared)
    held: dict[int, list[Seeding]] = {}
    for each in found:
        held.setdefault(id(each.holder), []).append(Seeding.of(each.generator))
    return [
        _Place(each, _path_of(each) + (_seed_of(each, held) if seeds else b"")) for each in found
    ]


def _path_of(found: Found) -> bytes:
    """Return the path to a generator."""
    return ".".join(map(name_of, (*found.names, found.name))).encode() + b"|"


def _seed_of(found: Found, held: dict[int, list[Seeding]]) -> bytes:
    """Return what the user has seeded a generator with, as far as it is his choice.

    Whoever has no seed for one generator has none for the others.  What seeds its parts does so
    from its own seed.
    """
    above: bytes | None = None
    for holder in found.holders:
        seed = above
        if above is None:
            own = held.get(id(holder), [])
            seeded = all(each.is_seeded() for each in own)
            seed = b"".join(each.told_apart() for each in own) if seeded else b""
        if holder is found.holder:
            return seed or b""
        if hasattr(type(holder), "set_random_state"):
            above = seed
    return b""
