"""Page-locked memory that workers write batches into, for the user or the copier to copy from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._batch.memory import BatchMemory
from threadloader._batch.ring import ALIGNMENT

if TYPE_CHECKING:
    from threadloader._batch.ring import Ring
    from threadloader._layout import Layout, Place
    from threadloader._torch.device import Device


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
        self._parts: list[Any] = []
        self.fields = []
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


class StagingMemory(BatchMemory):
    """One page-locked slot for a whole batch, which is copied to a device from there.

    Each leaf is copied into memory of its own.  This object is the holder of the slot.

    Args:
        ring: Gives the slot.
        layout: The batch's.
        rows: Samples in it.
    """

    __slots__ = ("_places", "_ring", "_slots")

    def __init__(self, ring: Ring, layout: Layout, rows: int) -> None:
        self._ring = ring
        self._places: list[tuple[int, Place] | None] = []  # with the first byte of each
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

    def copy_to(self, device: Device) -> tuple[list[Any], list[Any]]:
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

    def release(self) -> None:
        """Give the slot back; see `BatchMemory`."""
        self._ring.release(self._slots)
        self._slots = ()

    def retire(self) -> None:
        """Never use the slot again; see `BatchMemory`."""
        self._ring.retire(self._slots)
        self._slots = ()


def _aligned(nbytes: int) -> int:
    """Return the offset at which the next leaf starts in a slot, which is aligned itself."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
