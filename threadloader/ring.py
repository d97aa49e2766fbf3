r"""The slot ring: batch memory that is reused when, and only when, nobody can see it any more.

::

    FREE --take--> FILLING --lease--> LEASED --last view dies--> FREE
         planner, worker    consumer           any thread
                      \--holder dies (abandoned batch)--> FREE

A slot is leased by the *lifetime* of an object, never by a promise to give it back.  While a
batch is being filled that object is its holder, which every running ticket references; once
delivered it is a fresh root array, which every view and every tensor made of it keeps alive.
A batch that the consumer keeps is therefore never overwritten, and nobody ever waits for a
slot: where none is free, a new one is made.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from threading import Condition
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["FreshSlots", "Ring", "RingStatistics", "Slot"]

ALIGNMENT = 64  # bytes: a cache line, and what SIMD loads and torch's own allocator use
HELD_NBYTES = 4 << 30  # bytes of delivered batches from which on their keeper is told, once
SLACK = 4  # a free slot serves batches down to a quarter of its size, so that memory can shrink


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The memory of one batch."""

    memory: memoryview[Any]  # of bytes
    source: Any = None  # what a device copies it by; None for ordinary memory

    @property
    def nbytes(self) -> int:
        """Size of the slot in bytes."""
        return self.memory.nbytes


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """A snapshot for tests and tracing; stale as soon as it is returned."""

    made: int  # slots, since the ring was made
    free: int  # slots
    filling: int  # slots
    leased: int  # slots
    leased_bytes: int  # bytes that the consumer holds


class _Lease(weakref.ref[Any]):
    """A weak reference that knows the slot which its referent keeps from being reused."""

    __slots__ = ("delivered", "slot")

    slot: Slot
    delivered: bool


def _allocate(nbytes: int) -> tuple[memoryview[Any], None]:
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return memoryview(raw[start : start + nbytes]), None  # type: ignore[arg-type]  # numpy stubs


