"""Random words of positions: the keys of a sample's generators, and the first words that it draws.

    (seed of the epoch, position of the sample) -> words

The words of some consecutive positions are computed by one call of NumPy, by a generator that
counts: Philox with a key for the seed, and the position in its counter.  So a sample pays little,
and its words do not depend on which samples were loaded before it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "LEGACY",
    "NUMPY",
    "RANDOM",
    "RANDOM_WORDS",
    "SEED",
    "TORCH_WORDS",
    "WIDTH",
    "CountedWords",
    "OlderSeed",
    "PositionWords",
    "epoch_seed",
    "key_of",
    "philox_state",
    "rank_seed",
    "streams_seed",
]

_key_input = struct.Struct("<QQ").pack
MASK = (1 << 64) - 1
_EPOCH = b"epoch"
_RANK = b"rank"
_STREAMS = b"streams"

# The words of 64 bits of a position, by where they begin.
SEED = 0
NUMPY = 2  # a key of 128 bits, as the next two
LEGACY = 4
RANDOM = 6
TORCH_WORDS = 8
RANDOM_WORDS = 20
WIDTH = 32  # whole blocks of Philox, which are 4

_TEMPERING = (7, np.uint32(0x9D2C5680)), (15, np.uint32(0xEFC60000))
_FEWEST, _MOST = 8, 256  # rows at once: one costs 0.15 us, and a call 10 us in a busy cache


class OlderSeed(int):
    """The seed of an epoch whose samples draw as before state version 3."""

    __slots__ = ()


def key_of(seed: int, position: int, purpose: bytes) -> bytes:
    """Return the 16 bytes that a generator is keyed with, in 0.5 us.

    Two different triples of seed, position and purpose give keys without any relation.

    Source: BLAKE2b (RFC 7693), with the purpose as its personalisation, 16 bytes at most.
    """
    return hashlib.blake2b(
        _key_input(seed & MASK, position & MASK), digest_size=16, person=purpose
    ).digest()


def epoch_seed(seed: int, epoch: int) -> int:
    """Return 63 bits for one of several epochs that have ``seed`` in common.

    Args:
        seed: Of all these epochs.
        epoch: The number of the epoch, from 0.
    """
    return int.from_bytes(key_of(seed, epoch, _EPOCH)[:8], "little") >> 1


def rank_seed(seed: int, rank: int) -> int:
    """Return 63 bits for one of several ranks that have ``seed`` in common; rank 0 has the seed."""
    return int.from_bytes(key_of(seed, rank, _RANK)[:8], "little") >> 1 if rank else seed


def streams_seed(seed: int, epoch: int) -> int:
    """Return 63 bits for the random streams of an epoch; `epoch_seed` is for its order."""
    return int.from_bytes(key_of(seed, epoch, _STREAMS)[:8], "little") >> 1


def philox_state() -> dict[str, Any]:
    """Return a state of Philox whose buffer is empty: only its key and counter are to be set."""
    return dict(np.random.Philox(key=0).state)


class CountedWords:
    """A generator of the words of any position; it is fastest where they follow each other.

    Args:
        purpose: Words for two purposes have no relation; at most 16 bytes.
        width: Words of 64 bits for a position, a multiple of 4.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = ("_blocks", "_keyed", "_next", "_philox", "_purpose", "_state", "_width")

    def __init__(self, purpose: bytes, width: int) -> None:
        self._purpose = purpose
        self._width, self._blocks = width, width // 4
        # Made when first needed: to make all that a thread may need takes as long as a small epoch.
        self._philox: Any = None
        self._state: Any = None
        self._keyed: int | None = None  # the seed that ``_state`` has the key of
        self._next: tuple[int, int] | None = None  # the seed and position that come next

    def words(self, seed: int, position: int, rows: int = 1) -> Any:
        """Return the words of a position, and those of the next ones behind them.

        Args:
            seed: Of the epoch.
            position: From 0.
            rows: How many positions.
        """
        if self._next != (seed, position):
            self._next = None  # what is interrupted from here on, by Ctrl-C say, is begun anew
            if self._philox is None:
                self._state = philox_state()
                self._philox = np.random.Philox(key=0)
            state, counter = self._state, position * self._blocks
            if seed != self._keyed:
                key = key_of(seed, 0, self._purpose)
                state["state"]["key"] = np.frombuffer(key, np.uint64)
                self._keyed = seed
            state["state"]["counter"] = [counter & MASK, counter >> 64 & MASK, 0, 0]
            self._philox.state = state
        self._next = None  # the same
        words = self._philox.random_raw(rows * self._width)
        self._next = seed, position + rows
        return words


