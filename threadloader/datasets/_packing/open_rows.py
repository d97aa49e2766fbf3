"""Which row a sequence goes into: the first of some open rows that has room for it.

It depends on lengths alone.  If no open row has room and there are as many as may be, the one that
was opened first is closed: so a sequence waits for a bounded number of rows.

Source: first fit, as in Johnson et al., "Worst-case performance bounds for simple one-dimensional
packing algorithms", SIAM J. Comput. 1974, over a window of rows.
"""

from __future__ import annotations

from collections import deque
from operator import ge
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OpenRows", "Row"]


class Row:
    """Some sequences that fit into a row together.

    Args:
        free: Room that is left, for each feature.
        opened: Number of the sample that it was opened for; -1 if its samples are not here.
    """

    __slots__ = ("free", "opened", "pieces")

    def __init__(self, free: Sequence[int], opened: int) -> None:
        self.free = list(free)
        self.opened = opened
        self.pieces: list[Any] = []


class OpenRows:
    """Rows that have room, in the order in which they were opened.

    Args:
        lengths: Of a row, for each feature.
        window: Most rows that are open, at least 1.
        free: Room in rows that are open already, whose samples are not here; see `free`.
    """

    def __init__(self, lengths: Sequence[int], window: int, free: Sequence[int] = ()) -> None:
        self.closed: deque[Row] = deque()  # in the order in which they were closed
        self._lengths = tuple(lengths)
        self._window = window
        each = len(self._lengths)
        self._rows = [Row(free[at : at + each], -1) for at in range(0, len(free), each)]

    @property
    def free(self) -> list[int]:
        """The room in the open rows, one after the other, for each feature."""
        return [room for row in self._rows for room in row.free]

    def opened(self) -> int | None:
        """Return the first sample that an open or a closed row was opened for; None without any."""
        return min((row.opened for row in (*self._rows, *self.closed)), default=None)

    def add(self, piece: Any, lengths: Sequence[int], number: int) -> None:
        """Put a sequence into a row.

        Args:
            piece: What the row keeps.
            lengths: For each feature, none longer than a row's.
            number: Of its sample.
        """
        row = self._fitting(lengths) or self._open(number)
        row.pieces.append(piece)
        row.free = [room - length for room, length in zip(row.free, lengths, strict=True)]
        if not any(row.free):
            self._rows.remove(row)
            self.closed.append(row)

    def close_first(self) -> bool:
        """Close the row that was opened first; return False if there is none."""
        if self._rows:
            self.closed.append(self._rows.pop(0))
            return True
        return False

    def _fitting(self, lengths: Sequence[int]) -> Row | None:
        first = lengths[0]
        for row in self._rows:
            if row.free[0] >= first and all(map(ge, row.free, lengths)):
                return row
        return None

    def _open(self, number: int) -> Row:
        if len(self._rows) == self._window:
            self.close_first()
        row = Row(self._lengths, number)
        self._rows.append(row)
        return row
