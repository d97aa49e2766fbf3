"""How far ahead batches are planned: a few, enough to keep all workers busy, bounded in bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PrefetchDepth", "Window"]

WINDOW = 4  # batches at least: one in use, one due, two in the making
SMALL_WINDOW = 16  # batches: handing over costs two thread switches a window (bench: rows)
UNKNOWN_ROWS = 16  # samples in a batch of unknown size
SMALL_NBYTES = 16 << 20  # bytes that such a window may take
# Small batches of an array dataset are made several as one.  With 16 of 64 KiB a batch takes what
# indexing the array does, with 4 a third more (CPU time of one thread; bench: gather).
PACK = 16  # batches
PACK_NBYTES = 1 << 20  # bytes of them together
PACKED_NBYTES = 128 << 10  # bytes of one: each is copied out, which is dearer than handing it over
PACKS = 4  # in a window
LATE = 16  # batches: the largest of so many that were delivered last tells how many to plan
LARGE_NBYTES = 1 << 30  # bytes that any window may take, as long as two batches fit


@dataclass(frozen=True, slots=True)
class Window:
    """How many batches may be planned and not yet returned."""

    batches: int
    fixed: bool  # whether the user chose the number

    @classmethod
    def chosen(
        cls,
        workers: int,
        *,
        rows: int | None,
        whole: bool,
        prefetch: int | None,
        factor: int | None,
    ) -> Window:
        """Return the window that the user asked for, or else one that keeps all workers busy.

        Args:
            workers: Threads.
            rows: Samples in a batch; None if a user's batch sampler does not tell.
            whole: Whether one worker does a whole batch.
            prefetch: Batches; None if not given.
            factor: Batches a worker; None if not given.
        """
        if prefetch is not None:
            return cls(prefetch, fixed=True)
        if factor:
            return cls(factor * workers, fixed=True)
        busy = workers if whole else -(-2 * workers // (rows or UNKNOWN_ROWS))
        return cls(max(WINDOW, 2 + busy), fixed=False)

    @property
    def most(self) -> int:
        """Batches at the most, whatever their size."""
        return self.batches if self.fixed else max(self.batches, SMALL_WINDOW)

    def pack(self, nbytes: int) -> int:
        """Return how many batches may be made as one.

        Args:
            nbytes: Bytes that a batch takes now; 0 if unknown.
        """
        if not nbytes or nbytes > PACKED_NBYTES:
            return 1
        most = self.batches // PACKS if self.fixed else PACK
        return max(1, min(most, PACK_NBYTES // nbytes))

    def room(self, nbytes: int, pack: int = 1) -> int:
        """Return how many batches to plan.

        Args:
            nbytes: Bytes that a batch takes now; 0 if unknown.
            pack: Batches that are made as one, and count as one.
        """
        if pack > 1:
            return PACKS
        if self.fixed or not nbytes:
            return self.batches
        small = min(SMALL_WINDOW, SMALL_NBYTES // nbytes)
        return min(max(self.batches, small), max(2, LARGE_NBYTES // nbytes))


class PrefetchDepth:
    """How many batches to plan, as batches grow and shrink.

    It follows what was delivered, so that how far a sampler is drawn ahead depends on the data and
    on no thread's speed.  It grows by one batch at a time: where the next batches are far larger
    than those before, few of them are on their way when that shows.

    Threads:
        all: consumer.  Epochs of one loader share it; a race loses one observation of many.
    """

    __slots__ = ("_delivered", "_depth", "_largest")

    def __init__(self) -> None:
        self._delivered: tuple[int, ...] = ()  # bytes of the last batches; replaced whole
        self._largest = 0  # bytes: of those
        self._depth = 0  # batches; 0 before any was planned

    def delivered(self, nbytes: int) -> None:
        """Note the bytes of a batch; 0 if nobody knows them."""
        if nbytes:
            delivered = *self._delivered[1 - LATE :], nbytes
            self._delivered, self._largest = delivered, max(delivered)

    def pack(self, window: Window) -> int:
        """Return how many batches may be made as one."""
        return window.pack(self._largest)

    def room(self, window: Window, pack: int) -> int:
        """Return how many batches to plan; see `Window.room`."""
        room = window.room(self._largest, pack)
        if window.fixed:
            return room
        self._depth = min(room, self._depth + 1) if self._depth and pack == 1 else room
        return self._depth
