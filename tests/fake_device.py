"""A device that is none: its copies finish late and in any order, and it watches over its rules.

It notes in `broken` whoever writes a slot before the copy from it has finished, and whoever but
the copier waits for a copy on the host; and what was not received has no data in it.  What it
gives are NumPy arrays, so that it serves without torch, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from threading import Condition, current_thread
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["NOT_THERE", "FakeDevice", "OutOfMemoryError"]

NOT_THERE = 0xA5  # every byte on the device to which no copy has finished


class OutOfMemoryError(RuntimeError):
    """The device has no memory left."""


@dataclass(eq=False)
class _Copy:
    source: NDArray[np.uint8]
    target: NDArray[np.uint8]
    expected: bytes  # of the source, when the copy was begun
    finished: bool = False


class _Event:
    def __init__(self, device: FakeDevice, behind: list[_Copy]) -> None:
        self._device = device
        self._behind = behind

    def query(self) -> bool:
        return self._device.look_at(self._behind)

    def synchronize(self) -> None:
        self._device.wait_on_host(self._behind)

    def reach(self) -> None:
        self._device.finish(self._behind)


class FakeDevice:
    """See the module.

    Args:
        seed: Of the order in which copies finish.
        fails: Told the number of a copy, from 0, returns whether there is no memory for it.
    """

    def __init__(self, seed: int = 0, fails: Callable[[int], bool] | None = None) -> None:
        self._random = random.Random(seed)
        self._fails = fails
        self._changed = Condition()
        # All below: guarded by _changed.
        self.broken: list[str] = []  # rules
        self.adopted: list[str] = []  # the threads' names
        self.slots = 0  # allocated
        self.copies = 0  # begun
        self.moves = 0  # of batches in no slot
        self.received: list[Any] = []  # memory that a consumer's stream was told of
        self._unfinished: list[_Copy] = []

    def here(self) -> FakeDevice:
        return self

    def allocate(self, nbytes: int) -> tuple[memoryview[Any], Any]:
        source: Any = np.zeros(nbytes, np.uint8)
        with self._changed:
            self.slots += 1
        return memoryview(source), source

    def adopt(self) -> None:
        with self._changed:
            self.adopted.append(current_thread().name)

    def copy(self, source: Any, spans: Sequence[tuple[int, int]]) -> list[Any]:
        targets = []
        for start, stop in spans:
            with self._changed:
                number, self.copies = self.copies, self.copies + 1
                if self._fails is not None and self._fails(number):
                    msg = f"no memory for copy {number}"
                    raise OutOfMemoryError(msg)
                part = source[start:stop]
                target = np.full(stop - start, NOT_THERE, np.uint8)
                self._unfinished.append(_Copy(part, target, part.tobytes()))
            targets.append(target)
        return targets

    def move(self, batch: Any) -> tuple[Any, list[Any]]:
        with self._changed:
            self.moves += 1
        return ("moved", batch), []

    def view(self, memory: Any, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        return np.ndarray(shape, dtype, memory, offset)

    def record(self) -> _Event:
        with self._changed:
            return _Event(self, list(self._unfinished))

    def receive(self, event: Any, tensors: Iterable[Any]) -> None:
        with self._changed:
            self.received += tensors
        event.reach()  # in the consumer's stream: what it computes next finds the data

    def look_at(self, copies: list[_Copy]) -> bool:
        """Let some copies finish, or none; return whether all of these have."""
        with self._changed:
            for copy in self._random.sample(self._unfinished, len(self._unfinished)):
                if self._random.random() < 0.3:
                    self._finish(copy)
            return all(copy.finished for copy in copies)

    def wait_on_host(self, copies: list[_Copy]) -> None:
        """Let copies finish, for a thread that waits."""
        with self._changed:
            if "-copier-" not in current_thread().name:
                self.broken.append(f"{current_thread().name} waited for a copy on the host")
        self.finish(copies)

    def finish(self, copies: list[_Copy]) -> None:
        """Let copies finish, in any order."""
        with self._changed:
            for copy in self._random.sample(copies, len(copies)):
                self._finish(copy)

    def _finish(self, copy: _Copy) -> None:
        """Let one copy finish.  Call with ``_changed`` held."""
        if copy.finished:
            return
        if copy.source.tobytes() != copy.expected:
            self.broken.append("a slot was written before the copy from it had finished")
        copy.target[:] = copy.source
        copy.finished = True
        self._unfinished.remove(copy)
