"""The interface of a device, between the copier and an accelerator; this module needs no torch.

`accelerators` has the real ones; tests have one whose copies finish late and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from threadloader._lifetime import DeviceMemory

__all__ = ["Device", "Event", "Leaf", "StreamlessDevice", "TargetDevice"]

# Where a leaf lies in page-locked memory: its first byte, its dtype, and its shape.
Leaf: TypeAlias = "tuple[int, np.dtype[Any], tuple[int, ...]]"

# Where ``device=`` puts batches: on a device that the copier copies to, on one that they are moved
# to when they are delivered, or, as None, nowhere else: they stay in the CPU's memory.
TargetDevice: TypeAlias = "Device | StreamlessDevice | None"


class Event(Protocol):
    """A place in the copier's stream."""

    def synchronize(self) -> None:
        """Wait, on the host, for all copies before it."""


class Device(Protocol):
    """A device that batches are copied to.

    Threads:
        here, keep, receive: consumer.
        allocate: any.
        pin: worker.
        adopt, copy, move, record: copier.
    """

    full: type[BaseException]  # raised where no memory is left on the device

    def here(self) -> Device:
        """Return a device for one epoch, with a stream of its own.

        Without an index it is the calling thread's current device.
        """

    def allocate(self, nbytes: int) -> tuple[memoryview[Any], DeviceMemory]:
        """Return page-locked memory, as bytes to write and as the source that `copy` takes."""

    def adopt(self) -> None:
        """Make the device, and a stream of its own, current in the calling thread."""

    def copy(self, source: DeviceMemory, leaves: Sequence[Leaf]) -> list[Any]:
        """Begin to copy leaves out of page-locked memory.

        Args:
            source: As `allocate` returned it.
            leaves: Where each lies.

        Returns:
            A tensor on the device for each, in memory of its own.
        """

    def pin(self, batch: Any) -> Any:
        """Copy a batch that lies in no slot to page-locked memory.

        Returns:
            An argument for `move`; it refers to all memory that is copied from.
        """

    def move(self, batch: Any) -> tuple[Any, list[Any]]:
        """Begin to copy a pinned batch; return it on the device, and a list of its tensors."""

    def record(self) -> Event:
        """Return an event behind all copies that were begun."""

    def keep(self) -> DeviceMemory:
        """Return what keeps tensors of `receive`; none yet."""

    def receive(self, event: Event, tensors: Iterable[Any]) -> Event | None:
        """Let the calling thread's current stream wait for copies, and use the copied tensors.

        The host does not wait.

        Args:
            event: Behind the copies.
            tensors: On the device; their memory is not reused before that stream is done with it.

        Returns:
            An event in that stream, before it uses the tensors; None if the device records none.
        """


@dataclass(frozen=True, slots=True)
class StreamlessDevice:
    """A device that has no streams to copy on: batches are moved there without the copier.

    Threads:
        move: consumer.
    """

    move: Callable[[Any], Any]  # returns a batch on the device
