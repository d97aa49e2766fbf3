"""Batches that are collated from a list of their samples, or single samples, not collated."""

from __future__ import annotations

import itertools
from collections import UserDict
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._batch.filling import Sent
from threadloader._batch.misfit import advise, odd_row
from threadloader._fetch.array_rows import listed
from threadloader._lifetime.leaking import leak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._batch.filling import Failed
    from threadloader._torch.device import Device

__all__ = ["ListFilling", "SampleFilling", "collated"]

MAX_PARTS = 64  # of a batch whose bytes are counted; one of more parts counts as far as that


class _WholeFilling:
    """What a function of the user's, or torch's, makes whole: a `Filling` but for its rows."""

    __slots__ = ("_function", "_left_out", "_pin", "_result", "nbytes")

    def __init__(self, function: Callable[[Any], Any], pin: Callable[[Any], Any] | None) -> None:
        self._function = function
        self._pin = pin  # puts the batch into page-locked memory; None for nothing
        self._left_out = False
        self._result: Any = None
        self.nbytes = 0

    def leave_out(self, row: int) -> None:  # noqa: ARG002
        """Make the batch without a row; see `Filling`."""
        self._left_out = True

    def take(self) -> Any:
        """Return the batch."""
        result, self._result = self._result, None
        return result

    def send(self, device: Device) -> Sent:
        """Begin to copy the batch to a device."""
        return Sent(*device.move(self._result))

    def let_go(self) -> None:
        """Drop what was copied from."""
        self._result = None

    def lose(self) -> None:
        """Keep it for ever instead."""
        leak(self._result)


class ListFilling(_WholeFilling):
    """A batch that is collated from a list of its samples."""

    __slots__ = ("_default", "_parts")

    def __init__(
        self, function: Callable[[Any], Any], pin: Callable[[Any], Any] | None, *, default: bool
    ) -> None:
        super().__init__(function, pin)
        self._default = default
        self._parts: dict[int, Any] = {}  # first row -> samples; see `Filling.write`

    def write(self, start: int, stop: int, samples: Any) -> None:  # noqa: ARG002
        """Add samples; see `Filling`."""
        self._parts[start] = listed(samples)

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> Failed | None:
        """Collate; see `Filling`."""
        function = self._function if collate_fn is None else collate_fn
        parts = [self._parts[start] for start in sorted(self._parts)]
        if self._left_out and not parts:
            return None
        # One part is passed on as it is: __getitems__ may return any object.
        samples = parts[0] if len(parts) == 1 else [sample for part in parts for sample in part]
        rows = self._rows() if self._left_out else None
        self._parts.clear()
        self._result, self.nbytes, failed = collated(
            function, samples, self._pin, default=self._default, rows=rows
        )
        return failed

    def _rows(self) -> list[int]:
        """Return the rows that there are samples for."""
        starts = sorted(self._parts)
        return [start + row for start in starts for row in range(len(self._parts[start]))]


class SampleFilling(_WholeFilling):
    """A single sample, converted but not collated (``batch_size=None``)."""

    __slots__ = ("_sample",)

    def __init__(self, function: Callable[[Any], Any], pin: Callable[[Any], Any] | None) -> None:
        super().__init__(function, pin)
        self._sample: Any = None

    def write(self, start: int, stop: int, samples: Any) -> None:  # noqa: ARG002
        """Add samples; see `Filling`."""
        self._sample = listed(samples)[0]

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> Failed | None:
        """Collate; see `Filling`."""
        if self._left_out:
            return None
        function = self._function if collate_fn is None else collate_fn
        self._result, self.nbytes, failed = collated(
            function, self._sample, self._pin, default=False
        )
        self._sample = None
        return failed


def collated(
    function: Callable[[Any], Any],
    samples: Any,
    pin: Callable[[Any], Any] | None,
    *,
    default: bool,
    rows: Sequence[int] | None = None,
) -> tuple[Any, int, Failed | None]:
    """Call a collate function; what it raises is returned, with the odd row if it is ours.

    Args:
        function: The collate function.
        samples: Its argument.
        pin: Puts the batch into page-locked memory; None for nothing.
        default: Whether it is ours, or torch's.
        rows: Of the samples, where some were left out.

    Returns:
        The batch, its bytes, and what failed.
    """
    try:
        batch = function(samples)
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        if not default:
            return None, 0, (error, None)
        row = odd_row(function, samples, error)
        advise(error)
        return None, 0, (error, row if row is None or rows is None else rows[row])
    try:
        nbytes = _nbytes_of(batch)
        return batch if pin is None else pin(batch), nbytes, None
    except BaseException as error:  # noqa: BLE001  # likewise, of no row
        return None, 0, (error, None)


def _nbytes_of(batch: Any) -> int:
    """Return the bytes of the arrays and tensors in lists, tuples and dicts; 0 of all else."""
    nbytes, parts, seen = 0, [batch], 0
    while parts and seen < MAX_PARTS:
        part = parts.pop()
        seen += 1
        if isinstance(part, (dict, UserDict)):  # transformers' batches are of the second kind
            parts += itertools.islice(part.values(), MAX_PARTS)
        elif isinstance(part, (list, tuple)):
            parts += part[:MAX_PARTS]
        elif type(part) is np.ndarray:
            nbytes += part.nbytes
        elif type(part) is _torch.Tensor:
            nbytes += _torch.dense_nbytes(part)
    return nbytes
