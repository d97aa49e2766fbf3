"""Random generators that a user's objects carry: seeded anew for each sample, or for each batch.

Worker processes have a copy of each, and which samples one loads depends on their number.  Here
what a sample draws follows from its own stream, and from the seed that the user gave the generator.
After the samples of a ticket the states are what they were: for the objects of the user, which the
calling thread uses, no sample was ever loaded.
"""

from __future__ import annotations

import copy
import random
import sys
import types
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import Kind, is_model, kind_of
from threadloader._fetch.parts import ATOMS, CONTAINERS, LARGE, OBJECTS, entries, parts
from threadloader._lifetime import DROPPED
from threadloader._rng.streams import Seeded, here, sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


FEW = 100  # entries of a container that are looked at, whatever they are
_KEEPS_SEEDS = not np.__version__.startswith("1.")  # whether a copied generator has its seed
_CODE = frozenset({types.FunctionType, classmethod, property, staticmethod})
CHOSEN = 96  # bits of a seed that somebody may have chosen; the system's has 128

T = TypeVar("T")


class _Place:
    """Where an object has a generator.

    Args:
        holder: The object, a container or a function.
        name: Of its attribute, or the key in the container; else the number of the part.
        own: The generator that is there now.
        key: The path to it, and the seed that the user gave it.
    """

    __slots__ = ("_in_container", "_latest", "_own", "_stays", "holder", "key", "name")

    def __init__(self, holder: Any, name: Any, own: _Generator, key: bytes) -> None:
        self.holder, self.name, self.key = holder, name, key
        self._in_container = type(holder) in (dict, list)
        # Of the arguments of a function nobody asks again.
        others = isinstance(holder, CONTAINERS) or type(name) is not str
        self._stays = others and not self._in_container
        self._latest = own.it  # when it was looked for; samples may exchange it
        self._own: _Generator | None = own

    def get(self) -> _Generator | None:
        """Return the generator that is there now; None if there is none."""
        holder = self.holder
        if self._stays:
            return self._own
        try:
            get = type(holder).__getitem__ if self._in_container else object.__getattribute__
            value = get(holder, self.name)
        except Exception:  # noqa: BLE001  # it was deleted
            return None
        if value is not self._latest:
            self._own = _Generator.of(value) if is_own_generator(value) else None
            self._latest = value
        return self._own


def is_own_generator(value: object) -> bool:
    """Whether a value is a generator that draws from no thread's stream."""
    if type(value) in ATOMS or kind_of(value) is not Kind.GENERATOR:
        return False
    # NumPy's hidden one is redirected by another in its place.  An object that has kept itself, by
    # `check_random_state(None)` of scikit-learn say, draws from it alone.
    hidden = vars(np.random.mtrand).get("_rand")
    redirected = (
        vars(random).get("_inst"),
        None if type(hidden) is np.random.RandomState else hidden,
        getattr(sys.modules.get("torch"), "default_generator", None),
    )
    # These have no state, or leave it to the `Generator` around them.
    parts = isinstance(value, (random.SystemRandom, np.random.BitGenerator))
    return not parts and all(value is not each for each in redirected)


class OwnGenerators:
    """The generators of the objects that one worker uses.

    Args:
        root: The dataset, or a function.
        copied: What the worker has copies of; None where the objects are the user's own, which the
            calling thread uses alone.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = ("_copies", "_places", "_root", "_walked")

    def __init__(self, root: Any, copied: Mapping[int, tuple[Any, Any]] | None) -> None:
        self._root = root
        self._copies = None if copied is None else _copies_in(copied)
        # A walk takes as long as the copies did: none where no generator was copied.
        self._walked = not getattr(copied, "has_generators", True)
        # Now: a worker_init_fn may exchange a generator for one that is seeded for this worker.
        self._places = [] if self._walked or copied is None else self._find()

    def __bool__(self) -> bool:
        return bool(self._places) or self._copies is None  # it is not known yet

    def _find(self, *, seeds: bool = True) -> list[_Place]:
        found = _places_in(self._root, seeds=seeds)
        if self._copies is None:
            return found
        return [place for place in found if id(place.holder) in self._copies]

    def call(self, function: Callable[..., T], *args: Any, each: bool = False) -> T:
        """Call a function that makes samples or a batch.

        Args:
            function: Is called with ``args``.
            args: Its arguments; the first one is a function of the user's if it is called for
                ``each`` sample.
            each: Whether to seed before each call of that function, not once.
        """
        states: list[tuple[_Generator, Any]] = []
        try:
            if here.stream is None:  # all generators are left as they are
                return function(*args)
            if not self._walked:
                # Once more in the worker: what its worker_init_fn has made.
                self._walked = True
                known = {(id(place.holder), place.name) for place in self._places}
                places = self._find(seeds=self._copies is None)
                self._places += [it for it in places if (id(it.holder), it.name) not in known]
            if not self._places:
                return function(*args)
            found = {id(it.it): it for place in self._places if (it := place.get()) is not None}
            # Nobody looks at the state of a copy.
            copies = self._copies or ()
            states = [(it, it.state()) for key, it in found.items() if key not in copies]
            if not each:
                self.seed()
                return function(*args)
            return function(Seeded(self.seed, args[0]), *args[1:])
        finally:
            for generator, state in states:
                generator.put(state)
            # An error keeps this frame.
            self = function = args = states = found = places = generator = state = DROPPED

    def seed(self) -> None:
        """Seed all generators for the sample that the calling thread loads, or for the batch."""
        sample = sample_seed().to_bytes(8, "little")
        done: set[int] = set()
        for place in self._places:
            generator = place.get()
            if generator is not None and id(generator.it) not in done:
                done.add(id(generator.it))
                generator.seed(blake2b(sample + place.key, digest_size=32).digest())


def _copies_in(copied: Mapping[int, tuple[Any, Any]]) -> dict[int, Any]:
    """Return the copies by their ids.  What all workers share is not seeded."""
    return {id(twin): twin for users, twin in copied.values() if twin is not users}


class SeededFunction:
    """A function of the user's, with generators that are seeded for each call."""

    __slots__ = ("function", "own")

    def __init__(self, function: Callable[..., Any], own: OwnGenerators) -> None:
        self.function = function
        self.own = own

    def __call__(self, *args: Any) -> Any:
        try:
            return self.own.call(self.function, *args)
        finally:
            self, args = DROPPED, ()  # an error keeps this frame


