"""Where the leaves of a batch lie while it is filled, and what they are when it is handed over.

Each leaf lives by itself: whoever keeps the labels of a batch keeps nothing of its images.  A
small leaf has new memory, which an allocator has at hand; a large one has a slot of the ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from threadloader import _torch
from threadloader._batch.ring import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.ring import Ring
    from threadloader._layout.layout import Field, Layout, Place
    from threadloader._torch.device import Device

__all__ = ["BatchMemory", "LeasedMemory", "PinnedMemory", "StagingMemory"]

# Bytes from which on a leaf takes a slot.  glibc keeps smaller blocks when they are freed; larger
# ones it may return to the system, and then each page costs a fault when it is touched again.
# Below, new memory costs 3 us less than a slot (3.11 and 3.13t, best of 60 rounds).
SLOT_NBYTES = 128 << 10


class BatchMemory(Protocol):
    """The memory of one batch.

    Threads:
        fields: workers write disjoint rows of them.
        take: consumer, once.
        send, then free or abandon: copier, once each, instead.
        free: the last worker instead, where the batch is made otherwise.
    """

    fields: list[Field]  # one a leaf: an array `Place.flat`, or of text a list
    nbytes: int  # of all leaves

    def take(self) -> list[Any]:
        """Return what the batch is built of: one part a leaf, of text the list."""

    def send(self, device: Device) -> tuple[list[Any], list[Any]]:
        """Begin to copy all leaves; return the parts, as `take` does, and those on the device."""

    def free(self) -> None:
        """Let others use the memory; nothing reads or writes it any more."""

    def abandon(self) -> None:
        """Let nobody use it again, where nobody knows whether a copy still reads it."""


class LeasedMemory:
    """Ordinary memory; a large leaf is leased to the consumer.

    It is the holder of its slots: they are not reused while it lives.

    Args:
        ring: Where slots come from.
        convert: Makes the part of a leaf's array ``(rows, *shape)``.
        layout: Of the batch.
        rows: Samples in it.
    """

    __slots__ = ("__weakref__", "_convert", "_made", "_ring", "_slots", "fields", "nbytes")

    def __init__(
        self, ring: Ring, convert: Callable[[Any], Any], layout: Layout, rows: int
    ) -> None:
        self._ring = ring
        self._convert = convert
        places = layout.places(rows)
        sizes = [place.nbytes for place in places if place and place.nbytes >= SLOT_NBYTES]
        self._slots = ring.take(sizes, self) if sizes else ()
        # For each leaf: its place and its slot; or, of a small one, its array; or its text.
        self._made: list[Any] = []
        self.fields: list[Field] = []
        self.nbytes = number = 0
        for place in places:
            made: Any
            field: Field
            if place is None:
                made = field = [None] * rows
            elif place.nbytes >= SLOT_NBYTES:
                made = place, self._slots[number]
                field = np.ndarray(place.flat, place.dtype, self._slots[number].memory)
                number += 1
                self.nbytes += place.nbytes
            else:
                made = np.empty(place.shape, place.dtype)
                field = made.reshape(place.flat)
                self.nbytes += place.nbytes
            self._made.append(made)
            self.fields.append(field)

    def take(self) -> list[Any]:
        """Return the parts; see `BatchMemory`."""
        parts: list[Any] = []
        for made in self._made:
            if type(made) is list:
                parts.append(made)
            elif type(made) is tuple:
                place, slot = made
                root = self._ring.lease(slot)
                parts.append(self._convert(np.ndarray(place.shape, place.dtype, root)))
            else:
                parts.append(self._convert(made))
        return parts

    def send(self, device: Device) -> NoReturn:
        """Refuse: such a batch stays where it is."""
        raise NotImplementedError(device)

    def free(self) -> None:
        """Give the slots back; see `BatchMemory`."""
        self._ring.free(self._slots)
        self._slots = ()

    def abandon(self) -> None:
        """Refuse: nothing is copied from it."""
        raise NotImplementedError


class PinnedMemory:
    """Page-locked memory of torch's, which the user copies from.

    torch's allocator alone knows which copies are pending, so it has the memory back from each
    tensor that dies, and no slot is involved.

    Args:
        layout: Of the batch.
        rows: Samples in it.
    """

    __slots__ = ("_parts", "fields", "nbytes")

    def __init__(self, layout: Layout, rows: int) -> None:
        self._parts: list[Any] = []
        self.fields: list[Field] = []
        self.nbytes = 0
        for place in layout.places(rows):
            if place is None:
                text: list[Any] = [None] * rows
                self._parts.append(text)
                self.fields.append(text)
                continue
            tensor, array = _torch.empty_pinned(place.shape, place.dtype)
            self.nbytes += place.nbytes
            self._parts.append(tensor)
            self.fields.append(array.reshape(place.flat))

    def take(self) -> list[Any]:
        """Return the parts; see `BatchMemory`."""
        return self._parts

    def send(self, device: Device) -> NoReturn:
        """Refuse: the user copies the batch."""
        raise NotImplementedError(device)

    def free(self) -> None:
        """Do nothing: the memory lives as long as something refers to it."""

    def abandon(self) -> None:
        """Refuse: nothing of ours is copied from it."""
        raise NotImplementedError


class StagingMemory:
    """One page-locked slot for a whole batch, which is copied to a device from there.

    Each leaf is copied by itself, into memory of its own.  It is the holder of its slot.

    Args:
        ring: Where the slot comes from.
        layout: Of the batch.
        rows: Samples in it.
    """

    __slots__ = ("__weakref__", "_places", "_ring", "_slots", "fields", "nbytes")

    def __init__(self, ring: Ring, layout: Layout, rows: int) -> None:
        self._ring = ring
        self._places: list[tuple[int, Place] | None] = []  # and the first byte of each
        self.nbytes = 0
        for place in layout.places(rows):
            self._places.append(None if place is None else (self.nbytes, place))
            self.nbytes += 0 if place is None else _aligned(place.nbytes)
        self._slots = ring.take([max(1, self.nbytes)], self)
        memory = self._slots[0].memory
        self.fields = [
            [None] * rows
            if placed is None
            else np.ndarray(placed[1].flat, placed[1].dtype, memory, placed[0])
            for placed in self._places
        ]

    def take(self) -> NoReturn:
        """Refuse: the consumer has the copy alone."""
        raise NotImplementedError

    def send(self, device: Device) -> tuple[list[Any], list[Any]]:
        """Begin to copy all leaves; see `BatchMemory`."""
        leaves = [
            (offset, place.dtype, place.shape)
            for offset, place in (placed for placed in self._places if placed is not None)
        ]
        copies = device.copy(self._slots[0].source, leaves)
        each = iter(copies)
        parts = [
            field if placed is None else next(each)
            for placed, field in zip(self._places, self.fields, strict=True)
        ]
        return parts, copies

    def free(self) -> None:
        """Give the slot back; see `BatchMemory`."""
        self._ring.free(self._slots)
        self._slots = ()

    def abandon(self) -> None:
        """Keep the slot from everybody; see `BatchMemory`."""
        self._ring.abandon(self._slots)
        self._slots = ()


def _aligned(nbytes: int) -> int:
    """Return where the next leaf starts in a slot, which is aligned itself."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
