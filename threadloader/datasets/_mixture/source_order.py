"""The turn of a source → which of its samples: all of them once in each pass, each pass anew.

Turn n of a source with m samples is entry ``n % m`` of a permutation for pass ``n // m``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from threadloader._rng.keys import key_of
from threadloader._rng.permutation import ManyPermutations, mixed, short_permutations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["SourceOrder"]

_SHORT = 1024  # up to this length a pass is a table, made in some 40 us
_KEPT = 1 << 16  # entries of tables that are made at once


class SourceOrder:
    """The order of each source's samples.

    Args:
        names: Of the sources: another source beside it does not change a source's order.
        lengths: Their numbers of samples.
        seed: Decides the order, together with ``epoch``.
        epoch: See ``seed``.
        shuffle: Whether there is any but the sources' own.

    Threads:
        all: any.  Two threads may both make a table, and the tables are equal; an item of a dict
        is read and replaced atomically.  Source: Doc/library/threadsafety.rst of CPython.
    """

    def __init__(
        self, names: Sequence[str], lengths: Sequence[int], seed: int, epoch: int, *, shuffle: bool
    ) -> None:
        # At least 1, as an empty source has no turn.
        self._lengths = np.array([max(1, length) for length in lengths])
        self._shuffle = shuffle
        key = key_of(seed, epoch, b"mixture.source")
        self._keys = np.array([_key_of_name(key, name) for name in names], np.uint64)
        self._long = ManyPermutations(lengths)
        self._short = [
            source for source, length in enumerate(lengths) if shuffle and length <= _SHORT
        ]
        # For each short source some consecutive passes: the first turn, and the samples from it on.
        self._tables: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def indices(self, sources: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of samples in their sources.

        Args:
            sources: Shape ``(n,)``.
            turns: Shape ``(n,)``; those of one source follow each other.

        Returns:
            Shape ``(n,)``.
        """
        lengths = self._lengths[sources]
        passes, numbers = np.divmod(turns, lengths)
        if not self._shuffle:
            return numbers
        if not self._short:
            return self._long.entries(sources, numbers, self._pass_keys(sources, passes))
        indices = np.empty_like(numbers)
        long = np.flatnonzero(lengths > _SHORT)
        if long.size:
            which = sources[long]
            keys = self._pass_keys(which, passes[long])
            indices[long] = self._long.entries(which, numbers[long], keys)
        for source in self._short:
            places = np.flatnonzero(sources == source)
            if places.size:
                indices[places] = self._from_table(source, turns[places])
        return indices

    def _from_table(self, source: int, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        first, last = int(turns[0]), int(turns[-1])
        start, table = self._tables.get(source, (0, turns[:0]))
        if not start <= first <= last < start + len(table):
            length = int(self._lengths[source])
            passes = np.arange(first // length, last // length + 1)
            keys = self._pass_keys(np.array([source]), passes)
            table = short_permutations(length, keys).ravel()
            start = first // length * length
            if len(table) <= _KEPT:
                self._tables[source] = start, table
        return table[turns - start]

    def _pass_keys(
        self, sources: NDArray[np.int64], passes: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        return mixed(self._keys[sources] ^ mixed(passes.astype(np.uint64)))


def _key_of_name(key: bytes, name: str) -> int:
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "little")
