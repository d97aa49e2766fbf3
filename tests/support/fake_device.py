"""A device that is none: its copies finish late and in any order, and it watches over its rules.

It notes in `broken` whoever writes a slot, or fills it again, before the copy from it has
finished; whoever frees one after an event has failed, or in a forked child; whoever but the copier
copies, or waits for a copy on the host; and whatever memory of a batch the consumer's stream was
not told of.  What was not received has no data in it.  It gives NumPy arrays, so that it serves
without torch, too.
"""

from __future__ import annotations

import math
import os
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.patience import PATIENCE
from threadloader._lifetime import DeviceMemory
from threadloader._torch.device import Leaf

__all__ = ["FakeDevice", "OutOfMemoryError"]

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
    def __init__(self, stream: _Stream, behind: list[_Copy], made: list[Any]) -> None:
        self.stream = stream
        self.behind = behind
        self.made = made  # memory that came into being since the event before

    def query(self) -> bool:
        raise NotImplementedError  # it would hold the GIL

    def synchronize(self) -> None:
        self.stream.device.wait_on_host(self)


class _Reached:
    """A place in the consumer's stream; the copier waits for it before there is too much there."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def query(self) -> bool:
        raise NotImplementedError

    def synchronize(self) -> None:
        self._stream.check_thread("waited for the consumer's stream")


class FakeDevice:
    """See the module.

    Args:
        seed: Of the order in which copies finish.
        fails: Told the number of a copy, from 0, returns whether there is no memory for it; there
            is none when it is tried again, either.
        pending: The same, where there is memory then.
        errors: What a call of that name raises, each time.
    """

    def __init__(
        self,
        seed: int = 0,
        fails: Callable[[int], bool] | None = None,
        errors: dict[str, BaseException] | None = None,
        *,
        pending: Callable[[int], bool] | None = None,
    ) -> None:
        self._pending = pending
        self._refused: tuple[int, int] | None = None  # the copy that there was no memory for
        self._random = random.Random(seed)
        self._fails = fails
        self.errors = errors or {}
        self._pid = os.getpid()
        self._lost = False  # whether an event has failed; only ever set
        self._changed = Condition()
        # All below: guarded by _changed.
        self.held = False
        self.waiting = 0  # threads, for a copy that is held
        self.broken: list[str] = []  # rules
        self.slots = 0  # allocated
        self.copies = 0  # begun
        self.moves = 0  # of batches in no slot
        self.most_ahead = 0  # batches of one stream that were on the device and not received
        self.received: list[Any] = []  # memory that a consumer's stream was told of
        self.receivers: list[Thread] = []  # the thread of each batch
        self.pinners: list[Thread] = []  # the thread of each batch that was page-locked
        self._unfinished: list[_Copy] = []

    def __str__(self) -> str:
        return "fake:0"

    def here(self) -> _Stream:
        return _Stream(self)

    def allocate(self, nbytes: int) -> tuple[memoryview[Any], DeviceMemory]:
        self.may_raise("allocate")
        source: Any = np.zeros(nbytes, np.uint8)
        weakref.finalize(source, self._freed).atexit = False
        with self._changed:
            self.slots += 1
        return memoryview(source), DeviceMemory(source, self.check)

    def pin(self, batch: Any) -> Any:
        """Return a batch, marked."""
        self.may_raise("pin")
        with self._changed:
            self.pinners.append(current_thread())
        return "pinned", batch

    def keep(self) -> DeviceMemory:
        return DeviceMemory(None, self.check)

    def check(self) -> None:
        """Raise if page-locked memory must not be freed any more."""
        if self._lost:
            msg = "the device was lost"
            raise RuntimeError(msg)

    def _freed(self) -> None:
        """Note memory that may not be freed; called at any moment, also inside our own lock."""
        if self._pid != os.getpid():
            self.broken.append("a slot was freed in a forked child")
        elif self._lost:
            self.broken.append("a slot was freed after the device had failed")

    def receive(self, event: Any, tensors: Iterable[Any]) -> None:
        raise NotImplementedError  # of a stream; `ThreadLoader` knows a device by it

    def hold(self) -> None:
        """Let no copy finish before `release`."""
        with self._changed:
            self.held = True

    def release(self) -> None:
        """Let copies finish, all that were received at once."""
        with self._changed:
            self.held = False
            self._changed.notify_all()

    def await_waiter(self) -> None:
        """Wait until a thread waits for a copy that is held."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting, PATIENCE), "nobody waits for a copy"

    def may_raise(self, name: str) -> None:
        if name in self.errors:
            self._lost |= name in ("record", "synchronize")
            raise self.errors[name]

    def begin(
        self, source: NDArray[np.uint8], start: int, stop: int, own: list[_Copy]
    ) -> NDArray[np.uint8]:
        """Begin a copy, and add it to those of the same batch."""
        with self._changed:
            again = self._refused == (id(source), start)
            number, self.copies = self.copies, self.copies + (not again)
            refused = again or (self._fails is not None and self._fails(number))
            if refused:
                self._refused = None if again else (id(source), start)
            if refused or (self._pending is not None and self._pending(number)):
                msg = f"no memory for copy {number}"
                raise OutOfMemoryError(msg)
            part = source[start:stop]
            others = [other for other in self._unfinished if other not in own]
            if any(np.may_share_memory(part, other.source) for other in others):
                self.broken.append("a slot was filled again before the copy from it had finished")
            target = np.full(stop - start, NOT_THERE, np.uint8)
            own.append(_Copy(part, target, part.tobytes()))
            self._unfinished.append(own[-1])
            return target

    def unfinished(self) -> list[_Copy]:
        with self._changed:
            return list(self._unfinished)

    def moved(self) -> None:
        with self._changed:
            self.moves += 1

    def is_ahead(self, batches: int) -> None:
        with self._changed:
            self.most_ahead = max(batches, self.most_ahead)

    def breaks(self, rule: str) -> None:
        with self._changed:
            self.broken.append(rule)

    def go_on(self) -> None:
        """Let some copies finish, or none."""
        with self._changed:
            for copy in self._random.sample(self._unfinished, len(self._unfinished)):
                if not self.held and self._random.random() < 0.3:
                    self._finish(copy)

    def wait_on_host(self, event: _Event) -> None:
        """Let copies finish, for a thread that waits."""
        event.stream.check_thread("waited for a copy on the host")
        self.may_raise("synchronize")
        with self._changed:
            self.waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: not self.held, PATIENCE)
            self.waiting -= 1
        self.finish(event.behind)

    def receive_all(self, event: _Event, tensors: list[Any]) -> None:
        """Let a consumer have the copies before an event; it finds the data unless it is held."""
        self.may_raise("receive")
        with self._changed:
            if list(map(id, tensors)) != list(map(id, event.made)):
                self.broken.append("the consumer's stream was not told of a batch's memory")
            self.received += tensors
            self.receivers.append(current_thread())
            held = self.held
        if not held:
            self.finish(event.behind)

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


