r"""The copier: a thread that copies batches to a device, ahead of the consumer.

::

    planned --put--> waiting --done, and room--> copying --> arrived --take--> your stream
     planner                    copier             |           consumer
                          slot <--event finished--/

The copier has a CUDA stream of its own, so that copies run while the consumer computes.  The
consumer's stream waits for the event behind a batch; the consumer itself waits only until the copy
has begun.  The slot goes back to the ring when that event has finished.  The copier alone waits for
the device on the host: for these events, and for the consumer's stream where the host is far ahead.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._lifetime import DROPPED
from threadloader._report import stages
from threadloader._threads.pool import Pool, SingleJob
from threadloader._worker.failure import failure_of_copy, strip_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.filling import DeviceBatch, Filling
    from threadloader._engine.open_batch import FailedBatch, OpenBatch
    from threadloader._engine.progress import Progress
    from threadloader._threads.pool import ThreadGroup
    from threadloader._torch.device import Device, Event


# How long the interpreter's exit waits for the device.  A thread that is cut off inside of torch
# aborts the process, and a device may be seconds behind: this limit is for one that never answers.
# Unmeasured, a choice.
EXIT_SECONDS = 60.0

_END = object()  # there is nothing more to copy


@dataclass(frozen=True, slots=True)
class _BatchTaken:
    """A message: the consumer took a batch, so there is room for one more."""

    reached: Event | None  # there is room when the consumer's stream has come here; None: at once


class Copier:
    """Copies the batches of one epoch.

    Args:
        device: Batches are copied to it.
        progress: The epoch's.
        device_prefetch: Batches that may be on the device beside the one that is due, at least 1.
        in_order: Whether batches are copied in the order in which they were planned.
        name: Prefix of the thread's name.
        copied: Told the seconds that it took to begin each copy.

    Invariants:
        1. Of a batch that has arrived only ``on_device`` changes, when the consumer takes it.

    Threads:
        start, put, take, drop, end, take_error: consumer.
        wake: shared, also from a finalizer; it takes no lock.
        join: shared.
        failed: copier, or the thread that starts it.
    """

    def __init__(
        self,
        device: Device,
        progress: Progress,
        device_prefetch: int,
        *,
        in_order: bool,
        name: str,
        copied: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.device = device
        self.copied = copied
        self.progress = progress
        self.room = 1 + device_prefetch  # the most batches that are on the device and not taken
        self.in_order = in_order
        self._error: BaseException | None = None  # ended the thread
        # Messages to the thread: a batch that was planned, a batch that was taken, the end, or None
        # to look again.
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.wake = progress.on_change = partial(self.inbox.put, None)
        # Not the method itself, which would lead back here.
        failed = partial(_failed, weakref.ref(self))
        self._pool: Pool[int] = Pool(
            range(1), f"{name}-copier", nullcontext, failed=failed, exit_seconds=EXIT_SECONDS
        )

    @property
    def thread_group(self) -> ThreadGroup[int]:
        """The thread, which may still run when the copier is dropped."""
        return self._pool.thread_group

    def start(self) -> None:
        """Start the thread, once."""
        # The job refers to the pool, so that it always runs.
        self._pool.put(SingleJob(partial(_run, self)))

    def put(self, batch: OpenBatch) -> None:
        """Queue a batch, which is copied once it is done."""
        self.inbox.put(batch)

    def take_error(self) -> BaseException | None:
        """Return the error that ended the thread, once; None if there is none."""
        error, self._error = self._error, None
        return error

    def take(self, batch: OpenBatch) -> DeviceBatch:
        """Return a batch that arrived without a failure, for the calling thread's stream.

        For the copier it is taken when that stream has come here, so that a host that runs ahead of
        its device does not fill the device's memory.
        """
        assert batch.on_device is not None  # noqa: S101  # for the type checker: it has arrived
        (device_batch, event), batch.on_device = batch.on_device, None
        reached = None
        try:
            reached = self.device.receive(event, device_batch.tensors)
        finally:
            self.inbox.put(_BatchTaken(reached))
        return device_batch

    def drop(self, batch: OpenBatch | FailedBatch) -> None:
        """Make room for one more batch if ``batch`` has arrived and was not taken."""
        if batch.on_device is not None:
            batch.on_device = None
            self.inbox.put(_BatchTaken(None))

    def end(self) -> None:
        """End the thread: all batches have arrived."""
        self.inbox.put(_END)

    def failed(self, error: BaseException) -> None:
        """Note the error that ends the thread, of a device that is lost say, and so the epoch."""
        strip_all(error)
        with suppress(BaseException):  # an error that refuses notes
            error.add_note("the copier could not run")
        self._error = error
        self.progress.close()

    def stop(self) -> None:
        """Let the thread end after what it does now."""
        self._pool.stop()

    def join(self) -> None:
        """Wait until the thread has ended; the epoch is closed."""
        self._pool.stop()
        self._pool.join()


def _failed(copier: weakref.ref[Copier], number: int, error: BaseException) -> None:  # noqa: ARG001
    """Note the error that ends the one thread of a copier, if anybody waits for it."""
    if (alive := copier()) is not None:
        alive.failed(error)


def _run(copier: Copier, worker: int) -> None:  # noqa: ARG001
    """Copy batches until the epoch is closed.

    Args:
        copier: Whose thread this is, for this one job.
        worker: Its number, from the pool.
    """
    loop = _CopyLoop(copier)
    try:
        copier.device.adopt()
        loop.run()  # an error ends the thread: see `Copier.failed`
    finally:
        loop.end()
        copier.stop()
        del loop


class _CopyLoop:
    """Copies batches, one after the other, and gives back the slots that they were copied from.

    Threads:
        all: copier.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._waiting: deque[OpenBatch] = deque()  # planned, and not copied
        self._copying: deque[tuple[Event, Filling]] = deque()  # copies under way, oldest first
        self._taken: deque[Event | None] = deque()  # each that was reached makes room for a batch
        self._room = copier.room

    def run(self) -> None:
        """Copy batches until there are no more, or the epoch is closed."""
        while not self._copier.progress.cancelled:
            message = self._next_message()
            if message is _END:
                return
            if isinstance(message, _BatchTaken):
                self._taken.append(message.reached)
            elif message is not None:
                self._waiting.append(message)
            del message
            self._copy_ready()

    def end(self) -> None:
        """Wait for the copies under way, and give back all slots."""
        self._copier.progress.on_change = None
        self._waiting.clear()
        with suppress(Empty):  # a cycle: its batches lead back to it
            while True:
                self._copier.inbox.get_nowait()
        with suppress(Exception):  # the device has failed, and the consumer has that error
            while self._copying:
                self._finish_oldest()
        while self._copying:
            self._copying.popleft()[1].retire()

    def _next_message(self) -> Any:
        """Return the next message; finish copies until there is one.

        `Event.synchronize` and never a query: that holds the GIL, also while the driver is busy.
        """
        copying, inbox = self._copying, self._copier.inbox
        while True:
            try:
                return inbox.get_nowait()
            except Empty:
                if not copying:
                    return inbox.get()
            self._finish_oldest()  # there is nothing else to do

    def _copy_ready(self) -> None:
        """Copy the batches that are done, as far as their turn has come and there is room."""
        while (batch := self._next_ready()) is not None:
            if batch.failure is None and not batch.empty:
                self._copy(batch)
            self._waiting.remove(batch)
            self._copier.progress.arrived(batch)
            if len(self._copying) > self._copier.room:
                self._finish_oldest()

    def _next_ready(self) -> OpenBatch | None:
        """Return the batch that is copied next; None if none is ready."""
        for batch in self._waiting:
            # A batch that failed needs no room.
            if batch.done and (batch.failure or batch.empty or self._has_room()):
                return batch
            if self._copier.in_order:
                break
        return None

    def _has_room(self) -> bool:
        """Whether one more batch may be on the device; may wait for the consumer's stream.

        Otherwise a host that runs ahead of its device would fill the device's memory.
        """
        if not self._room:
            self._await_taken()
        return self._room > 0

    def _await_taken(self) -> None:
        """Wait until the consumer's stream has come to where it took its oldest batch."""
        if self._taken:
            reached = self._taken.popleft()
            if reached is not None:
                reached.synchronize()
            self._room += 1

    def _copy(self, batch: OpenBatch) -> None:
        """Begin to copy a batch; an error, no memory on the device say, is the batch's failure."""
        device, filling = self._copier.device, batch.filling
        device_batch = event = None
        started, tracer = perf_counter(), stages.tracer
        if tracer is not None:
            tracer.begin("copy", self._copier.progress.key, batch.plan.sequence)
        try:
            try:
                device_batch = self._begin_copy(filling)
            finally:
                # Also after an error: a part of the batch may be on its way.
                event = self._record(filling)
            batch.on_device = device_batch, event
            self._room -= 1
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            batch.failure = failure_of_copy(error, batch.plan, device)
        finally:
            self._copier.copied(perf_counter() - started)
            if tracer is not None:
                tracer.end("copy")
            device_batch = event = None
            batch = filling = DROPPED

    def _begin_copy(self, filling: Filling) -> DeviceBatch:
        """Begin to copy; try again if the device had no memory, which may be free in a moment.

        A tensor that the consumer has dropped is free once its stream has come there.  torch also
        waits for that when it finds no memory, but then does not look again (pytorch#189504).
        """
        device = self._copier.device
        try:
            return filling.copy_to(device)
        except device.full as error:
            # The error's frames hold memory on the device.  Copies into it go on, but they end
            # before the next copy to the same memory begins: it is in the same stream.
            BaseException.with_traceback(error, None)
        self._await_taken()
        return filling.copy_to(device)

    def _record(self, filling: Filling) -> Event:
        """Return an event behind what was copied last."""
        try:
            event = self._copier.device.record()
        except BaseException:
            filling.retire()
            raise
        self._copying.append((event, filling))
        return event

    def _finish_oldest(self) -> None:
        """Wait for the oldest copy, and give back the memory that it was copied from."""
        event, filling = self._copying.popleft()
        tracer = stages.tracer
        if tracer is not None:
            tracer.begin("wait for the device", self._copier.progress.key)
        try:
            event.synchronize()
        except BaseException:
            filling.retire()
            raise
        finally:
            if tracer is not None:
                tracer.end("wait for the device")
        filling.release()