def seeded(function: Any, copied: Mapping[int, tuple[Any, Any]] | None) -> Any:
    """Return a function that has its generators seeded for each call, if it has any.

    Args:
        function: A worker's copy; or the user's.
        copied: As for `OwnGenerators`.
    """
    if function is None or str(getattr(function, "__module__", "")).startswith("torch."):
        return function  # torch's own have none
    own = OwnGenerators(function, copied)
    return SeededFunction(function, own) if own else function


def unseeded(function: Any) -> Any:
    """Return the function itself."""
    return function.function if isinstance(function, SeededFunction) else function


def copy_generator(generator: Any) -> Any:
    """Return a generator with a state of its own."""
    if isinstance(generator, _torch.Generator):
        return generator.clone_state()
    seeds = getattr(getattr(generator, "bit_generator", None), "seed_seq", None)
    if _KEEPS_SEEDS or seeds is None:
        return copy.deepcopy(generator)
    bits = type(generator.bit_generator)(copy.deepcopy(seeds))
    bits.state = generator.bit_generator.state
    return type(generator)(bits)


# Finding them


def defaults_of(kind: type) -> list[tuple[str, Any]]:
    """Return the generators that are attributes of a class, which all objects have in common."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__ != "builtins":
            for name, part in list(vars(base).items()):
                if type(part) not in _CODE and is_own_generator(part):
                    found.setdefault(name, part)
    return list(found.items())


def _places_in(root: Any, *, seeds: bool = True) -> list[_Place]:
    """Return where an object, and those that it leads to, have generators.

    Args:
        root: The object.
        seeds: Whether the seeds of the generators count.
    """
    places: list[_Place] = []
    seen: dict[int, Any] = {}
    # Objects, paths, and the seed of what seeds its parts; None where each has its own.
    found: list[tuple[Any, str, bytes | None]] = [(root, "", None if seeds else b"")]
    for value, path, above in found:
        if type(value) in ATOMS or id(value) in seen or not _leads_on(value):
            continue
        seen[id(value)] = value
        _prepare(value)
        named = dict(parts(value))
        for name, part in defaults_of(type(value)):
            named.setdefault(name, part)
        held = {it: _Generator.of(part) for it, part in named.items() if is_own_generator(part)}
        seed = above
        if above is None:
            # Whoever has no seed for one generator has none for the others.
            seeded = all(own.is_seeded() for own in held.values())
            seed = b"".join(own.told_apart() for own in held.values()) if seeded else b""
        for name, own in held.items():
            places.append(_Place(value, name, own, f"{path}.{name}|".encode() + (seed or b"")))
        # What seeds its parts does so from its own seed.
        below = seed if hasattr(type(value), "set_random_state") else above
        if len(found) < OBJECTS:
            # With a cache around them they draw what they draw without one.
            cache = "dataset" if hasattr(type(value), "cache_use") else None
            found += [
                (part, path if name == cache else f"{path}.{name}", below)
                for name, part in named.items()
            ]
    return places


def _leads_on(value: Any) -> bool:
    kind = kind_of(value)
    if kind is not Kind.CONTAINER or len(value) <= FEW:
        ends = kind.is_shared or kind in (Kind.GENERATOR, Kind.OPENED)
        return not (ends or is_model(value))
    if len(value) > LARGE:
        return False
    # A larger one may be the data itself: graphs, say.
    classes = {type(part): part for _, part in entries(value)}
    return any(callable(part) and not hasattr(kind, "__copy__") for kind, part in classes.items())


def _prepare(value: Any) -> None:
    """Let an object make the generator that it would make on first use (Hugging Face's masks)."""
    makes = getattr(type(value), "create_rng", None)
    waits = getattr(value, "seed", None) is not None and getattr(value, "generator", 0) is None
    if makes is not None and waits:
        makes(value)


def generators_in(root: Any) -> list[_Generator]:
    """Return the generators that an object leads to, each once."""
    found = (place.get() for place in _places_in(root, seeds=False))
    return list({id(own.it): own for own in found if own is not None}.values())


# Seeds and states


class _Generator:
    """A generator of torch's, or of another kind in a subclass: its state, and how it is seeded.

    Seeding takes a few microseconds where it is a usual one.  The state of a fresh one takes 10 us
    of a PCG64, and 0.3 ms of a Mersenne Twister.
    """

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    @staticmethod
    def of(generator: Any) -> _Generator:
        """Return the one for a generator."""
        if isinstance(generator, random.Random):
            return _OfPython(generator)
        if isinstance(generator, np.random.Generator):
            return _OfNumPy(generator)
        legacy = isinstance(generator, np.random.RandomState)
        return _Legacy(generator) if legacy else _Generator(generator)

    def is_seeded(self) -> bool:
        """Whether somebody may have chosen its seed."""
        return True  # nobody can tell

    def told_apart(self) -> bytes:
        """Return bytes that tell apart how a user has seeded it."""
        return self.it.initial_seed().to_bytes(8, "little")  # type: ignore[no-any-return]

    def state(self) -> Any:
        """Return its state."""
        return self.it.get_state()

    def put(self, state: Any) -> None:
        """Put a state back."""
        self.it.set_state(state)

    def seed(self, key: bytes) -> None:
        """Seed it with 32 bytes."""
        self.it.manual_seed(_number(key) >> 65)


class _WithoutSeed(_Generator):
    """One that does not say its seed; its state does."""

    __slots__ = ()

    def told_apart(self) -> bytes:
        return blake2b(repr(self.state()).encode(), digest_size=8).digest()


class _OfPython(_WithoutSeed):
    __slots__ = ()

    def state(self) -> Any:
        return self.it.getstate()

    def put(self, state: Any) -> None:
        self.it.setstate(state)

    def seed(self, key: bytes) -> None:
        self.it.seed(_number(key))


class _OfNumPy(_WithoutSeed):
    __slots__ = ("_bits", "_is_pcg64")

    def __init__(self, it: Any) -> None:
        super().__init__(it)
        self._bits = it.bit_generator
        self._is_pcg64 = type(self._bits) is np.random.PCG64

    def is_seeded(self) -> bool:
        return _may_be_chosen(getattr(self._bits, "seed_seq", None))

    def state(self) -> Any:
        return self._bits.state

    def put(self, state: Any) -> None:
        self._bits.state = state

    def seed(self, key: bytes) -> None:
        number = _number(key)
        if not self._is_pcg64:
            self._bits.state = type(self._bits)(number).state
            return
        state = {"state": number, "inc": int.from_bytes(key[16:], "little") | 1}
        self._bits.state = {
            "bit_generator": "PCG64",
            "state": state,
            "has_uint32": 0,
            "uinteger": 0,
        }


class _Legacy(_WithoutSeed):
    __slots__ = ("_bits", "_kind", "_seeds")

    def __init__(self, it: Any) -> None:
        super().__init__(it)
        self._bits = it.__reduce__()[1][0]  # before NumPy 2 the name of its kind alone
        self._kind = self._bits if isinstance(self._bits, str) else type(self._bits).__name__
        self._seeds = getattr(self._bits, "seed_seq", None)

    def is_seeded(self) -> bool:
        return _may_be_chosen(self._seeds)

    def put(self, state: Any) -> None:
        restored = self._kind == "MT19937" and self._seeds is not None
        if restored:
            # As from a pickle: what was seeded by the system does not count as seeded by the user.
            words = {"key": state[1], "pos": state[2]}
            self._bits.__setstate__(({"bit_generator": "MT19937", "state": words}, self._seeds))
        if not restored or state[3]:  # there is half of a pair of normal numbers
            self.it.set_state(state)

    def seed(self, key: bytes) -> None:
        if self._kind == "MT19937":
            self.it.seed(_number(key) & 0xFFFFFFFF)
            return
        fresh = getattr(np.random, self._kind)(_number(key))
        self.it.set_state(fresh.state | {"has_gauss": 0, "gauss": 0.0})


def _may_be_chosen(seeds: Any) -> bool:
    """Whether a sequence of seeds may have a seed that somebody has chosen."""
    entropy = getattr(seeds, "entropy", None)
    return not isinstance(entropy, int) or entropy.bit_length() <= CHOSEN


def _number(key: bytes) -> int:
    return int.from_bytes(key[:16], "little")
