"""How many batches are planned ahead: enough to keep all workers busy, bounded in bytes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PrefetchDepth", "Window"]

WINDOW = 4  # batches, at least: one in use, one due, two being made
# The same where a batch alone fills a processor's cache: each further slot is memory that has left
# it when it is written again.  With 4 of 28 MB an epoch takes a fifth longer than with 2 or 3
# (bench: bandwidth; 3.11, one and two threads); one more than 2 is for batches of unequal times.
CACHE_WINDOW = 3
CACHE_NBYTES = 16 << 20  # bytes of a batch
SMALL_WINDOW = 16  # batches: handing over costs two thread switches a window (bench: rows)
SMALL_NBYTES = 16 << 20  # bytes that a window of so many may take
UNKNOWN_ROWS = 16  # samples that are assumed in a batch of unknown size
LATE = 16  # batches: the largest of the last so many decides how many to plan
# Bytes that a window may take, if two batches fit into them; more only where more threads run than
# there are cores, and need them.
LARGE_NBYTES = 1 << 30


class Window(NamedTuple):
    """How many batches may be planned and not yet returned."""

    batches: int
    fixed: bool  # whether the user chose the number
    of_large: int  # the same for batches that fill a cache
    memory_budget: int | None = None  # bytes, if the user chose them

    @classmethod
    def chosen(
        cls,
        workers: int,
        *,
        rows: int | None,
        whole_batches: bool,
        prefetch: int | None,
        factor: int | None,
        memory_budget: int | None = None,
    ) -> Window:
        """Return the window that the user asked for, or else one that keeps all workers busy.

        Args:
            workers: Threads.
            rows: Samples in a batch; None if that is not known.
            whole_batches: Whether one worker does a whole batch.
            prefetch: Batches; None if the user did not choose.
            factor: Batches a worker; None if the user did not choose.
            memory_budget: Bytes of all batches; the same.
        """
        if prefetch is not None:
            return cls(prefetch, fixed=True, of_large=prefetch)
        if factor:
            return cls(factor * workers, fixed=True, of_large=factor * workers)
        busy = workers if whole_batches else -(-2 * workers // (rows or UNKNOWN_ROWS))
        needed = 2 + busy
        most, of_large = max(WINDOW, needed), max(CACHE_WINDOW, needed)
        return cls(most, fixed=False, of_large=of_large, memory_budget=memory_budget)

    @property
    def most(self) -> int:
        """The largest number of batches, whatever their size."""
        return self.batches if self.fixed else max(self.batches, SMALL_WINDOW)

    def room(self, nbytes: int, needed: int = 0, free_nbytes: int = LARGE_NBYTES) -> int:
        """Return how many batches to plan.

        Args:
            nbytes: Bytes that a batch takes now; 0 if unknown.
            needed: Batches that keep all threads busy.
            free_nbytes: Bytes that these may take, if the user has not chosen.
        """
        if self.fixed:
            return self.batches
        if not nbytes:
            return max(self.batches, needed)
        small = min(SMALL_WINDOW, SMALL_NBYTES // nbytes)
        most = max(self.batches, small) if nbytes < CACHE_NBYTES else self.of_large
        if self.memory_budget is not None:
            return min(max(most, needed), max(2, self.memory_budget // nbytes))
        return max(2, min(most, LARGE_NBYTES // nbytes), min(needed, free_nbytes // nbytes))


class PrefetchDepth:
    """How many batches to plan, as batches grow and shrink.

    It follows the batches that were delivered.  So how far a sampler is drawn ahead depends on the
    data, and not on the speed of threads.  It grows by one batch at a time: if the next batches are
    far larger, few of them are on their way when that shows.

    Threads:
        most: shared.
        all others: consumer.  Epochs of one loader share it; a race loses one observation of many.
    """

    __slots__ = ("_delivered", "_depth", "_largest", "free_nbytes", "needed")

    def __init__(self) -> None:
        self.needed = 0  # batches that keep all threads busy, as was measured; 0 if it was not
        self.free_nbytes = 0  # bytes that these may take
        self._delivered: tuple[int, ...] = ()  # bytes of the last batches; replaced, not changed
        self._largest = 0  # bytes: the largest of them
        self._depth = 0  # batches; 0 before any was planned

    def delivered(self, nbytes: int) -> None:
        """Note the bytes of a delivered batch; 0 if they are unknown."""
        if nbytes:
            delivered = *self._delivered[1 - LATE :], nbytes
            self._delivered, self._largest = delivered, max(delivered)

    @property
    def knows_nbytes(self) -> bool:
        """Whether the bytes of batches are known."""
        return self._largest > 0

    def most(self, window: Window) -> int:
        """Return how many batches are planned at the most, while they are as large as now."""
        return window.room(self._largest, needed=self.needed, free_nbytes=self.free_nbytes)

    def room(self, window: Window) -> int:
        """Return how many batches to plan; see `Window.room`."""
        room = self.most(window)
        if not window.fixed and self._depth:
            room = min(room, self._depth + 1)
        self._depth = room
        return room
