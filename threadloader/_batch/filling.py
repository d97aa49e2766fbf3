"""A batch on its way: filled row by row, finished, then taken, or sent to a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._torch.device import Device

__all__ = ["Failed", "Filling", "Sent"]

# An error of the collate function, and the row that is to blame, where that is known.
Failed = tuple[BaseException, int | None]


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch on its way to a device."""

    batch: Any  # there
    tensors: list[Any]  # all that it consists of, as the device's `receive` takes them


class Filling(Protocol):
    """A batch on its way: rows arrive in any order, then it is finished, then taken.

    Threads:
        write, leave_out: shared, each row once, by either.
        finish: the worker that wrote the last row, after all others.
        take: consumer, once, after `finish`.
        send, then let_go or lose: copier, instead; `send` again where it fails.
    """

    nbytes: int  # that the batch takes; 0 where nobody knows, and before it is finished

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Add rows ``start`` to ``stop``.

        Args:
            start: First row.
            stop: Row after the last.
            samples: A list with one sample a row; only where it is the whole batch any object,
                as ``__getitems__`` returned it.
        """

    def leave_out(self, row: int) -> None:
        """Make the batch without a row."""

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> Failed | None:
        """Collate what is not collated yet; errors are returned, free of frames of ours.

        Args:
            collate_fn: The calling worker's own copy of the user's; None for that itself.
        """

    def take(self) -> Any:
        """Return the batch."""

    def send(self, device: Device) -> Sent:
        """Begin to copy the batch to a device."""

    def let_go(self) -> None:
        """Give back what was copied from, all copies being finished."""

    def lose(self) -> None:
        """Give it up instead, where nobody knows whether they are."""
