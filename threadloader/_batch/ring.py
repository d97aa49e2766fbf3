r"""The slot ring: memory of large leaves that is reused when, and only when, nobody can see it.

::

    FREE --take--> FILLING --lease--> LEASED --last view dies--> FREE
         worker               consumer           any thread
                      \--holder dies (abandoned batch)--> FREE

A slot is leased by the *lifetime* of an object, never by a promise to give it back.  While a
batch is being filled that object is its holder, which every running ticket references; once
delivered it is a fresh root array, one a slot, which every view and every tensor made of it keeps
alive.  A leaf that the consumer keeps is therefore never overwritten, it keeps no other leaf's
memory, and nobody ever waits for a slot: where none is free, a new one is made.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._lifetime.never_freed import leak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


ALIGNMENT = 64  # bytes: a cache line, and what SIMD loads and torch's own allocator use
HELD_NBYTES = 4 << 30  # bytes of delivered leaves from which on their keeper is told, once
SLACK = 2  # a free slot serves leaves down to half its size, so that memory can shrink
# Bytes of free slots that stay when no epoch goes on, so that the next one finds them warm: new
# memory costs its first touch, about 0.2 ms a MiB (test machine, 3.11).  That is little of an epoch
# whose window takes more than this.
IDLE_NBYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The memory of one leaf, or of one batch that is copied to a device."""

    memory: memoryview[Any]  # of bytes
    source: Any = None  # page-locked memory that a device copies from; None for ordinary memory

    @property
    def nbytes(self) -> int:
        """Size of the slot in bytes."""
        return self.memory.nbytes


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """A snapshot for tests and tracing; stale as soon as it is returned."""

    made: int  # slots, since the ring was made
    free: int  # slots
    free_bytes: int  # bytes that are kept for reuse
    filling: int  # slots
    leased: int  # slots
    leased_bytes: int  # bytes that the consumer holds


class _Lease(weakref.ref[Any]):
    """A weak reference that knows the slots which its referent keeps from being reused."""

    __slots__ = ("delivered", "slots")

    slots: tuple[Slot, ...]
    delivered: bool


class _Note(weakref.ref[Any]):
    """A weak reference to a delivered leaf whose slot the ring has forgotten."""

    __slots__ = ("nbytes",)

    nbytes: int


# The rings of ordinary memory that keep free slots while no epoch goes on: that whose epoch ended
# last, alone, so that a loader for training and one for validation, in turn, have one window of
# memory between them.  Of the process, since memory is; appended to and popped, atomic on both
# builds.  Page-locked slots stay with their ring: they are dear to make, and torch keeps them, too.
_idle: deque[weakref.ref[Ring]] = deque()


def _allocate(nbytes: int) -> tuple[memoryview[Any], None]:
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return memoryview(raw[start : start + nbytes]), None  # type: ignore[arg-type]  # numpy stubs


