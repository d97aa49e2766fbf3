"""What the copier asks of a device: the seam between it and an accelerator.

``_torch`` has the real one; tests have one whose copies finish late and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from threadloader._lifetime.keeping import PageLocked

__all__ = ["Device", "Event", "Leaf", "StreamlessDevice"]

# Where a leaf lies in page-locked memory: its first byte, its dtype, and its shape.
Leaf: TypeAlias = "tuple[int, np.dtype[Any], tuple[int, ...]]"


class Event(Protocol):
    """A place in the copier's stream."""

    def synchronize(self) -> None:
        """Wait, on the host, for all copies before it."""


class Device(Protocol):
    """A device that batches are copied to.

    Threads:
        here, receive: consumer.
        allocate: any.
        pin: worker.
        adopt, copy, move, record: copier.
    """

    full: type[BaseException]  # what is raised where there is no memory left

    def here(self) -> Device:
        """Return it for one epoch, with a stream of its own.

        If no device is named, it is the current one of the calling thread.
        """

    def allocate(self, nbytes: int) -> tuple[memoryview[Any], PageLocked]:
        """Return page-locked memory, and what `copy` takes it by."""

    def adopt(self) -> None:
        """Make the device current in the calling thread, and a stream of its own."""

    def copy(self, source: PageLocked, leaves: Sequence[Leaf]) -> list[Any]:
        """Begin to copy leaves out of page-locked memory.

        Args:
            source: As `allocate` returned it.
            leaves: Where each lies.

        Returns:
            A tensor on the device for each, in memory of its own.
        """

    def pin(self, batch: Any) -> Any:
        """Put a batch that lies in no slot into page-locked memory; return what `move` takes.

        That refers to all that is copied from.
        """

    def move(self, batch: Any) -> tuple[Any, list[Any]]:
        """Begin to copy what `pin` returned; return it on the device, and its tensors."""

    def record(self) -> Event:
        """Return an event behind all copies that were begun."""

    def receive(self, event: Event, tensors: Iterable[Any]) -> Event | None:
        """Let the calling thread's current stream wait for copies, and use what they made.

        The host does not wait.

        Args:
            event: Behind the copies.
            tensors: Memory on the device; not reused before that stream is done with it.

        Returns:
            A place in that stream, before it uses them; None if it is not told.
        """


@dataclass(frozen=True, slots=True)
class StreamlessDevice:
    """A device that has no streams to copy on; no copier is asked to.

    Threads:
        move: consumer.
    """

    move: Callable[[Any], Any]  # returns a batch on the device
