"""Batches of rows that lie in few row groups: shuffled across groups, and within them.

    groups, shuffled ──▶ dealt out to parts ──▶ a few at a time, their rows shuffled ──▶ batches

Parts take turns: batch ``b`` is of part ``b % parts``.  So ranks whose number divides that of parts
read groups of their own, and the sequence is the same for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from threadloader.errors import checked_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


@dataclass(eq=False)
class RowBatches:
    """The order of a `ParquetRows`, as a sampler of batches; made by its ``batches``.

    Args:
        starts: (groups + 1,): the number of rows before each row group, and of all.
        size: Rows in a batch, at least 1.
        shuffle: Whether groups and rows are shuffled.
        seed: Decides the order, together with the epoch.
        mix: Groups of all parts together whose rows are mixed.
        parts: That have groups of their own, and take turns.
        drop_last: Whether a last batch of fewer rows is left out.

    Attributes:
        epoch: Of the pass that begins next; each pass that begins adds 1.

    Raises:
        TypeError: A number is no int.
        ValueError: It is less than 1, or ``seed`` less than 0.

    Threads:
        all: planner only.
    """

    starts: NDArray[np.int64] = field(repr=False)
    size: int
    shuffle: bool
    seed: int
    mix: int
    parts: int
    drop_last: bool
    epoch: int = 0

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("seed", 0), ("mix", 1), ("parts", 1)):
            checked_count(name, getattr(self, name), at_least=least)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the pass that begins next."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches."""
        rows = int(self.starts[-1])
        return rows // self.size if self.drop_last else -(-rows // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rows of each batch, by their numbers."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        groups = np.arange(len(self.starts) - 1)
        if self.shuffle:
            np.random.default_rng((self.seed, epoch)).shuffle(groups)
        left: list[NDArray[np.int64]] = []  # what parts had left when they ended
        parts = (
            _cut(self._rows(groups[part :: self.parts], (self.seed, epoch, part)), self.size, left)
            for part in range(self.parts)
        )
        for batch in chain.from_iterable(zip_longest(*parts)):
            if batch is not None:  # of a part that has ended
                yield batch.tolist()
        rest: list[NDArray[np.int64]] = []
        for batch in (*_cut(left, self.size, rest), *rest):
            if len(batch) == self.size or (len(batch) and not self.drop_last):
                yield batch.tolist()

    def _rows(
        self, groups: NDArray[np.int64], seed: tuple[int, ...]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of a part's groups, of some groups at a time."""
        rng, each = np.random.default_rng(seed), max(1, self.mix // self.parts)
        for first in range(0, len(groups), each):
            some = groups[first : first + each]
            rows = np.concatenate([np.arange(*self.starts[n : n + 2]) for n in some])
            if self.shuffle:
                rng.shuffle(rows)
            yield rows


def _cut(
    spans: Iterable[NDArray[np.int64]], size: int, left: list[NDArray[np.int64]]
) -> Iterator[NDArray[np.int64]]:
    """Yield rows in batches of one size; add to ``left`` what is left in the end."""
    rest = np.empty(0, np.int64)
    for span in spans:
        rows = np.concatenate([rest, span])
        whole = len(rows) // size * size
        yield from rows[:whole].reshape(-1, size)
        rest = rows[whole:]
    left.append(rest)
