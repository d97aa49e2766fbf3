"""A batch that is being made: filled row by row, finished, then taken or copied to a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._torch.device import Device

__all__ = ["CollateFailure", "DeviceBatch", "Filling"]

# An error of the collate function, and the row that caused it; None if that is not known.
CollateFailure = tuple[BaseException, int | None]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A batch on its way to a device."""

    batch: Any  # of tensors on the device
    tensors: list[Any]  # all tensors in it, for the device's `receive`


class Filling(Protocol):
    """A batch that is being made: rows arrive in any order, then it is finished, then taken.

    Threads:
        write, leave_out: shared; one of them, once for each row.
        is_complete, and finish unless it is: the worker that wrote the last row, after all others.
        take: consumer, once, after that.
        copy_to, then release or retire: copier, instead; `copy_to` again where it fails.
    """

    nbytes: int  # of the batch; 0 if that is not known, and before it is finished

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Add rows ``start`` to ``stop``.

        Args:
            start: First row.
            stop: Row after the last.
            samples: A list with a sample for each row, or `Rows`; for a whole batch any object that
                ``__getitems__`` returned.
        """

    def leave_out(self, row: int) -> None:
        """Make the batch without a row."""

    def is_complete(self) -> bool:
        """Whether all rows are in their place, so that there is nothing to finish."""

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> CollateFailure | None:
        """Collate the samples that are not in their place yet; return the error, if there is one.

        Args:
            collate_fn: The calling worker's own copy of the user's function; None for no copy.
        """

    def take(self) -> Any:
        """Return the batch."""

    def copy_to(self, device: Device) -> DeviceBatch:
        """Begin to copy the batch to a device."""

    def release(self) -> None:
        """Give the memory back after all copies from it have finished."""

    def retire(self) -> None:
        """Never use the memory again: nobody knows whether a copy still reads it."""
