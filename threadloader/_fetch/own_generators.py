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
from functools import cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import Kind, is_model, kind_of
from threadloader._fetch.parts import ATOMS, LARGE, OBJECTS, entries, parts
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.streams import Seeded, here, sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OwnGenerators", "copy_generator", "defaults_of", "is_own_generator", "seeded"]
__all__ += ["unseeded"]

FEW = 100  # entries of a container that are looked at, whatever they are
_KEEPS_SEEDS = not np.__version__.startswith("1.")  # whether a copied generator has its seed
CHOSEN = 96  # bits of a seed that somebody may have chosen; the system's has 128

T = TypeVar("T")


class _Place:
    """Where an object has a generator.

    Args:
        holder: The object, or a container.
        name: Of its attribute, or the key in the container.
        key: The path to it, and the seed that the user gave it.
    """

    __slots__ = ("_in_container", "_latest", "holder", "key", "name", "seed")

    def __init__(self, holder: Any, name: Any, key: bytes) -> None:
        self.holder, self.name, self.key = holder, name, key
        self._in_container = type(holder) in (dict, list)
        self._latest: Any = None  # that was there when it was looked for; samples may exchange it
        self.seed: Callable[[bytes], object] = _nothing  # seeds it with 32 bytes

    def get(self) -> Any:
        """Return the generator that is there now; None if there is none."""
        holder = self.holder
        try:
            get = type(holder).__getitem__ if self._in_container else object.__getattribute__
            value = get(holder, self.name)
        except Exception:  # noqa: BLE001  # it was deleted
            return None
        if value is not self._latest:
            own = is_own_generator(value)
            self._latest, self.seed = (value, _seeding(value)) if own else (None, _nothing)
        return self._latest


def _nothing(_: bytes) -> None:
    """Seed nothing: there is no generator."""


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
        # What all workers share is not seeded.
        pairs = () if copied is None else copied.values()
        copies = {id(twin): twin for users, twin in pairs if twin is not users}
        self._copies = None if copied is None else copies
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
        states: list[tuple[Any, Any]] = []
        try:
            if here.stream is None:  # all generators are left as they are
                return function(*args)
            if not self._walked:
                # Once more in the worker: what its worker_init_fn has made.
                self._walked = True
                known = {(id(place.holder), place.name) for place in self._places}
                found = self._find(seeds=self._copies is None)
                self._places += [it for it in found if (id(it.holder), it.name) not in known]
            if not self._places:
                return function(*args)
            places = filter(None, (place.get() for place in self._places))
            states = [(it, _state_of(it)) for it in {id(it): it for it in places}.values()]
            if not each:
                self.seed()
                return function(*args)
            return function(Seeded(self.seed, args[0]), *args[1:])
        finally:
            for generator, state in states:
                _put_state(generator, state)
            # An error keeps this frame.
            self = function = args = states = places = generator = state = DROPPED

    def seed(self) -> None:
        """Seed all generators for the sample that the calling thread loads, or for the batch."""
        sample = sample_seed().to_bytes(8, "little")
        done: set[int] = set()
        for place in self._places:
            generator = place.get()
            if generator is not None and id(generator) not in done:
                done.add(id(generator))
                place.seed(blake2b(sample + place.key, digest_size=32).digest())


class SeededFunction:
    """A function of the user's, with generators that are seeded for each call."""

    __slots__ = ("_own", "function")

    def __init__(self, function: Callable[..., Any], own: OwnGenerators) -> None:
        self.function = function
        self._own = own

    def __call__(self, *args: Any) -> Any:
        try:
            return self._own.call(self.function, *args)
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
    for base in kind.__mro__[:-1]:
        for name, part in list(vars(base).items()):
            if is_own_generator(part):
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
        held = {name: part for name, part in named.items() if is_own_generator(part)}
        seed = above
        if above is None:
            # Whoever has no seed for one generator has none for the others.
            seeded = all(map(_is_seeded, held.values()))
            seed = b"".join(map(_seed_of, held.values())) if seeded else b""
        places += [_Place(value, it, f"{path}.{it}|".encode() + (seed or b"")) for it in held]
        # What seeds its parts does so from its own seed.
        below = seed if hasattr(type(value), "set_random_state") else above
        if len(found) < OBJECTS:
            found += [(part, f"{path}.{name}", below) for name, part in named.items()]
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


# Seeds and states


def _is_seeded(generator: Any) -> bool:
    """Whether somebody may have chosen the seed of a generator."""
    if not isinstance(generator, (np.random.RandomState, np.random.Generator)):
        return True  # nobody can tell
    entropy = getattr(getattr(_bits_of(generator), "seed_seq", None), "entropy", None)
    return not isinstance(entropy, int) or entropy.bit_length() <= CHOSEN


def _seed_of(generator: Any) -> bytes:
    """Return bytes that tell apart how a user has seeded a generator."""
    if isinstance(generator, _torch.Generator):
        return generator.initial_seed().to_bytes(8, "little")
    return blake2b(repr(_state_of(generator)).encode(), digest_size=8).digest()


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(), getattr(_bits_of(generator), "seed_seq", None)
    return generator.get_state()


def _put_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        state, seeds = state
        bits = _bits_of(generator)
        if seeds is not None and bits.seed_seq is None:
            # As a pickle would: what was seeded by the system does not count as seeded by the user.
            bits.__setstate__((_some_state(), seeds))
        generator.set_state(state)
    else:
        generator.set_state(state)


@cache
def _some_state() -> Any:
    return np.random.MT19937(0).state


def _seeding(generator: Any) -> Callable[[bytes], object]:
    """Return what seeds a generator with 32 bytes, in a few microseconds if it is a usual one.

    The state of a fresh one takes 10 us of a PCG64, and 0.3 ms of a Mersenne Twister.
    """
    if isinstance(generator, random.Random):
        return lambda key: generator.seed(_number(key))
    if isinstance(generator, _torch.Generator):
        return lambda key: generator.manual_seed(_number(key) >> 65)
    bits = _bits_of(generator)
    kind = bits if isinstance(bits, str) else type(bits).__name__
    if not isinstance(generator, np.random.RandomState):
        if kind == "PCG64":
            return partial(_seed_pcg64, bits)
        return lambda key: setattr(bits, "state", type(bits)(_number(key)).state)
    if kind == "MT19937":
        return lambda key: generator.seed(_number(key) & 0xFFFFFFFF)
    fresh = getattr(np.random, kind)
    state = {"has_gauss": 0, "gauss": 0.0}
    return lambda key: generator.set_state(fresh(_number(key)).state | state)


def _number(key: bytes) -> int:
    return int.from_bytes(key[:16], "little")


def _seed_pcg64(bits: Any, key: bytes) -> None:
    state = {"state": _number(key), "inc": int.from_bytes(key[16:], "little") | 1}
    bits.state = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}


def _bits_of(generator: Any) -> Any:
    """Return the bit generator inside; of a `RandomState` before NumPy 2 its name alone."""
    legacy = isinstance(generator, np.random.RandomState)
    return generator.__reduce__()[1][0] if legacy else generator.bit_generator
