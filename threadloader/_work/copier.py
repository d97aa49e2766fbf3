r"""The copier: a thread that copies batches to a device, ahead of the consumer.

::

    planned --put--> waiting --done, and room--> copying --> arrived --take--> your stream
     planner                    copier             |           consumer
                          slot <--event finished--/

It has a stream of its own, so that copies run beside what the consumer computes.  The consumer's
stream waits for the event behind a batch; the consumer itself waits only until the copy was
begun.  A slot is given back when that event has finished.  For that the copier waits on the host,
and for the consumer's stream where the host is far ahead of it; nobody else does.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from threadloader._fetch.failure import failure_of_copy
from threadloader._lifetime.dropping import DROPPED
from threadloader._threads.pool import Pool
from threadloader._threads.thread_group import SingleJob
from threadloader._threads.waiting import Tokens, wait_until
from threadloader.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from threadloader._batch.filling import Filling, Sent
    from threadloader._threads.thread_group import ThreadGroup
    from threadloader._torch.device import Device, Event
    from threadloader._work.open_batch import OpenBatch
    from threadloader._work.progress import Progress

__all__ = ["Copier"]

# How long the interpreter's exit waits for the device.  A thread that is cut off inside of torch
# aborts the process, and a device that is seconds behind comes there: no limit but for one that
# never does.  A choice.
EXIT_SECONDS = 60.0

_END = object()  # there is nothing more to copy


@dataclass(frozen=True, slots=True)
class _Taken:
    """The consumer took a batch: there is room for one more."""

    reached: Event | None  # once its stream has come here; None for at once


class Copier:
    """Copies the batches of one epoch.

    Args:
        device: Where to.
        progress: Of the epoch.
        ahead: Batches that may be on the device beside the one that is due, at least 1.
        in_order: Whether they are copied in the order in which they were planned.
        name: Prefix of the thread's name.

    Threads:
        start, put, wait, wait_for_any, has, take, drop, end, take_error: consumer.
        wake: shared, also from a finalizer; it takes no lock.
        nudge, join: shared.
    """

    def __init__(
        self, device: Device, progress: Progress, ahead: int, *, in_order: bool, name: str
    ) -> None:
        self._line = line = _Line(device, progress, 1 + ahead, in_order=in_order)
        self._pool: Pool[None] = Pool(
            1, name, _enter, role="copier", failed=line.failed, exit_seconds=EXIT_SECONDS
        )
        self.wake = progress.told = partial(line.inbox.put, None)

    @property
    def thread_group(self) -> ThreadGroup[None]:
        """What is left of the copier when it is dropped: the thread, while it runs."""
        return self._pool.thread_group

    def start(self) -> None:
        """Start the thread, once."""
        # The job refers to the pool, so that it always runs.
        self._pool.put(SingleJob(partial(_copy_all, self._line, self._pool.stop)))

    def put(self, batch: OpenBatch) -> None:
        """Copy a batch once it is done, in its turn."""
        self._line.inbox.put(batch)

    def take_error(self) -> BaseException | None:
        """Return the error by which the thread ended, if one did, the first time."""
        error, self._line.error = self._line.error, None
        return error

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
        """Let the calling thread's stream have a batch that arrived without a failure.

        It counts as taken for the copier when that stream has come here, so that a host that runs
        ahead of its device does not fill the device's memory.
        """
        assert batch.sent is not None  # noqa: S101  # for the type checker: `has` told so
        (sent, event), batch.sent = batch.sent, None
        reached = None
        try:
            reached = self._line.device.receive(event, sent.tensors)
        finally:
            self._line.inbox.put(_Taken(reached))
        return sent

    def drop(self, batch: OpenBatch) -> None:
        """Take note that a batch that has arrived, and was not taken, is not going to be."""
        if batch.sent is not None:
            batch.sent = None
            self._line.inbox.put(_Taken(None))

    def end(self) -> None:
        """Let the thread end: all batches have arrived."""
        self._line.inbox.put(_END)

    def nudge(self) -> None:
        """Let who waits for a batch see that the epoch is closed."""
        self._line.nudge()

    def join(self) -> None:
        """Wait until the thread has ended; the epoch is closed."""
        self._pool.stop()
        self._pool.join()


class _Line:
    """What a copier and its thread share; it references neither.

    Invariants, whenever ``_lock`` is not held:
        1. A batch that has arrived never changes again, but for what the consumer takes of it.

    Threads:
        wait: consumer.
        arrived: copier.
        failed: copier, or who starts it.
        nudge: shared.
    """

    def __init__(
        self,
        device: Device,
        progress: Progress,
        room: int,
        *,
        in_order: bool,
    ) -> None:
        self.device = device
        self.progress = progress
        self.room = room  # batches on the device that the consumer did not take, at the most
        self.in_order = in_order
        self.error: BaseException | None = None  # by which the thread ended
        # What the copier is told: a batch that was planned, one that was taken, the end, or None
        # to look again.
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self._tokens: Tokens = SimpleQueue()  # for who waits
        self._lock = Lock()
        # All below, and whether a batch has arrived: guarded by _lock.
        self._awaited: tuple[OpenBatch, ...] = ()

    def wait(self, batches: tuple[OpenBatch, ...], timeout: float | None) -> bool:
        # Unlocked first: one attribute load each, and a batch that has arrived stays so.
        if any(batch.arrived for batch in batches):
            return True

        def reached() -> bool:
            return self.progress.cancelled or any(batch.arrived for batch in batches)

        try:
            with self._lock:  # or one could arrive in between, and nobody be told
                self._awaited = batches
            return wait_until(reached, self._tokens, timeout)
        finally:
            self._awaited = ()

    def arrived(self, batch: OpenBatch) -> None:
        with self._lock:
            batch.arrived = True
            if batch in self._awaited:
                self._tokens.put(None)

    def failed(self, number: int, error: BaseException) -> None:  # noqa: ARG002  # there is one
        with suppress(BaseException):  # an error that refuses notes
            error.add_note("the copier could not run")
        self.error = error
        self.progress.close()
        self.nudge()

    def nudge(self) -> None:
        self._tokens.put(None)


@contextmanager
def _enter(number: int) -> Iterator[None]:  # noqa: ARG001  # there is one
    """The context of the copier's life: nothing."""
    yield


