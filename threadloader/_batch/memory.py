"""The memory of a batch: what all kinds can do, and ordinary and page-locked memory.

Each leaf has memory of its own: whoever keeps the labels of a batch does not keep its images.  A
small leaf has new memory, which an allocator has at hand; a large one has a slot of the ring.
Page-locked memory is what workers write into for the user, or the copier, to copy from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._batch.ring import ALIGNMENT
from threadloader._lifetime import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.layout import Field, Layout, Place
    from threadloader._batch.ring import Ring, Slot
    from threadloader._torch.device import Device


class BatchMemory:
    """The memory of one batch; some kinds can't be copied from, others can't be taken.

    It is the holder of its slots: they are not reused while it lives.

    Args:
        ring: Gives the slots; None where there are none.

    Threads:
        fields: workers write disjoint rows of them.
        take: consumer, once.
        copy_to, then release or retire: copier, once each, instead.
        release: the last worker, instead, if the collate function makes the batch.
    """

    __slots__ = ("__weakref__", "_ring", "_slots", "fields", "nbytes")

    def __init__(self, ring: Ring | None) -> None:
        self._ring: Any = ring
        self._slots: tuple[Slot, ...] = ()
        # One for each leaf: an array `Place.flat`, or a list for text.
        self.fields: list[Field] = []
        self.nbytes = 0  # of all leaves

    def take(self) -> list[Any]:
        """Return the parts of the batch: one for each leaf, a list for text."""
        raise NotImplementedError

    def copy_to(self, device: Device) -> tuple[list[Any], list[Any]]:
        """Begin to copy all leaves; return the parts, as `take` does, and the tensors."""
        raise NotImplementedError(device)

    def release(self) -> None:
        """Give the memory back; nothing reads or writes it any more."""
        slots, self._slots = self._slots, ()
        if slots:
            self._ring.release(slots)

    def retire(self) -> None:
        """Never use the memory again: nobody knows whether a copy still reads it."""
        slots, self._slots = self._slots, ()
        self._ring.retire(slots)


class LeasedMemory(BatchMemory):
    """Ordinary memory; a large leaf is leased to the consumer.

    Args:
        ring: Gives the slots.
        convert: Makes a part of the batch of a leaf's array ``(rows, *shape)``.
        layout: The batch's.
        rows: Samples in it.
    """

    __slots__ = ("_convert", "_made")

    def __init__(
        self, ring: Ring, convert: Callable[[Any], Any], layout: Layout, rows: int
    ) -> None:
        super().__init__(ring)
        self._convert = convert
        leaves, self.nbytes, sizes = layout.places(rows)
        if sizes:
            self._slots = ring.take(sizes, self)
        slots = iter(self._slots)
        # For each leaf: its place and its slot; or the array of a small one; or a list of text.
        self._made: list[Any] = []
        for place in leaves:
            made: Any
            field: Field
            if place is None:
                made = field = [None] * rows
            elif place.in_slot:
                made = place, next(slots)
                field = np.ndarray(place.flat, place.dtype, made[1].memory)
            else:
                made = np.empty(place.shape, place.dtype)
                field = made if place.flat is place.shape else made.reshape(place.flat)
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


class PinnedMemory(BatchMemory):
    """Page-locked memory of torch's, which the user copies from.

    Only torch's allocator knows which copies are pending.  So the memory goes back to it when a
    tensor dies, and there is no slot.

    Args:
        layout: The batch's.
        rows: Samples in it.
    """

    __slots__ = ("_parts",)

    def __init__(self, layout: Layout, rows: int) -> None:
        super().__init__(None)
        self._parts: list[Any] = []
        leaves, self.nbytes, _ = layout.places(rows)
        for place in leaves:
            if place is None:
                text: list[Any] = [None] * rows
                self._parts.append(text)
                self.fields.append(text)
                continue
            tensor, array = _torch.empty_pinned(place.shape, place.dtype)
            self._parts.append(tensor)
            self.fields.append(array.reshape(place.flat))

    def take(self) -> list[Any]:
        """Return the parts; see `BatchMemory`."""
        return self._parts


class StagingMemory(BatchMemory):
    """One page-locked slot for a whole batch, which is copied to a device from there.

    Each leaf is copied into memory of its own.

    Args:
        ring: Gives the slot.
        layout: The batch's.
        rows: Samples in it.
    """

    __slots__ = ("_places",)

    def __init__(self, ring: Ring, layout: Layout, rows: int) -> None:
        super().__init__(ring)
        self._places: list[tuple[int, Place] | None] = []  # with the first byte of each
        for place in layout.places(rows).leaves:
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

    def copy_to(self, device: Device) -> tuple[list[Any], list[Any]]:
        """Begin to copy all leaves; see `BatchMemory`."""
        leaves = [
            (offset, place.dtype, place.shape)
            for offset, place in (placed for placed in self._places if placed is not None)
        ]
        try:
            copies = device.copy(self._slots[0].source, leaves)
            each = iter(copies)
            pairs = zip(self._places, self.fields, strict=True)
            return [field if placed is None else next(each) for placed, field in pairs], copies
        finally:
            self = DROPPED  # an error keeps this frame


def _aligned(nbytes: int) -> int:
    """Return the offset at which the next leaf starts in a slot, which is aligned itself."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
