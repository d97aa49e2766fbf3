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

import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader._lifetime import leak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


ALIGNMENT = 64  # bytes: a cache line, and what SIMD loads and torch's own allocator use
SLACK = 2  # a free slot serves leaves down to half its size, so that memory can shrink


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The memory of one leaf, or of one batch that is copied to a device."""

    memory: memoryview[Any]  # of bytes
    source: Any = None  # page-locked memory that a device copies from; None for ordinary memory

    @property
    def nbytes(self) -> int:
        """Size of the slot in bytes."""
        return self.memory.nbytes


class RingStatistics(NamedTuple):
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
        3. If no epoch goes on, there are no slots, unless another thread held the lock as that
           ended: whoever holds it next looks.  Memory that is in use then is freed with the last
           view of it.

    Threads:
        take, release, retire, statistics: shared.
        enter: planner.
        leave: shared, also from a finalizer; it waits for nobody.
        clear: shared.
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
        # Re-entrant: a finalizer that comes up inside may end an epoch, begin one, or count.
        self._lock = RLock()
        # All below: guarded by _lock.
        self._free: deque[tuple[int, Slot]] = deque()  # and the take before; longest unused first
        self._leases: dict[Slot, _Lease] = {}
        # Of slots that outlive their epoch, to count them: what leases each, and its bytes.
        self._forgotten: list[tuple[_Lease, int]] = []
        self._takes = 0
        self._per_batch = 1  # slots, of the take before
        self._made = 0

    def enter(self, epoch: object) -> None:
        """Keep slots for an epoch that begins.

        Args:
            epoch: Anything that stands for it; `leave` is told the same.
        """
        self._epochs.add(epoch)

    def leave(self, epoch: object) -> None:
        """Keep no slots after the end of an epoch, unless another goes on.  Idempotent."""
        self._epochs.discard(epoch)
        if self._free or self._leases:  # small batches have no slots
            self._settle()

    def clear(self) -> None:
        """Keep no slots until an epoch begins."""
        self._epochs.clear()
        with self._lock:
            dropped = self._forget()  # noqa: F841  # dropped after the lock is released

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
        return root

    def release(self, slots: Sequence[Slot]) -> None:
        """Give back slots whose batch will not be delivered from them, all writers being done."""
        dropped: list[Slot] = []
        with self._lock:
            for slot in slots:
                self._come_back(slot)
            self._drop(dropped)
        self._settle()

    def retire(self, slots: Sequence[Slot]) -> None:
        """Never use or free slots again: nobody knows whether something still reads them."""
        for slot in slots:
            leak(slot)
        with self._lock:
            for slot in slots:
                self._leases.pop(slot, None)
        self._settle()

    def statistics(self) -> RingStatistics:
        """Count the slots in each state."""
        dropped: list[Slot] = []
        with self._lock:
            self._drain(dropped)
            made, free = self._made, list(self._free)
            leases, forgotten = list(self._leases.items()), list(self._forgotten)
        used = [(lease, slot.nbytes) for slot, lease in leases]
        used += [(lease, nbytes) for lease, nbytes in forgotten if lease() is not None]
        self._settle()  # an epoch that ended meanwhile did not wait for the lock
        leased = [nbytes for lease, nbytes in used if lease.delivered]
        return RingStatistics(
            made=made,
            free=len(free),
            free_bytes=sum(slot.nbytes for _, slot in free),
            filling=len(used) - len(leased),
            leased=len(leased),
            leased_bytes=sum(leased),
        )

    def _bind(self, slots: tuple[Slot, ...], holder: object, *, delivered: bool) -> None:
        lease = _Lease(holder, self._returning)
        lease.slots = slots
        lease.delivered = delivered
        with self._lock:
            for slot in slots:
                self._leases[slot] = lease
        self._settle()

    def _settle(self) -> None:
        """Forget all slots if no epoch goes on, unless that must wait.

        A finalizer may be the caller, inside any lock, and whoever holds this one may be the same
        thread, further out.
        """
        locked: list[bool] = []
        dropped = None
        try:
            if not self._epochs:
                # By the same call as takes it: an interrupt comes before or after that.
                locked.extend(map(self._lock.acquire, (False,)))
                if locked[0] and not self._epochs:
                    dropped = self._forget()  # noqa: F841  # after the lock is released
        finally:
            if locked and locked[0]:
                self._lock.release()

    def _forget(self) -> tuple[Any, Any]:
        """Return all slots, which are the caller's then.  Call with ``_lock`` held.

        Each leased one is freed with its holder, as its lease knows no slots any more.
        """
        none: deque[tuple[int, Slot]] = deque()
        free, self._free = self._free, none
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.slots = ()
        known = [*self._forgotten, *((lease, slot.nbytes) for slot, lease in leases.items())]
        self._forgotten = [(lease, nbytes) for lease, nbytes in known if lease() is not None]
        return free, leases

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
        unused = free[0][0] < self._takes - self.batches
        return unused or len(free) > self.batches * self._per_batch

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


def _rounded(nbytes: int) -> int:
    """Return a size in steps of an eighth, so that batches that vary a little share slots."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
