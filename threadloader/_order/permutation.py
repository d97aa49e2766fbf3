"""Permutations of 0 to n - 1 whose entries are computed when they are asked for.

    index -> its two halves of bits -> 12 rounds, each mixes one half into the other -> index

It takes constant memory.  A Feistel network is a bijection on whole numbers of b bits, whatever its
rounds compute.  Where it gives a number that is n or more, it is applied again (cycle walking).
That happens less than once on average, and leaves a bijection on 0 to n - 1.

Of a few bits a network has too few bijections to be fair, so short permutations are tables.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002; the rounds mix
by the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ROUNDS = 12
_SMALL = 1 << 16  # up to this length a table is made instead (512 KiB): exactly uniform
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class KeyedPermutation:
    """A permutation that follows from a seed, with random access.

    Args:
        length: Numbers, at least 0 and at most 2**62.
        seed: At least 0.

    Raises:
        ValueError: ``length`` is out of range.

    Threads:
        all: any; nothing changes after `__init__`.
    """

    __slots__ = ("_keys", "_left", "_right", "_table", "length")

    def __init__(self, length: int, seed: int) -> None:
        if not 0 <= length <= 1 << 62:
            msg = f"length must be from 0 to 2**62, but got {length}"
            raise ValueError(msg)
        self.length = length
        bits = max(2, (length - 1).bit_length())
        self._left, self._right = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        sequence = np.random.SeedSequence(seed)
        self._keys = sequence.generate_state(_ROUNDS, np.uint64)
        self._table: NDArray[np.int64] | None = None
        if length <= _SMALL:
            self._table = np.random.default_rng(sequence).permutation(length)

    def __len__(self) -> int:
        return self.length

    def span(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the entries ``start`` to ``stop`` (excluded).

        Returns:
            Shape ``(stop - start,)``; memory and time grow with this length alone.
        """
        if self._table is not None:
            return self._table[start:stop]
        return self.at(np.arange(start, stop, dtype=np.uint64))

    def at(self, positions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the entries at some positions, each from 0 to ``length`` (excluded).

        Args:
            positions: Whole numbers, of any shape; unsigned ones of 64 bits are changed.

        Returns:
            Their shape.
        """
        if self._table is not None:
            entries: NDArray[np.int64] = self._table[positions]
            return entries
        values = self._rounds(positions.astype(np.uint64, copy=False))
        while (outside := values >= self.length).any():
            values[outside] = self._rounds(values[outside])
        return values.astype(np.int64)

    def _rounds(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Apply the network to numbers that have as many bits as it has."""
        one = np.uint64(1)
        low, high = (one << self._right) - one, (one << self._left) - one
        left, right = values >> self._right, values & low
        for number, key in enumerate(self._keys):
            if number % 2:
                right ^= _mixed(left ^ key) & low
            else:
                left ^= _mixed(right ^ key) & high
        return (left << self._right) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each of ``values``, whose bits all depend on all bits of the value.

    Args:
        values: Overwritten.
    """
    values ^= values >> np.uint64(30)
    values *= _FACTORS[0]
    values ^= values >> np.uint64(27)
    values *= _FACTORS[1]
    values ^= values >> np.uint64(31)
    return values