class _Stream:
    """The device during one epoch; see `threadloader._torch.device.Device`."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.full = OutOfMemoryError
        self.allocate = device.allocate
        self.keep = device.keep
        self._copier: Thread | None = None
        self._made: list[Any] = []  # memory, since the last event
        self._begun: list[_Copy] = []  # since then
        self._there = False  # whether a whole batch was begun since then
        self._changed = Condition()
        self._ahead = 0  # batches that were not received; guarded by _changed

    def __str__(self) -> str:
        return str(self.device)

    def here(self) -> _Stream:
        raise NotImplementedError  # it is already

    def adopt(self) -> None:
        self._copier = current_thread()
        self.device.may_raise("adopt")

    def copy(self, source: DeviceMemory, leaves: Sequence[Leaf]) -> list[Any]:
        self.check_thread("began a copy")
        made = []
        for offset, dtype, shape in leaves:
            nbytes = math.prod(shape) * dtype.itemsize
            memory = self.device.begin(source.memory, offset, offset + nbytes, self._begun)
            made.append(np.ndarray(shape, dtype, memory))
        self._made += made
        self._there = True
        return made

    def pin(self, batch: Any) -> Any:
        return self.device.pin(batch)

    def move(self, batch: Any) -> tuple[Any, list[Any]]:
        """Return the batch, marked."""
        self.check_thread("moved a batch")
        pinned, batch = batch
        if pinned != "pinned":
            self.device.breaks("a batch was moved that is not page-locked")
        self.device.moved()
        self.device.may_raise("move")
        marked = ("moved", batch)
        self._made.append(marked)
        self._there = True
        return marked, [marked]

    def record(self) -> _Event:
        self.check_thread("recorded an event")
        self.device.may_raise("record")
        self.device.go_on()
        if self._there:
            with self._changed:
                self._ahead += 1
                self.device.is_ahead(self._ahead)
        made, self._made, self._begun, self._there = self._made, [], [], False
        return _Event(self, self.device.unfinished(), made)

    def receive(self, event: _Event, tensors: Iterable[Any]) -> _Reached:
        with self._changed:
            self._ahead -= 1
        self.device.receive_all(event, list(tensors))
        return _Reached(self)

    def check_thread(self, what: str) -> None:
        """Note that a thread does what only the copier may."""
        if current_thread() is not self._copier:
            self.device.breaks(f"{current_thread().name} {what}")