class PositionWords:
    """The words of positions that follow each other.

    Args:
        kind: Whether samples or batches are counted; their words have no relation.

    Attributes:
        values: Of 64 bits, `WIDTH` a row.
        rows: How many positions have their words in ``values``.
        expected: How many positions are likely to be asked for one after the other.
        used: How many were since the last words were computed.

    Invariants:
        1. ``values`` are those of ``rows`` positions from ``_first`` on.

    Threads:
        all: one thread, the worker that owns it.
    """

    __slots__ = (
        "_array",
        "_counted",
        "_first",
        "_seed",
        "_tails",
        "_tempered",
        "expected",
        "rows",
        "used",
        "values",
    )

    def __init__(self, kind: bytes) -> None:
        self._counted = CountedWords(kind + b".words", WIDTH)
        self._seed = self._first = self.rows = 0
        self.expected, self.used = _FEWEST, 0
        self._array: NDArray[np.uint64] = np.zeros((0, WIDTH), np.uint64)
        self._tails: Any = None  # memoryviews, or None
        self._tempered: Any = None
        self.values = memoryview(b"")

    def row(self, seed: int, position: int) -> int:
        """Return which row of `WIDTH` words in ``values`` is that of a position.

        Args:
            seed: Of the epoch.
            position: From 0.
        """
        row = position - self._first
        if seed != self._seed or not 0 <= row < self.rows:
            self._compute(seed, position)
            row = 0
        return row

    @property
    def tails(self) -> Any:
        """The words for torch as they are in a state, one in 64 bits: a memoryview of all rows."""
        if self._tails is None:
            tails: Any = self._words_for_torch().astype(np.uint64)
            self._tails = memoryview(tails)
        return self._tails

    @property
    def tempered(self) -> Any:
        """The same words of 32 bits as a Mersenne twister puts them out.

        Source: Matsumoto and Nishimura, "Mersenne Twister" (1998), equations 2 to 5.
        """
        if self._tempered is None:
            words = self._words_for_torch()
            other = words >> 11
            words ^= other
            for shift, mask in _TEMPERING:
                np.left_shift(words, shift, out=other)
                other &= mask
                words ^= other
            np.right_shift(words, 18, out=other)
            words ^= other
            tempered: Any = words
            self._tempered = memoryview(tempered)
        return self._tempered

    def _words_for_torch(self) -> NDArray[np.uint32]:
        return self._array[:, TORCH_WORDS:RANDOM_WORDS].copy().view(np.uint32).ravel()

    def _compute(self, seed: int, position: int) -> None:
        """Compute the words of a position, and of as many after it as seem to be needed."""
        rows, self.rows = self.rows, 0  # what is interrupted here, by Ctrl-C say, is begun anew
        used, self.used = self.used, 0
        if seed != self._seed:
            rows = self.expected
        elif position == self._first + rows or 2 * used >= rows:
            rows = max(2 * rows, self.expected)
        elif 4 * used < rows:  # other threads load most of these positions
            rows = max(rows // 2, self.expected)
        rows = min(max(rows, _FEWEST), _MOST)
        words: Any = self._counted.words(seed, position, rows)
        self.values = memoryview(words)
        self._array = words.reshape(rows, WIDTH)
        self._tails = self._tempered = None
        self._seed, self._first = seed, position
        self.rows = rows
