"""Batches that are collated from a list of their samples, or single samples, not collated."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from threadloader.filling import Sent
from threadloader.gather import listed
from threadloader.inference import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader.device import Device
    from threadloader.filling import Failed

__all__ = ["ListFilling", "SampleFilling", "collated"]


class ListFilling:
    """A batch that is collated from a list of its samples."""

    __slots__ = ("_default", "_function", "_left_out", "_parts", "_result")

    def __init__(self, function: Callable[[Any], Any], *, default: bool) -> None:
        self._function = function
        self._default = default
        self._parts: dict[int, Any] = {}  # first row -> samples; see `Filling.write`
        self._left_out = False
        self._result: Any = None

    def write(self, start: int, stop: int, samples: Any) -> None:  # noqa: ARG002
        """Add samples; see `Filling`."""
        self._parts[start] = listed(samples)

    def leave_out(self, row: int) -> None:  # noqa: ARG002
        """Make the batch without a row; see `Filling`."""
        self._left_out = True

    def finish(self) -> Failed | None:
        """Collate; see `Filling`."""
        parts = [self._parts[start] for start in sorted(self._parts)]
        if self._left_out and not parts:
            return None
        # One part is passed on as it is: __getitems__ may return any object.
        samples = parts[0] if len(parts) == 1 else [sample for part in parts for sample in part]
        rows = [
            start + row
            for start, part in sorted(self._parts.items())
            for row in range(len(part) if self._left_out else 0)
        ]
        self._parts.clear()
        self._result, failed = collated(self._function, samples, default=self._default)
        if failed is None or failed[1] is None or not self._left_out:
            return failed
        return failed[0], rows[failed[1]]

    def take(self) -> Any:
        """Return the batch."""
        result, self._result = self._result, None
        return result

    def send(self, device: Device) -> Sent:
        """Begin to copy the batch to a device."""
        return Sent(*device.move(self.take()), nbytes=0)

    def let_go(self) -> None:
        """Do nothing: torch's allocator keeps what is copied from."""

    def lose(self) -> None:
        """Do nothing, likewise."""


class SampleFilling:
    """A single sample, converted but not collated (``batch_size=None``)."""

    __slots__ = ("_function", "_left_out", "_result", "_sample")

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._left_out = False
        self._sample: Any = None
        self._result: Any = None

    def leave_out(self, row: int) -> None:  # noqa: ARG002
        """Make the batch without a row; see `Filling`."""
        self._left_out = True

    def write(self, start: int, stop: int, samples: Any) -> None:  # noqa: ARG002
        """Add samples; see `Filling`."""
        self._sample = listed(samples)[0]

    def finish(self) -> Failed | None:
        """Collate; see `Filling`."""
        if self._left_out:
            return None
        self._result, failed = collated(self._function, self._sample, default=False)
        self._sample = None
        return failed

    def take(self) -> Any:
        """Return the batch."""
        result, self._result = self._result, None
        return result

    def send(self, device: Device) -> Sent:
        """Begin to copy the batch to a device."""
        return Sent(*device.move(self.take()), nbytes=0)

    def let_go(self) -> None:
        """Do nothing: torch's allocator keeps what is copied from."""

    def lose(self) -> None:
        """Do nothing, likewise."""


def collated(
    function: Callable[[Any], Any], samples: Any, *, default: bool
) -> tuple[Any, Failed | None]:
    """Call a collate function; what it raises is returned, with the odd row if it is ours."""
    try:
        return function(samples), None
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        return None, (error, _odd_row(samples) if default else None)


def _odd_row(samples: Any) -> int | None:
    """Return the first row that is not as most rows are, if there is one to name."""
    if not isinstance(samples, list):
        return None
    try:
        looks = [describe(sample) for sample in samples]
    except Exception:  # noqa: BLE001  # a property of the user's; the error to report is another
        return None
    usual = Counter(looks).most_common(1)  # the first of several, so that of two rows the second
    return next((row for row, look in enumerate(looks) if look != usual[0][0]), None)