class Ring:
    """Move slots through FREE, FILLING and LEASED.

    Knows nothing about what a slot holds.

    Args:
        keep: Free slots to keep for reuse; more are dropped, longest unused first.
        allocate: Returns memory of so many bytes, and what a device copies it by; by default
            ordinary memory.

    Invariants, whenever ``_changed`` is not held:
        1. A slot is in ``_free`` or a key of ``_leases``, never in both; for a moment, on its way
           through `take`, in neither.
        2. A slot in ``_free`` is referenced by no live holder and no live root.

    Threads:
        take, free, abandon, statistics: shared.
        warn_if_hoarded: consumer, where an exception loses nothing: a warning may be made one.
        lease: consumer only, so that the root array is made by the thread that consumes it (a
            free-threaded build finalises an object that died elsewhere only when its maker
            next runs).
    """

    def __init__(
        self,
        keep: int,
        allocate: Callable[[int], tuple[memoryview[Any], Any]] | None = None,
    ) -> None:
        self._allocate = _allocate if allocate is None else allocate
        self._keep = keep
        # Appended to by weak reference callbacks, which can run at any moment and in any
        # thread, also inside our own lock: `deque.append` is atomic and takes no lock of ours.
        self._returned: deque[_Lease] = deque()
        self._returning: Callable[[_Lease], None] = self._returned.append
        self._changed = Condition()
        # All below: guarded by _changed.
        self._free: deque[Slot] = deque()  # longest unused first
        self._leases: dict[Slot, _Lease] = {}
        self._made = 0
        self._warned = False

    def take(self, nbytes: int, holder: object) -> Slot:
        """Return a slot that stays out of reuse while ``holder`` lives.

        Args:
            nbytes: Bytes that the batch needs.
            holder: The object that every writer of the slot references.
        """
        nbytes = max(1, nbytes)
        with self._changed:
            self._drain()
            slot = self._best_free(nbytes)
            if slot is None:
                self._made += 1
        if slot is None:
            slot = Slot(*self._allocate(nbytes))
        self._bind(slot, holder, delivered=False)
        return slot

    def lease(self, slot: Slot) -> NDArray[np.uint8]:
        """Hand a filled slot to the consumer: it stays out of reuse while any view lives.

        Call it while the slot's holder still lives, or the slot may be taken in between.

        Returns:
            A fresh root array of the slot's bytes.  NumPy makes every later view refer to it,
            because the memory beneath is no array; ``np.frombuffer`` over an array would be
            skipped (see "base" in NumPy's ndarray reference).
        """
        root = np.frombuffer(slot.memory, dtype=np.uint8)
        self._bind(slot, root, delivered=True)
        return root

    def free(self, slot: Slot) -> None:
        """Give back a slot whose batch will not be delivered from it, all writers being done."""
        with self._changed:
            if self._leases.pop(slot, None) is not None:
                self._put_free(slot)

    def abandon(self, slot: Slot) -> None:
        """Never use a slot again, of which nobody knows whether something still reads it."""
        with self._changed:
            self._leases.pop(slot, None)

    def warn_if_hoarded(self) -> None:
        """Tell a consumer that keeps far more batches than a loop over them would, once."""
        # Unlocked first: the length is read whole on both builds, and a loop over batches holds no
        # more than are kept free.
        if self._warned or len(self._leases) <= 4 * self._keep:
            return
        with self._changed:
            self._drain()
            kept = [slot.nbytes for slot, lease in self._leases.items() if lease.delivered]
            if sum(kept) < HELD_NBYTES:
                return
            self._warned = True
        warnings.warn(
            f"{len(kept)} batches ({sum(kept) >> 20} MiB) are in use: something keeps batches, or "
            "views of them, and so their memory; keep copies of the parts that are needed",
            UserWarning,
            stacklevel=3,
        )

    def statistics(self) -> RingStatistics:
        """Count the slots in each state."""
        with self._changed:
            self._drain()
            delivered = [slot for slot, lease in self._leases.items() if lease.delivered]
            return RingStatistics(
                made=self._made,
                free=len(self._free),
                filling=len(self._leases) - len(delivered),
                leased=len(delivered),
                leased_bytes=sum(slot.nbytes for slot in delivered),
            )

    def _bind(self, slot: Slot, holder: object, *, delivered: bool) -> None:
        lease = _Lease(holder, self._returning)
        lease.slot = slot
        lease.delivered = delivered
        with self._changed:
            self._leases[slot] = lease

    def _drain(self) -> None:
        """Move the slots whose leases ended to FREE.  Call with ``_changed`` held."""
        while self._returned:
            lease = self._returned.popleft()
            # An older lease of a slot that has been handed over since counts for nothing.
            if self._leases.get(lease.slot) is lease:
                del self._leases[lease.slot]
                self._put_free(lease.slot)

    def _put_free(self, slot: Slot) -> None:
        self._free.append(slot)
        if len(self._free) > self._keep:
            self._free.popleft()

    def _best_free(self, nbytes: int) -> Slot | None:
        """Take the smallest free slot that fits and is not far too large."""
        best = None
        for slot in self._free:
            if nbytes <= slot.nbytes <= SLACK * nbytes + 4096 and (
                best is None or slot.nbytes < best.nbytes
            ):
                best = slot
        if best is not None:
            self._free.remove(best)
        return best


class FreshSlots:
    """Slots that are made for one batch each, where another allocator than ours reuses memory.

    Page-locked memory that the user copies from is torch's: its allocator alone knows which
    copies are pending.

    Args:
        allocate: As for `Ring`.

    Threads:
        all: shared.
    """

    def __init__(self, allocate: Callable[[int], tuple[memoryview[Any], Any]]) -> None:
        self._allocate = allocate

    def take(self, nbytes: int, holder: object) -> Slot:  # noqa: ARG002  # as `Ring.take`
        """Return a slot."""
        return Slot(*self._allocate(max(1, nbytes)))

    def free(self, slot: Slot) -> None:
        """Do nothing: the slot's memory lives as long as something refers to it."""

    def abandon(self, slot: Slot) -> None:
        """Do nothing, likewise."""
