"""A batch that is being made: filled row by row, finished, then taken or copied to a device.

Here are batches that a function makes of a list of samples, and of a single one that is converted
alone.
"""

from __future__ import annotations

import itertools
from collections import UserDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._batch.array_rows import as_list
from threadloader._batch.parts import ATOMS
from threadloader._lifetime import leak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._torch.device import Device


MAX_PARTS = 64  # the most parts of a batch whose bytes are counted
LONG, FEW = 16, 4  # entries of a list: of a longer one the first few stand for all

# An error of the collate function, and the row that caused it; None if that is not known.
CollateFailure = tuple[BaseException, int | None]


class DeviceBatch(NamedTuple):
    """A batch on its way to a device."""

    batch: Any  # of tensors on the device
    tensors: list[Any]  # all tensors in it, for the device's `receive`


class Filling:
    """A batch that is being made: rows arrive in any order, then it is finished, then taken.

    Args:
        function: Makes the batch.
        pin: Puts it into page-locked memory then; None to leave it.

    Attributes:
        nbytes: Of the batch; 0 if that is not known, and before it is finished.

    Threads:
        write, leave_out: shared; one of them, once for each row.
        is_complete, and finish unless it is: the worker that wrote the last row, after all others.
        take: consumer, once, after that.
        copy_to, then release or retire: copier, instead; `copy_to` again where it fails.
    """

    __slots__ = ("__weakref__", "_function", "_left_out", "_pin", "_result", "nbytes")

    def __init__(self, function: Callable[[Any], Any], pin: Callable[[Any], Any] | None) -> None:
        self._function = function
        self._pin = pin
        self._left_out: set[int] = set()  # rows; adding to a set is atomic on both builds
        self._result: Any = None
        self.nbytes = 0

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Add rows ``start`` to ``stop``.

        Args:
            start: First row.
            stop: Row after the last.
            samples: A list with a sample for each row, or `Rows`; for a whole batch any object that
                ``__getitems__`` returned.
        """
        raise NotImplementedError

    def leave_out(self, row: int) -> None:
        """Make the batch without a row."""
        self._left_out.add(row)

    def is_complete(self) -> bool:
        """Whether all rows are in their place, so that there is nothing to finish."""
        return False

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> CollateFailure | None:
        """Collate the samples that are not in their place yet; return the error, if there is one.

        Args:
            collate_fn: The calling worker's own copy of the user's function; None for no copy.
        """
        raise NotImplementedError

    def _collate(
        self,
        function: Callable[[Any], Any],
        samples: Any,
        *,
        default: bool,
        rows: Sequence[int] | None,
    ) -> CollateFailure | None:
        """Make the batch by a function; return its error, and of a default one the row at fault.

        Args:
            function: The collate function.
            samples: Its argument.
            default: Whether the function is ours or torch's.
            rows: The rows of the samples if some were left out.
        """
        row = None
        try:
            batch = function(samples)
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            if default:
                from threadloader._batch.odd_sample import (  # noqa: PLC0415  # for messages
                    advise,
                    odd_row,
                )

                row = odd_row(function, samples, error)
                advise(error)
            return error, row if row is None or rows is None else rows[row]
        finally:
            samples = None  # an error keeps this frame
        try:
            self.nbytes = _nbytes_of(batch)
            self._result = batch if self._pin is None else self._pin(batch)
        except BaseException as error:  # noqa: BLE001  # likewise; no row caused it
            return error, None
        return None

    def take(self) -> Any:
        """Return the batch."""
        result, self._result = self._result, None
        return result

    def copy_to(self, device: Device) -> DeviceBatch:
        """Begin to copy the batch to a device."""
        return DeviceBatch(*device.move(self._result))

    def release(self) -> None:
        """Give the memory back after all copies from it have finished."""
        self._result = None

    def retire(self) -> None:
        """Never use the memory again: nobody knows whether a copy still reads it."""
        leak(self._result)


class ListFilling(Filling):
    """A batch that is collated from a list of its samples.

    Args:
        function: Makes the batch.
        pin: See `Filling`.
        default: Whether the function is ours or torch's, and collates.
        single: Whether it is called with the one sample, and not with a list of samples
            (``batch_size=None``).
    """

    __slots__ = ("_default", "_parts", "_single")

    def __init__(
        self,
        function: Callable[[Any], Any],
        pin: Callable[[Any], Any] | None,
        *,
        default: bool,
        single: bool,
    ) -> None:
        super().__init__(function, pin)
        self._default = default
        self._single = single
        self._parts: dict[int, Any] = {}  # first row -> samples; see `Filling.write`

    def write(self, start: int, stop: int, samples: Any) -> None:  # noqa: ARG002
        """Add samples; see `Filling`."""
        self._parts[start] = as_list(samples)

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> CollateFailure | None:
        """Collate; see `Filling`."""
        function = self._function if collate_fn is None else collate_fn
        starts = sorted(self._parts)
        parts = [self._parts[start] for start in starts]
        if self._left_out and not parts:
            return None
        # One part is passed on as it is: __getitems__ may return any object.
        samples = parts[0] if len(parts) == 1 else [sample for part in parts for sample in part]
        rows = None
        if self._left_out:
            rows = [start + row for start in starts for row in range(len(self._parts[start]))]
        self._parts.clear()
        if self._single:
            samples = samples[0]
        try:
            return self._collate(function, samples, default=self._default, rows=rows)
        finally:
            samples = None  # an error keeps this frame
            parts.clear()


def _nbytes_of(batch: Any) -> int:
    """Return the bytes of the arrays and tensors in lists, tuples and dicts; 0 of all else."""
    nbytes = 0
    parts: list[tuple[Any, int]] = [(batch, 1)]  # and how many each stands for
    for part, times in itertools.islice(parts, MAX_PARTS):  # it grows meanwhile
        if type(part) is _torch.Tensor:
            nbytes += times * _torch.dense_nbytes(part)
        elif type(part) is np.ndarray:
            nbytes += times * part.nbytes
        else:
            more = 1
            inside: Any = ()
            if type(part) is list and len(part) > LONG:
                inside, more = part[:FEW], len(part) // FEW
            elif isinstance(part, (list, tuple)):
                inside = part[:MAX_PARTS]
            elif isinstance(part, (dict, UserDict)):  # a UserDict: transformers' batches
                inside = itertools.islice(part.values(), MAX_PARTS)
            parts += [(each, times * more) for each in inside if type(each) not in ATOMS]
    return nbytes