class Ring:
    """Move slots through FREE, FILLING and LEASED.

    Knows nothing about what a slot holds.

    The consumer's thread is here, too, and Ctrl-C may come up at any moment.  So what changes more
    than one attribute does that by statements between which nothing is called, or can be done
    again, and a slot that is lost on its way is freed.  Loops with a condition are methods of their
    own: since CPython 3.12 some jumps of a loop in a ``with`` block have no exception handler
    (python/cpython issue 108214).

    Args:
        batches: Batches that free slots are kept for, the longest unused dropped first.  A slot is
            dropped, too, when so many batches began that had no use for it.
        allocate: Returns memory of so many bytes, and what a device copies from; by default
            ordinary memory.

    Invariants, whenever ``_lock`` is not held:
        1. A slot is in ``_free`` or a key of ``_leases``, never in both; for a moment, on its way
           through `take`, in neither.
        2. A slot in ``_free`` is referenced by no live holder and no live root.
        3. If no epoch goes on, free slots and those that are leased take ``_idle_nbytes`` at the
           most, unless another thread held the lock as that ended: the next call of any method
           looks.  All others that are in use are no slots any more.

    Threads:
        take, release, retire, statistics: shared.
        enter: planner.
        leave: shared, also from a finalizer; it waits for nobody.
        clear: shared.
        warn_if_hoarded: consumer, where an exception loses nothing: a warning may be made one.
        lease: consumer only, so that the root array is made by the thread that consumes it (a
            free-threaded build finalises an object that died elsewhere only when its maker
            next runs).
    """

    def __init__(
        self,
        batches: int,
        allocate: Callable[[int], tuple[memoryview[Any], Any]] | None = None,
    ) -> None:
        self._allocate = _allocate if allocate is None else allocate
        self.batches = batches
        # Appended to by weak reference callbacks, which can run at any moment and in any
        # thread, also inside our own lock: `deque.append` is atomic and takes no lock of ours.
        self._returned: deque[_Lease] = deque()
        # In C, where Ctrl-C does not come up: in a callback it would be printed and lost.
        self._returning: Callable[[_Lease], None] = self._returned.append
        # Epochs that go on.  No lock: adding to a set, and discarding, is atomic on both builds.
        self._epochs: set[object] = set()
        self._idle_nbytes = IDLE_NBYTES  # stored and loaded whole, on both builds
        self.seems_hoarded = False  # to warn of, perhaps; read and set whole, by consumers
        # Re-entrant: a finalizer that comes up inside may end an epoch, begin one, or count.
        self._lock = RLock()
        # All below: guarded by _lock.
        self._free: deque[tuple[int, Slot]] = deque()  # and the take before; longest unused first
        self._leases: dict[Slot, _Lease] = {}
        self._notes: list[_Note] = []  # of what was delivered, is alive, and is leased no more
        self._takes = 0
        self._per_batch = 1  # slots, of the take before
        self._made = 0
        self._warned = False

    def enter(self, epoch: object) -> None:
        """Keep free slots for an epoch that begins; take over those of the epoch that ended last.

        Args:
            epoch: Anything that stands for it; `leave` is told the same.
        """
        self._epochs.add(epoch)
        self._idle_nbytes = IDLE_NBYTES
        if self._allocate is not _allocate:
            return
        taken = _take_over(self, 0)
        self._free.extend([(self._takes, slot) for slot in taken])  # atomic on both builds

    def leave(self, epoch: object) -> None:
        """Keep few free slots after the end of an epoch, unless another goes on.  Idempotent."""
        if epoch in self._epochs:
            self._epochs.discard(epoch)
            if not (self._made or self._free or self._leases):
                return  # small batches have no slots
            if not self._epochs and self._allocate is _allocate:
                _idle.append(weakref.ref(self))
                _take_over(self, 1)
        if not self._epochs:
            self._settle()

    def clear(self) -> None:
        """Keep no free slot: what comes back is dropped, until an epoch begins."""
        self._epochs.clear()
        self._idle_nbytes = 0
        dropped: list[Slot] = []
        with self._lock:
            self._drain(dropped)
            self._forget_leased(dropped)

    def take(self, sizes: Sequence[int], holder: object) -> tuple[Slot, ...]:
        """Return slots that stay out of reuse while ``holder`` lives.

        Args:
            sizes: Bytes that each slot needs, at least 1.
            holder: The object that every writer of the slots references.
        """
        slots: list[Slot | None] = []
        dropped: list[Slot] = []
        with self._lock:
            self._takes += 1
            self._per_batch = len(sizes)
            self._drain(dropped)
            slots += map(self._best_free, sizes)
        taken = tuple(
            Slot(*self._allocate(_rounded(nbytes))) if slot is None else slot
            for slot, nbytes in zip(slots, sizes, strict=True)
        )
        self._made += slots.count(None)  # a race loses one of many, which no decision rests on
        self._bind(taken, holder, delivered=False)
        return taken

    def lease(self, slot: Slot) -> NDArray[np.uint8]:
        """Hand a filled slot to the consumer: it stays out of reuse while any view lives.

        Call it while the slot's holder still lives, or the slot may be taken in between.

        Returns:
            A fresh root array of the slot's bytes.  NumPy makes every later view refer to it,
            because the memory beneath is no array; ``np.frombuffer`` over an array would be
            skipped (see "base" in NumPy's ndarray reference).
        """
        root = np.frombuffer(slot.memory, dtype=np.uint8)
        self._bind((slot,), root, delivered=True)
        # Unlocked: the lengths are read whole on both builds, and a loop over batches holds no more
        # than are kept free.
        in_use = len(self._leases) + len(self._notes)
        self.seems_hoarded = in_use > 4 * self.batches * self._per_batch and not self._warned
        return root

    def release(self, slots: Sequence[Slot]) -> None:
        """Give back slots whose batch will not be delivered from them, all writers being done."""
        dropped: list[Slot] = []
        with self._lock:
            for slot in slots:
                self._come_back(slot)
            self._drop(dropped)
        if not self._epochs:
            self._settle()

    def retire(self, slots: Sequence[Slot]) -> None:
        """Never use or free slots again: nobody knows whether something still reads them."""
        for slot in slots:
            leak(slot)
        with self._lock:
            for slot in slots:
                self._leases.pop(slot, None)

    def warn_if_hoarded(self) -> None:
        """Tell a consumer that keeps far more batches than a loop over them would, once."""
        if not self.seems_hoarded:
            return
        self.seems_hoarded = False
        dropped: list[Slot] = []
        with self._lock:
            self._drain(dropped)
            leases, notes = list(self._leases.items()), list(self._notes)
        kept = [slot.nbytes for slot, lease in leases if lease.delivered]
        kept += [note.nbytes for note in notes if note() is not None]
        if sum(kept) < HELD_NBYTES:
            return
        self._warned = True
        warnings.warn(
            f"{len(kept)} large tensors or arrays of batches ({sum(kept) >> 20} MiB) are in use: "
            "something keeps them, or views of them, and so their memory; keep copies of the "
            "parts that are needed",
            UserWarning,
            stacklevel=4,
        )

    def statistics(self) -> RingStatistics:
        """Count the slots in each state."""
        dropped: list[Slot] = []
        with self._lock:
            self._drain(dropped)
            made, free, free_nbytes = self._made, len(self._free), self._free_nbytes()
            leases, notes = list(self._leases.items()), list(self._notes)
        delivered = [slot.nbytes for slot, lease in leases if lease.delivered]
        noted = [note.nbytes for note in notes if note() is not None]
        return RingStatistics(
            made=made,
            free=free,
            free_bytes=free_nbytes,
            filling=len(leases) - len(delivered),
            leased=len(delivered) + len(noted),
            leased_bytes=sum(delivered) + sum(noted),
        )

    def _bind(self, slots: tuple[Slot, ...], holder: object, *, delivered: bool) -> None:
        lease = _Lease(holder, self._returning)
        lease.slots = slots
        lease.delivered = delivered
        with self._lock:
            for slot in slots:
                self._leases[slot] = lease
        if not self._epochs:  # nobody is going to look
            self._settle()

    def _give(self) -> list[Slot]:
        """Return the free slots, which are the caller's then; none if an epoch needs them."""
        locked: list[bool] = []
        try:
            if self._epochs or not _try(self._lock, locked):
                return []
            self._idle_nbytes = 0  # until an epoch begins
            emptied: deque[tuple[int, Slot]] = deque()
            free, self._free = self._free, emptied
            return [slot for _, slot in free]
        finally:
            if locked and locked[0]:
                self._lock.release()

    def _settle(self) -> None:
        """Move what came back to FREE, and drop what is not to be kept, unless that must wait."""
        locked: list[bool] = []
        dropped: list[Slot] = []
        try:
            if _try(self._lock, locked):
                self._drain(dropped)
                if not self._epochs:
                    self._forget_leased(dropped)
        finally:
            if locked and locked[0]:
                self._lock.release()

    def _forget_leased(self, dropped: list[Slot]) -> None:
        """Forget leased slots that could not be kept; each is freed when its lease ends.

        They are forgotten now, since nobody will look when the lease ends, and a callback in Python
        can be interrupted.  Call with ``_lock`` held.

        Args:
            dropped: Gets the slots.
        """
        room = self._idle_nbytes - self._free_nbytes()
        for slot, lease in list(self._leases.items()):
            nbytes = slot.nbytes
            if nbytes <= room:
                room -= nbytes
                continue
            holder = lease()
            if holder is not None and lease.delivered:
                note = _Note(holder, self._notes.remove)  # in C; a dead one equals itself alone
                note.nbytes = nbytes
                self._notes.append(note)
            dropped.append(slot)
            self._leases.pop(slot, None)

    def _drain(self, dropped: list[Slot]) -> None:
        """Move the slots whose leases ended to FREE.  Call with ``_lock`` held.

        Args:
            dropped: Gets the slots that are not kept; dropped after the lock is released.
        """
        while self._returned:
            lease = self._returned[0]
            for slot in lease.slots:
                # An older lease of a slot that has been handed over since counts for nothing.
                if self._leases.get(slot) is lease:
                    self._come_back(slot)
            # Last: after an interrupt the next call does the rest.  A finalizer may have done it.
            if self._returned and self._returned[0] is lease:
                self._returned.popleft()
        self._drop(dropped)

    def _come_back(self, slot: Slot) -> None:
        """Move a slot from LEASED to FREE, if it is leased."""
        entry = self._takes, slot
        if slot in self._leases:
            # From here on nothing is called, but what ends it: see above.
            del self._leases[slot]
            self._free.append(entry)

    def _free_nbytes(self) -> int:
        return sum(slot.nbytes for _, slot in list(self._free))

    def _drop(self, dropped: list[Slot]) -> None:
        """Drop free slots that are too many, or of no use any more, longest unused first."""
        while self._has_too_many():
            with suppress(IndexError):  # a finalizer has taken it meanwhile
                dropped.append(self._free.popleft()[1])

    def _has_too_many(self) -> bool:
        free = list(self._free)
        if not free:
            return False
        # None of the last batches needed it: their sizes have changed.
        if len(free) > self.batches * self._per_batch or free[0][0] < self._takes - self.batches:
            return True
        return not self._epochs and self._free_nbytes() > self._idle_nbytes

    def _best_free(self, nbytes: int) -> Slot | None:
        """Take the smallest free slot that fits and is not far too large."""
        while True:
            best = None
            # Of slots of one size that which is longest unused, so that only those grow old whose
            # size nobody needs any more.
            for entry in list(self._free):
                size = entry[1].nbytes
                if nbytes <= size <= SLACK * nbytes and (best is None or size < best[1].nbytes):
                    best = entry
            if best is None:
                return None
            with suppress(ValueError):  # a finalizer has taken it meanwhile
                self._free.remove(best)
                return best[1]


def _try(lock: Any, locked: list[bool]) -> bool:
    """Take a lock unless it is held; for where a finalizer may be the caller, inside any lock.

    Whoever holds it may be this very thread, further out.

    Args:
        lock: The lock.
        locked: Is empty, and told whether it was taken, by the same call as takes it: an interrupt
            comes before or after that.
    """
    locked.extend(map(lock.acquire, (False,)))
    return locked[0]


def _take_over(ring: Ring, left: int) -> list[Slot]:
    """Return the free slots of the rings in ``_idle`` but of some; they keep no others then.

    Args:
        ring: Whose own are left where they are.
        left: How many rings stay in ``_idle``, those that came last.
    """
    slots: list[Slot] = []
    while len(_idle) > left:
        with suppress(IndexError):  # another thread was faster
            other = _idle.popleft()()
            if other is not None and other is not ring:
                slots += other._give()  # noqa: SLF001  # of this module
    return slots


def _rounded(nbytes: int) -> int:
    """Return a size in steps of an eighth, so that batches that vary a little share slots."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
