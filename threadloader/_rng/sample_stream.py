"""The stream of samples: it moves from one to the next, and seeds what a sample draws from.

    (seed of the epoch, position of the sample) -> key -> the seed of each kind of generator

A generator is seeded at a sample's first draw from it, so a sample that draws nothing costs
nothing.  In the calling thread that is too dear for torch's operators, which are redirected in
Python: there torch's own default generator is seeded before each sample, and put back behind the
batch.  It gives the numbers of any other generator with that seed.
"""

from __future__ import annotations

from random import Random
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._lifetime.dropping import DROPPED
from threadloader._lifetime.exit_and_fork import in_forked_child
from threadloader._rng.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

__all__ = ["BATCH", "SAMPLE", "SampleStream", "Seeded"]

SAMPLE = b"sample"
BATCH = b"batch"
_SEED, _NUMPY, _RANDOM = slice(8), slice(8, 24), slice(24, 40)  # bytes of a key
_LEGACY, _TORCH = slice(40, 44), slice(44, 52)
_NBYTES = 64
_WORD = (1 << 64) - 1

T = TypeVar("T")


class _Default:
    """torch's default generator, as long as samples draw from it.

    Threads:
        state: the main thread.
        forked: the thread of the child.
    """

    def __init__(self) -> None:
        self.state: Any = None  # before samples drew from it; None when none does

    def forked(self) -> None:
        """Let a child process, that is forked while a sample draws, have the state of before."""
        state, self.state = self.state, None
        if state is not None:
            _torch.default_generator().set_state(state)


_default = _Default()
in_forked_child(_default.forked)


class SampleStream:
    """A stream that moves from sample to sample, or from batch to batch.

    Invariants:
        1. A generator has the seed of a position if its ``_*_at`` is the length of ``_counted``;
           otherwise nobody has drawn from it at this position.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = (
        "_counted",
        "_draws_torch",
        "_first",
        "_key",
        "_key_at",
        "_kind",
        "_legacy",
        "_legacy_at",
        "_numpy",
        "_numpy_at",
        "_philox_state",
        "_random",
        "_random_at",
        "_seed",
        "_torch",
        "_torch_at",
        "_uses_default",
    )

    def __init__(self) -> None:
        self._seed = 0
        self._kind = SAMPLE
        self._first = 0
        self._counted: Sized = ()
        self._key = b""
        # Made when first needed: to make all that a thread may need takes as long as a small epoch.
        self._random: Random | None = None
        self._legacy: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        self._philox_state: Any = None
        # Made here: while a sample is loaded, torch may be in a mode that makes none.
        self._torch: Any = _torch.Generator() if _torch.AVAILABLE else None
        # Whether any sample drew from it.  The few draws of collate functions are redirected.
        self._draws_torch = False
        self._uses_default = False  # whether ``_torch`` is torch's default generator
        self._forget()

    def move(self, seed: int, kind: bytes, first: int, counted: Sized) -> None:
        """Go to another position, and follow the positions after it.

        Args:
            seed: Of the epoch.
            kind: Whether samples or batches are counted.
            first: The position as long as ``counted`` is empty.
            counted: A list that grows by one with each position: the samples that are done.
        """
        self._seed = seed
        self._kind = kind
        self._first = first
        self._counted = counted
        self._forget()

    def _forget(self) -> None:
        self._key_at = self._random_at = self._legacy_at = self._numpy_at = self._torch_at = -1

    def _bits(self, which: slice, done: int) -> int:
        """Return some bits of the key of the present position."""
        if self._key_at != done:
            self._key = key_of(self._seed, self._first + done, self._kind, _NBYTES)
            self._key_at = done
        return int.from_bytes(self._key[which], "little")

    def seed(self) -> int:
        """See `Stream`."""
        return self._bits(_SEED, len(self._counted)) >> 1

    @property
    def random_generator(self) -> Random:
        """See `Stream`."""
        done, generator = len(self._counted), self._random
        if self._random_at != done or generator is None:
            if generator is None:
                generator = self._random = Random(0)  # noqa: S311  # not for secrets
            generator.seed(self._bits(_RANDOM, done))
            self._random_at = done
        return generator

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `Stream`."""
        done, generator = len(self._counted), self._legacy
        if self._legacy_at != done or generator is None:
            if generator is None:
                generator = self._legacy = np.random.RandomState(np.random.MT19937(0))
            generator.seed(self._bits(_LEGACY, done))
            self._legacy_at = done
        return generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `Stream`."""
        done, generator = len(self._counted), self._numpy
        if self._numpy_at != done or generator is None:
            if generator is None:
                generator = self._numpy = np.random.Generator(np.random.Philox(key=0))
                # Its buffer is empty: only the key is to be set.
                self._philox_state = dict(generator.bit_generator.state)
            key = self._bits(_NUMPY, done)
            self._philox_state["state"]["key"] = key & _WORD, key >> 64
            generator.bit_generator.state = self._philox_state
            self._numpy_at = done
        return generator

    @property
    def torch_generator(self) -> Any:
        """See `Stream`."""
        done = len(self._counted)
        if self._torch_at != done:
            self._torch.manual_seed(self._bits(_TORCH, done) >> 1)
            self._torch_at = done
            self._draws_torch |= self._kind == SAMPLE
        return self._torch

    def initial_seed(self) -> int:
        """Return the seed of `torch_generator`, which user code may have changed."""
        if self._torch_at == len(self._counted):
            return self._torch.initial_seed()  # type: ignore[no-any-return]
        return self._bits(_TORCH, len(self._counted)) >> 1

    def call_with_default(
        self, function: Callable[..., T], args: tuple[Any, ...], otherwise: Callable[..., T]
    ) -> T:
        """Call a function that enters this stream, with torch's default generator for its own.

        That is for the main thread alone, where no other stream is entered: what other threads load
        leaves alone what the main thread draws.

        Args:
            function: Makes a batch in the calling thread.
            args: Its arguments.
            otherwise: Called in its place, with it and its arguments, where the thread is another
                one, or no sample drew from torch before.
        """
        own = None
        try:
            if not self._draws_torch or get_ident() != main_thread().ident:
                return otherwise(function, *args)
            own, default = self._torch, _torch.default_generator()
            _default.state = default.get_state()
            self._torch, self._uses_default, self._torch_at = default, True, -1
            return function(*args)
        finally:
            if own is not None:
                self._torch, self._uses_default, self._torch_at = own, False, -1
                if _default.state is not None:
                    default.set_state(_default.state)
                    _default.state = None
            self = function = args = otherwise = DROPPED  # an error keeps this frame

    def seed_default(self) -> None:
        """Seed torch's default generator for the present position, if it is used."""
        if self._uses_default:
            self.torch_generator  # noqa: B018  # which seeds it

    def seeding(self, function: Callable[[Any], T]) -> Callable[[Any], T]:
        """Return a function that seeds torch's default generator before each call, if it is used.

        Args:
            function: Of the user's; called once for each position.
        """
        return Seeded(self.seed_default, function) if self._uses_default else function


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
