"""The stream of samples: it moves from one to the next, and costs the more the more they draw.

The first draws of a sample are made of its own words, see `words`.  A generator of Python's or
torch's is only given a state when a sample draws more, or asks for the generator.

    random: 12 words, then a generator that is seeded with the sample's key
    numpy.random: a generator that counts; a Mersenne twister once the sample seeds it
    sample_rng(): a generator that counts
    torch: a Mersenne twister whose state ends with the sample's words; the rest is written later

A sample that draws nothing costs nothing: only a draw looks up the position.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._rng.words import (
    LEGACY,
    NUMPY,
    RANDOM,
    RANDOM_WORDS,
    SEED,
    TORCH_WORDS,
    WIDTH,
    CountedWords,
    PositionWords,
    philox_state,
)

if TYPE_CHECKING:
    from collections.abc import Sized

__all__ = ["BATCH", "SAMPLE", "SampleStream"]

SAMPLE = b"sample"
BATCH = b"batch"

_UNIT = 2.0**-53
_TAIL = 2 * (RANDOM_WORDS - TORCH_WORDS)  # words of 32 bits
_HEAD = (624 - _TAIL) // 2  # of 64 bits
_ALL = 1 << 80  # words: more than anybody draws


class SampleStream:
    """A stream that moves from sample to sample, or from batch to batch.

    Invariants:
        1. What is said of a generator holds if its ``_*_at`` is the length of ``_counted``;
           otherwise nobody has drawn from it at this position.
        2. ``_random`` has the sample's state if it is ``_random_seeded``, and then it draws all.
        3. torch's generator has the sample's state if ``_torch_left`` is not negative; so many
           words can be drawn at least before words come up that are no sample's.  Until then, the
           sample has drawn ``torch_words`` up to ``_torch_next``.
        4. ``torch_words`` are those of the samples from the length ``_torch_first`` of ``_counted``
           on, up to ``_torch_after``.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = (
        "_counted",
        "_first",
        "_heads",
        "_kind",
        "_legacy",
        "_legacy_at",
        "_numpy",
        "_numpy_at",
        "_philox",
        "_philox_state",
        "_random",
        "_random_at",
        "_random_end",
        "_random_next",
        "_random_seeded",
        "_seed",
        "_torch_after",
        "_torch_at",
        "_torch_end",
        "_torch_first",
        "_torch_left",
        "_torch_next",
        "_torch_whole",
        "_twister",
        "_values",
        "_words",
        "_words_of",
        "keyed",
        "torch_words",
    )

    def __init__(self) -> None:
        self._seed = 0
        self._kind = SAMPLE
        self._first = 0
        self._counted: Sized = ()
        self._words_of = {kind: PositionWords(kind) for kind in (SAMPLE, BATCH)}
        # For the part of torch's state before the words that a sample draws first.
        self._heads = {kind: CountedWords(kind + b".head", _HEAD) for kind in (SAMPLE, BATCH)}
        self._words = self._words_of[SAMPLE]
        self._values: Any = self._words.values
        self._random = Random(0)  # noqa: S311  # not for secrets
        self._random_next = self._random_end = 0
        self._random_seeded = False
        self._legacy: np.random.RandomState | None = None
        self._twister: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        # Made here: while a sample is loaded, torch may be in a mode that gives no memory.
        self.keyed: Any = _torch.KeyedGenerator() if _torch.AVAILABLE else None
        self._torch_left, self._torch_next, self._torch_end = -1, 0, 0
        self._torch_whole = False  # whether to give torch's generator its whole state at once
        self._torch_first = self._torch_after = 0
        self.torch_words: Any = self._values
        self._philox: Any = None  # for ``_legacy``
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
        if run := len(self._counted):
            self._words.expected = run  # the next one is likely to be as long
            self._words.used += run
        self._seed = seed
        self._kind = kind
        self._first = first
        self._counted = counted
        self._words = self._words_of[kind]
        self._torch_first = self._torch_after = 0
        self._torch_whole = False
        self._forget()

    def _forget(self) -> None:
        self._random_at = self._legacy_at = self._numpy_at = self._torch_at = -1

    def seed(self) -> int:
        """See `Stream`."""
        words = self._words
        row = words.row(self._seed, self._position())
        seed: int = words.values[row * WIDTH + SEED]
        return seed >> 1

    def random(self) -> float:
        """See `Stream`."""
        done = len(self._counted)
        if done != self._random_at:
            self._begin_random(done)
        at = self._random_next
        if at == self._random_end:
            return self.random_generator.random()
        self._random_next = at + 1
        word: int = self._values[at]
        return (word >> 11) * _UNIT

    def getrandbits(self, k: int, /) -> int:
        """See `Stream`."""
        done = len(self._counted)
        if done != self._random_at:
            self._begin_random(done)
        at = self._random_next
        if at == self._random_end:
            return self.random_generator.getrandbits(k)
        if type(k) is not int or not 0 < k <= 64:
            return self.random_generator.getrandbits(k)
        self._random_next = at + 1
        bits: int = self._values[at] >> (64 - k)
        return bits

    @property
    def gauss_next(self) -> float | None:
        """See `Stream`."""
        done = len(self._counted)
        if done != self._random_at:
            self._begin_random(done)
        return self._random.gauss_next  # type: ignore[attr-defined,no-any-return]

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        done = len(self._counted)
        if done != self._random_at:
            self._begin_random(done)
        self._random.gauss_next = value  # type: ignore[attr-defined]

    @property
    def random_generator(self) -> Random:
        """See `Stream`."""
        done = len(self._counted)
        if done != self._random_at:
            self._begin_random(done)
        generator = self._random
        if not self._random_seeded:
            low, high = self._key(RANDOM)
            kept = generator.gauss_next  # type: ignore[attr-defined]
            generator.seed(low | high << 64)
            generator.gauss_next = kept  # type: ignore[attr-defined]
            self._random_next, self._random_seeded = self._random_end, True
        return generator

    def seed_random(self, *args: Any, **kwargs: Any) -> None:
        """See `Stream`."""
        done = len(self._counted)
        if done != self._random_at:
            self._begin_random(done)
        self._random.seed(*args, **kwargs)
        self._random_next, self._random_seeded = self._random_end, True

    def _begin_random(self, done: int) -> None:
        at = self._words.row(self._seed, self._first + done) * WIDTH
        self._values = self._words.values
        self._random.gauss_next = None  # type: ignore[attr-defined]
        self._random_next, self._random_end = at + RANDOM_WORDS, at + WIDTH
        self._random_seeded = False
        self._random_at = done

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `Stream`."""
        done = len(self._counted)
        generator = self._legacy
        if self._legacy_at != done or generator is None:
            # A new one: the one before may have kept the second of two normal values.
            if self._philox is None:
                self._philox = np.random.Philox(key=0)
            self._key_philox(self._philox, self._key(LEGACY))
            generator = self._legacy = np.random.RandomState(self._philox)
            self._legacy_at = done
        return generator

    @property
    def twister(self) -> np.random.RandomState:
        """See `Stream`."""
        if self._legacy_at == len(self._counted) and self._legacy is self._twister is not None:
            return self._twister
        twister = self.unseeded_twister
        twister.seed(np.array(self._key(LEGACY), np.uint64).view(np.uint32))
        return twister

    @property
    def unseeded_twister(self) -> np.random.RandomState:
        """See `Stream`."""
        if self._twister is None:
            self._twister = np.random.RandomState(np.random.MT19937(0))
        self._legacy = self._twister
        self._legacy_at = len(self._counted)
        return self._twister

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `Stream`."""
        done = len(self._counted)
        generator = self._numpy
        if self._numpy_at != done or generator is None:
            if generator is None:
                generator = self._numpy = np.random.Generator(np.random.Philox(key=0))
            self._key_philox(generator.bit_generator, self._key(NUMPY))
            self._numpy_at = done
        return generator

    @property
    def torch_generator(self) -> Any:
        """See `Stream`."""
        return self.torch_generator_for(self.keyed.WORDS)

    def torch_generator_for(self, words: int) -> Any:
        """See `Stream`."""
        if len(self._counted) != self._torch_at:
            self.take_torch_words(0)
        left = self._torch_left - words
        if left < 0:
            left = self._give_torch(words)
        self._torch_left = left
        return self.keyed.generator

    def take_torch_words(self, count: int) -> int:
        """See `Stream`."""
        done = len(self._counted)
        at: int
        if done == self._torch_at:
            at = self._torch_next
        else:
            if done >= self._torch_after:
                self._find_torch_words(done)
            self._torch_next = at = (done - self._torch_first) * _TAIL
            self._torch_end = at + _TAIL
            self._torch_left = -1
            self._torch_at = done
        end = at + count
        if end > self._torch_end:
            return -1
        self._torch_next = end
        return at

    def _find_torch_words(self, done: int) -> None:
        self._torch_first = self._torch_after = 0  # what is interrupted here is begun anew
        words = self._words
        row = words.row(self._seed, self._first + done)
        self.torch_words = words.tempered
        self._torch_first = done - row
        self._torch_after = done - row + words.rows

    def initial_seed(self) -> int:
        """Return the seed of `torch_generator`, which user code may have changed."""
        if self._torch_at == len(self._counted) and self._torch_left >= 0:
            return self.keyed.generator.initial_seed()  # type: ignore[no-any-return]
        return self.seed()

    def _give_torch(self, words: int) -> int:
        """Give torch's generator the words that it lacks; return how many there are left then."""
        keyed, table = self.keyed, self._words
        end: int = self._torch_end
        begun, left = self._torch_left >= 0, max(self._torch_left, end - self._torch_next)
        head = None
        if left < words:
            self._torch_whole = True  # samples of one dataset draw alike: one call for the next
        if left < words or (self._torch_whole and not begun):
            head, left = self._heads[self._kind].words(self._seed, self._position()), _ALL
        if not begun:
            at = table.row(self._seed, self._position()) * _TAIL
            tail = table.tails[at : at + _TAIL]
            keyed.begin(self.seed(), tail, end - self._torch_next, head)
        elif head is not None:
            keyed.complete(head)
        self._torch_next = end  # no words are drawn past the generator any more
        return left - words

    def _position(self) -> int:
        return self._first + len(self._counted)

    def _key(self, which: int) -> tuple[int, int]:
        at = self._words.row(self._seed, self._position()) * WIDTH + which
        values = self._words.values
        return values[at], values[at + 1]

    def _key_philox(self, philox: Any, key: tuple[int, int]) -> None:
        state = self._philox_state
        if state is None:
            state = self._philox_state = philox_state()
        state["state"]["key"] = key
        philox.state = state
