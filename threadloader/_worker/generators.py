"""Random generators as objects: how each kind is copied, seeded, and put back.

Seeding takes a few microseconds where it is a usual one.  The state of a fresh one takes 10 us of a
PCG64, and 0.3 ms of a Mersenne Twister.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._lifetime import importing

if TYPE_CHECKING:
    from threadloader._worker.own_copy import Copier


_KEEPS_SEEDS = not np.__version__.startswith("1.")  # whether a generator can be given its seeds
CHOSEN = 96  # bits of a seed that somebody may have chosen; the system's has 128


def is_generator_class(kind: type) -> bool:
    """Whether objects of a class are random generators, or what these are seeded by."""
    return issubclass(kind, _classes("numpy.random" in sys.modules))


@functools.cache
def _classes(has_numpys: bool) -> tuple[type, ...]:
    """Return the classes; `numpy.random` takes a while to import, and is not for this."""
    if not has_numpys:
        return random.Random, _torch.Generator
    numpys = np.random.Generator, np.random.RandomState, np.random.BitGenerator
    return (random.Random, *numpys, np.random.SeedSequence, _torch.Generator)


def is_own_generator(value: object) -> bool:
    """Whether a value is a generator that draws from no thread's stream."""
    if not is_generator_class(type(value)):
        return False
    numpys = sys.modules.get("numpy.random")
    # NumPy's hidden one is redirected by another in its place.  An object that has kept itself, by
    # `check_random_state(None)` of scikit-learn say, draws from it alone.
    hidden = None if numpys is None else vars(numpys.mtrand).get("_rand")
    redirected = (
        vars(random).get("_inst"),
        None if numpys is None or type(hidden) is numpys.RandomState else hidden,
        getattr(sys.modules.get("torch"), "default_generator", None),
    )
    return not any(value is each for each in redirected)


def copy_generator(value: Any, copier: Copier) -> Any:
    """Return a generator with a state of its own, and note that there is one."""
    if not is_own_generator(value) or isinstance(value, random.SystemRandom):
        return value
    # These leave their state to the `Generator` around them.
    if isinstance(value, (random.Random, _torch.Generator)) or not isinstance(
        value, (np.random.BitGenerator, np.random.SeedSequence)
    ):
        copier.copied.generators.append(copier.found(value))
    return value if copier.looks else _copy_of(value)


def _copy_of(value: Any) -> Any:
    if isinstance(value, _torch.Generator):
        return value.clone_state()
    if isinstance(value, random.Random):
        return copy.deepcopy(value)
    if isinstance(value, np.random.SeedSequence):
        return _sample_seeds(value)
    bits: Any = getattr(value, "bit_generator", None)
    seeds = getattr(bits, "seed_seq", None)
    if isinstance(value, np.random.Generator) and isinstance(seeds, np.random.SeedSequence):
        own = type(bits)(_sample_seeds(seeds))
        own.state = bits.state
        return type(value)(own)
    return copy.deepcopy(value)


def _sample_seeds(seeds: Any) -> Any:
    """Return a copy of a seed sequence, whose children follow the sample that spawns them."""
    with importing():
        from threadloader._worker.sample_seeds import SampleSeeds  # noqa: PLC0415  # `numpy.random`

    return SampleSeeds.of(seeds)


def class_generators(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return the generators that are attributes of a class, which all objects have in common."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__ != "builtins":
            parts = vars(base).copy()
            if any(map(is_generator_class, set(map(type, parts.values())))):  # seldom
                for name, part in parts.items():
                    if is_own_generator(part):
                        found.setdefault(name, part)
    return tuple(found.items())


def prepare(value: Any) -> None:
    """Let an object make the generator that it would make on first use (Hugging Face's masks)."""
    if getattr(value, "seed", None) is not None and getattr(value, "generator", 0) is None:
        value.create_rng()


# Seeds and states


class Seeding:
    """A generator of torch's, or of another kind in a subclass: its state, and how it is seeded."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    @staticmethod
    def of(generator: Any) -> Seeding:
        """Return the one for a generator."""
        if isinstance(generator, random.Random):
            return _OfPython(generator)
        if isinstance(generator, np.random.Generator):
            return _OfNumPy(generator)
        legacy = isinstance(generator, np.random.RandomState)
        return _Legacy(generator) if legacy else Seeding(generator)

    def is_seeded(self) -> bool:
        """Whether somebody may have chosen its seed."""
        return True  # nobody can tell

    def told_apart(self) -> bytes:
        """Return bytes that tell apart how a user has seeded it."""
        return self.it.initial_seed().to_bytes(8, "little")  # type: ignore[no-any-return]

    def state(self) -> Any:
        """Return its state."""
        return self.it.get_state()

    def lend(self) -> Any:
        """Return what `put` puts back, after samples have used it."""
        return self.state()

    def put(self, state: Any) -> None:
        """Put a state back."""
        self.it.set_state(state)

    def seed(self, key: bytes) -> None:
        """Seed it with 32 bytes."""
        self.it.manual_seed(_number(key) >> 65)


class _WithoutSeed(Seeding):
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
    __slots__ = ("_bits", "_is_pcg64", "_lent")

    def __init__(self, it: Any) -> None:
        super().__init__(it)
        self._bits = it.bit_generator
        self._is_pcg64 = type(self._bits) is np.random.PCG64
        self._lent: Any = None

    def is_seeded(self) -> bool:
        return _may_be_chosen(getattr(self._bits, "seed_seq", None))

    def state(self) -> Any:
        return self._bits.state

    def lend(self) -> Any:
        bits = self._bits
        state, seeds = bits.state, getattr(bits, "seed_seq", None)
        if _KEEPS_SEEDS and isinstance(seeds, np.random.SeedSequence):
            if self._lent is None:
                self._lent = _sample_seeds(seeds)
            bits.__setstate__((state, self._lent))
        return state, seeds

    def put(self, state: Any) -> None:
        self._bits.state, seeds = state
        if self._lent is not None:
            self._bits.__setstate__((self._bits.state, seeds))

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