def _copy_all(line: _Line, stop: Callable[[], None], worker: None) -> None:  # noqa: ARG001
    """Copy batches until the epoch is closed; if the device fails, hand on why.

    Args:
        line: What is shared with the copier.
        stop: Ends the thread with this, its one job.
        worker: None, as the pool gives it.
    """
    copying = None
    try:
        copying = _Copying(line)
        line.device.adopt()
        copying.run()
    except BaseException as error:  # handed to the consumer
        if copying is None:
            raise  # which ends the thread: see `_Line.failed`
        BaseException.with_traceback(error, None)
        copying.fail(error)
    finally:
        if copying is not None:
            copying.end()
        stop()
        del copying


class _Copying:
    """What the copier's thread is doing.

    Threads:
        all: copier.
    """

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._waiting: deque[OpenBatch] = deque()  # planned, and not copied
        self._flying: deque[tuple[Event, Filling]] = deque()  # copies that were begun, in order
        self._taken: deque[Event | None] = deque()  # room that there is once these are reached
        self._room = line.room

    def run(self) -> None:
        """Copy batches until there are no more, or the epoch is closed."""
        while not self._line.progress.cancelled:
            message = self._next_message()
            if message is _END:
                return
            if isinstance(message, _Taken):
                self._taken.append(message.reached)
            elif message is not None:
                self._waiting.append(message)
            del message
            self._copy_done()

    def fail(self, error: BaseException) -> None:
        """Let every batch fail that would have been copied, until the epoch is closed."""
        line, first = self._line, error
        while not line.progress.cancelled:
            for batch in [batch for batch in self._waiting if batch.done]:
                if batch.failure is None and not batch.empty:
                    batch.failure = failure_of_copy(error, batch.plan, line.device)
                    # The consumer has that one now.
                    error = DeviceError(f"the device failed before: {first!r}")
                    error.__cause__ = first
                self._waiting.remove(batch)
                line.arrived(batch)
                del batch
            message = line.inbox.get()
            if message is _END:
                return
            if message is not None and not isinstance(message, _Taken):
                self._waiting.append(message)
            del message

    def end(self) -> None:
        """Give back all slots, once nothing is copied from them any more."""
        self._line.progress.tell_nobody()
        self._waiting.clear()
        with suppress(Empty):  # batches in it lead back to it
            while True:
                self._line.inbox.get_nowait()
        with suppress(Exception):  # the device has failed: whoever waits was told
            while self._flying:
                self._land()
        while self._flying:
            self._flying.popleft()[1].lose()

    def _next_message(self) -> Any:
        """Return what the copier is told next; until then, give back slots.

        An event is waited for, never asked: to ask holds the GIL, also while the driver is busy.
        """
        flying, inbox = self._flying, self._line.inbox
        while True:
            try:
                return inbox.get_nowait()
            except Empty:
                if not flying:
                    return inbox.get()
            self._land()  # there is nothing else to do

    def _copy_done(self) -> None:
        """Copy the batches that are done, as far as it is their turn and there is room."""
        while (batch := self._next_done()) is not None:
            if batch.failure is None and not batch.empty:
                self._send(batch)
            self._waiting.remove(batch)
            self._line.arrived(batch)
            if len(self._flying) > self._line.room:
                self._land()

    def _next_done(self) -> OpenBatch | None:
        """Return the batch that is handled next; None if there is none whose turn it is."""
        for batch in self._waiting:
            # What failed needs no room.
            if batch.done and (batch.failure or batch.empty or self._has_room()):
                return batch
            if self._line.in_order:
                break
        return None

    def _has_room(self) -> bool:
        """Whether one more batch may be on the device; wait for the consumer's stream, if need be.

        A host that runs ahead of its device would fill the device's memory otherwise.
        """
        if not self._room:
            self._await_taken()
        return self._room > 0

    def _await_taken(self) -> None:
        """Wait until the consumer's stream has come to where it took the oldest batch."""
        if self._taken:
            reached = self._taken.popleft()
            if reached is not None:
                reached.synchronize()
            self._room += 1

    def _send(self, batch: OpenBatch) -> None:
        """Begin to copy a batch; what goes wrong, no memory on the device say, is its failure."""
        device, filling = self._line.device, batch.filling
        sent = event = None
        try:
            try:
                sent = self._sent(filling)
            finally:
                # Also after an error: a part of it may be on its way.
                event = self._record(filling)
            batch.sent = sent, event
            self._room -= 1
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            batch.failure = failure_of_copy(error, batch.plan, device)
        finally:
            sent = event = None
            batch = filling = DROPPED

    def _sent(self, filling: Filling) -> Sent:
        """Begin to copy, a second time if there was no memory: it may be about to be free.

        What the consumer has dropped is free once its stream has come there.  torch waits for
        that, too, when it finds nothing else, but then does not look again (pytorch#189504).
        """
        device = self._line.device
        try:
            return filling.send(device)
        except device.full as error:
            # Its frames have memory on the device.  Copies into that go on, and end before what
            # is copied to the same memory next, in the same stream.
            BaseException.with_traceback(error, None)
        self._await_taken()
        return filling.send(device)

    def _record(self, filling: Filling) -> Event:
        """Return an event behind what was copied last."""
        try:
            event = self._line.device.record()
        except BaseException:
            filling.lose()
            raise
        self._flying.append((event, filling))
        return event

    def _land(self) -> None:
        """Wait for the oldest copy, and give back what it was copied from."""
        event, filling = self._flying.popleft()
        try:
            event.synchronize()
        except BaseException:
            filling.lose()
            raise
        filling.let_go()
