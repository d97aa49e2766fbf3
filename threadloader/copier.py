r"""The copier: a thread that copies batches to a device, ahead of the consumer.

::

    planned --put--> waiting --done, and room--> copying --> arrived --take--> your stream
     planner                    copier             |           consumer
                          slot <--event finished--/

It has a stream of its own, so that copies run beside what the consumer computes.  The consumer's
stream waits for the event behind a batch; the consumer itself waits only until the copy was
begun.  A slot is given back when that event has finished, which the copier alone waits for.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition
from typing import TYPE_CHECKING, Any

from threadloader.failure import failure_of_copy
from threadloader.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from threadloader.collate import Filling, Sent
    from threadloader.device import Device, Event
    from threadloader.pool import Job
    from threadloader.work import OpenBatch, Progress

__all__ = ["Copier"]

_TAKEN = object()  # the consumer took a batch: there is room for one more


class Copier:
    """Copies the batches of one epoch.

    Args:
        device: Where to.
        progress: Of the epoch.
        ahead: Batches that may be on the device beside the one that is due, at least 1.
        in_order: Whether they are copied in the order in which they were planned.
        name: Prefix of the thread's name.

    Threads:
        put, wait, wait_for_any, has, take: consumer.
        wake: shared, also from a finalizer; it takes no lock.
        nudge, join: shared.
    """

    def __init__(
        self, device: Device, progress: Progress, ahead: int, *, in_order: bool, name: str
    ) -> None:
        self._line = line = _Line(device, progress, 1 + ahead, in_order=in_order)
        self.wake = progress.told = partial(line.inbox.put, None)
        self._pool: Pool[None] = Pool(1, name, partial(_enter, device), role="copier")
        self._pool.put(_Once(partial(_copy_all, line)))

    def put(self, batch: OpenBatch) -> None:
        """Copy a batch once it is done, in its turn."""
        self._line.inbox.put(batch)

    def wait(self, batch: OpenBatch, timeout: float | None = None) -> bool:
        """Wait until the copy of ``batch`` was begun, or the epoch is closed.

        Args:
            batch: The batch; if it failed, there is nothing to wait for.
            timeout: Seconds; None waits for ever.

        Returns:
            False if it takes too long.
        """
        return self._line.wait((batch,), timeout)

    def wait_for_any(self, batches: Iterable[OpenBatch], timeout: float | None = None) -> bool:
        """Wait until that of one of ``batches`` was, as `wait` does for one."""
        return self._line.wait(tuple(batches), timeout)

    def has(self, batch: OpenBatch) -> bool:
        """Whether there is nothing to wait for."""
        return batch.arrived

    def take(self, batch: OpenBatch) -> Sent:
        """Let the calling thread's stream have a batch that arrived without a failure."""
        assert batch.sent is not None  # noqa: S101  # for the type checker: `has` told so
        (sent, event), batch.sent = batch.sent, None
        self._line.device.receive(event, sent.tensors)
        self._line.inbox.put(_TAKEN)
        return sent

    def nudge(self) -> None:
        """Let who waits for a batch see that the epoch is closed."""
        self._line.nudge()

    def join(self) -> None:
        """Wait until the thread has ended; the epoch is closed."""
        self._pool.stop()
        self._pool.join()


class _Line:
    """What a copier and its thread share; it references neither.

    Invariants, whenever ``_changed`` is not held:
        1. A batch that has arrived never changes again, but for what the consumer takes of it.

    Threads:
        wait: consumer.
        arrived: copier.
        nudge: shared.
    """

    def __init__(self, device: Device, progress: Progress, room: int, *, in_order: bool) -> None:
        self.device = device
        self.progress = progress
        self.room = room  # batches on the device that the consumer did not take, at the most
        self.in_order = in_order
        # What the copier is told: a batch that was planned, `_TAKEN`, or None to look again.
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self._changed = Condition()
        # All below, and whether a batch has arrived: guarded by _changed.
        self._awaited: tuple[OpenBatch, ...] = ()

    def wait(self, batches: tuple[OpenBatch, ...], timeout: float | None) -> bool:
        # Unlocked first: one attribute load each, and a batch that has arrived stays so.
        if any(batch.arrived for batch in batches):
            return True
        with self._changed:
            self._awaited = batches
            try:
                return self._changed.wait_for(
                    lambda: self.progress.cancelled or any(batch.arrived for batch in batches),
                    timeout,
                )
            finally:
                self._awaited = ()

    def arrived(self, batch: OpenBatch) -> None:
        with self._changed:
            batch.arrived = True
            if batch in self._awaited:
                self._changed.notify_all()

    def nudge(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Once:
    """The one work of a copier's thread: a job that ends with the epoch."""

    def __init__(self, job: Job[None]) -> None:
        self._job: Job[None] | None = job

    def claim(self) -> Job[None] | None:
        job, self._job = self._job, None
        return job

    def jobs(self) -> int:
        return 1


@contextmanager
def _enter(device: Device, number: int) -> Iterator[None]:  # noqa: ARG001  # there is one
    """The context of the copier's life."""
    device.adopt()
    yield


def _copy_all(line: _Line, worker: None) -> None:  # noqa: ARG001  # as a pool's job
    """Copy batches until the epoch is closed."""
    waiting: deque[OpenBatch] = deque()
    flying: deque[tuple[Event, Filling]] = deque()  # copies that were begun, in their order
    room = line.room
    try:
        while not line.progress.cancelled:
            message = _next_message(line, flying)
            if message is _TAKEN:
                room += 1
            elif message is not None:
                waiting.append(message)
            message = None
            while (batch := _next_done(waiting, line.in_order)) is not None:
                if batch.failure is None and not batch.exhausted:
                    if not room:
                        break
                    room -= 1
                    _send(batch, line.device, flying)
                waiting.remove(batch)
                line.arrived(batch)
            batch = None
    finally:
        waiting.clear()
        while flying:
            _land(flying)


def _next_message(line: _Line, flying: deque[tuple[Event, Filling]]) -> Any:
    """Return what the copier is told next; until then, give back slots."""
    while True:
        while flying and flying[0][0].query():
            _land(flying)
        try:
            return line.inbox.get_nowait()
        except Empty:
            if not flying:
                return line.inbox.get()
        _land(flying)  # there is nothing else to do


def _next_done(waiting: deque[OpenBatch], in_order: bool) -> OpenBatch | None:
    """Return the batch that is copied next; None if none is done whose turn it is."""
    for batch in waiting:
        if batch.done:
            return batch
        if in_order:
            break
    return None


def _send(batch: OpenBatch, device: Device, flying: deque[tuple[Event, Filling]]) -> None:
    """Begin to copy a batch; what goes wrong, no memory on the device say, is its failure."""
    filling = batch.filling
    sent = None
    try:
        try:
            sent = filling.send(device)
        finally:
            # Also after an error: a part of it may be on its way.
            event = device.record()
            flying.append((event, filling))
        batch.sent = sent, event
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        batch.failure = failure_of_copy(error, batch.plan, device)
    finally:
        sent = None
        del batch, filling


def _land(flying: deque[tuple[Event, Filling]]) -> None:
    """Wait for the oldest copy, and give back what it was copied from."""
    event, filling = flying.popleft()
    with suppress(Exception):  # the device has failed: the consumer is told by a later copy
        event.synchronize()
        filling.let_go()
