"""What samples drew before state version 3: for runs that began then, and are resumed.

    (seed of the epoch, position of the sample, kind of generator) -> 128-bit key -> a whole state

A sample's first draw from a generator costs 5 to 20 us, so later runs draw as in `sample_stream`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._rng.protocol import GeneratorStream
from threadloader._rng.sample_stream import SAMPLE
from threadloader._rng.words import key_of, philox_state

if TYPE_CHECKING:
    from collections.abc import Sized

__all__ = ["OlderSampleStream"]


class OlderSampleStream(GeneratorStream):
    """A stream that moves from sample to sample, or from batch to batch.

    Args:
        keyed: The thread's generator of torch's; None without torch.

    Invariants:
        1. A generator whose ``_*_at`` is the current position has the key of that position.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = (
        "_counted",
        "_first",
        "_kind",
        "_legacy",
        "_legacy_at",
        "_numpy",
        "_numpy_at",
        "_philox",
        "_philox_state",
        "_random",
        "_random_at",
        "_seed",
        "_torch",
        "_torch_at",
    )

    def __init__(self, keyed: Any) -> None:
        self._seed = 0
        self._kind = SAMPLE
        self._first = 0
        self._counted: Sized = ()
        self._random: random.Random | None = None
        self._legacy: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        self._torch = keyed
        self._philox: Any = None
        self._philox_state: Any = None
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
        self._random_at = self._legacy_at = self._numpy_at = self._torch_at = -1

    def seed(self) -> int:
        """Return 63 bits of the key."""
        key = key_of(self._seed, self._first + len(self._counted), self._kind + b".seed")
        return int.from_bytes(key[8:], "little") >> 1

    @property
    def random_generator(self) -> random.Random:
        """See `Stream`."""
        position = self._first + len(self._counted)
        generator = self._random
        if self._random_at != position or generator is None:
            if generator is None:
                generator = self._random = random.Random(0)  # noqa: S311  # not for secrets
            self._random_at = position
            key = key_of(self._seed, position, self._kind + b".random")
            generator.seed(int.from_bytes(key, "little"))
        return generator

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `Stream`."""
        position = self._first + len(self._counted)
        generator = self._legacy
        if self._legacy_at != position or generator is None:
            if generator is None:
                generator = self._legacy = np.random.RandomState(np.random.MT19937(0))
            self._legacy_at = position
            key = key_of(self._seed, position, self._kind + b".legacy")
            generator.seed(np.frombuffer(key, np.uint32))
        return generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `Stream`."""
        position = self._first + len(self._counted)
        generator = self._numpy
        if self._numpy_at != position or generator is None:
            if generator is None:
                generator = self._numpy = np.random.Generator(np.random.Philox(0))
            self._numpy_at = position
            self._key_philox(generator.bit_generator, position, b".numpy")
        return generator

    @property
    def torch_generator(self) -> Any:
        """See `Stream`."""
        position = self._first + len(self._counted)
        if self._torch_at != position:
            if self._philox is None:
                self._philox = np.random.Philox(0)
            self._torch_at = position
            self._key_philox(self._philox, position, b".torch")
            words = self._philox.random_raw(_torch.KeyedGenerator.WORDS // 2)
            self._torch.set(self.seed(), words)
        return self._torch.generator

    def initial_seed(self) -> int:
        """Return the seed of `torch_generator`, which user code may have changed."""
        if self._torch_at == self._first + len(self._counted):
            return self._torch.generator.initial_seed()  # type: ignore[no-any-return]
        return self.seed()

    def _key_philox(self, philox: Any, position: int, use: bytes) -> None:
        state = self._philox_state
        if state is None:
            state = self._philox_state = philox_state()
        key = key_of(self._seed, position, self._kind + use)
        state["state"]["key"] = np.frombuffer(key, np.uint64)
        philox.state = state
