"""One pass over the data: what the planner does, in the consumer's thread.

    feed -> OpenBatch -> pool -> (work: fetch, write, collate) -> delivered, by default in order

The consumer's thread draws the whole window of batches when the epoch starts, and one more
before each batch that it returns, as torch does; workers never touch the sampler.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader.errors import ClosedError
from threadloader.pool import end_thread_at_exit
from threadloader.work import (
    FailedBatch,
    OpenBatch,
    Progress,
)

if TYPE_CHECKING:
    from threadloader.collate import Collation
    from threadloader.feed import Feed
    from threadloader.staff import Staff
    from threadloader.stats import Stats
    from threadloader.work import Worker

__all__ = ["Epoch", "Window"]

_FORKED = (
    "this iterator was made before a fork and has no threads here; iter(loader) starts a new one"
)
_CLOSED = "this iterator was closed; iter(loader) starts a new one"
WINDOW = 4  # batches at least: one in use, one due, two in the making
SMALL_WINDOW = 16  # batches: handing over costs two thread switches a window (bench: rows)
UNKNOWN_ROWS = 16  # samples in a batch of unknown size
SMALL_NBYTES = 16 << 20  # bytes that such a window may take
LARGE_NBYTES = 1 << 30  # bytes that any window may take, as long as two batches fit


@dataclass(frozen=True, slots=True)
class Window:
    """How many batches may be planned and not yet returned."""

    batches: int
    fixed: bool  # whether the user chose the number

    @classmethod
    def chosen(
        cls,
        workers: int,
        *,
        rows: int | None,
        whole: bool,
        prefetch: int | None,
        factor: int | None,
    ) -> Window:
        """Return the window that the user asked for, or else one that keeps all workers busy.

        Args:
            workers: Threads.
            rows: Samples in a batch; None if a user's batch sampler does not tell.
            whole: Whether one worker does a whole batch.
            prefetch: Batches; None if not given.
            factor: Batches a worker; None if not given.
        """
        if prefetch is not None:
            return cls(prefetch, fixed=True)
        if factor:
            return cls(factor * workers, fixed=True)
        busy = workers if whole else -(-2 * workers // (rows or UNKNOWN_ROWS))
        return cls(max(WINDOW, 2 + busy), fixed=False)

    @property
    def most(self) -> int:
        """Batches at the most, whatever their size."""
        return self.batches if self.fixed else max(self.batches, SMALL_WINDOW)

    def room(self, nbytes: int) -> int:
        """Return how many batches to plan.

        Args:
            nbytes: Bytes of the first batch delivered; 0 if unknown.  How far ahead a sampler is
                drawn must not depend on what is fast.
        """
        if self.fixed or not nbytes:
            return self.batches
        small = min(SMALL_WINDOW, SMALL_NBYTES // nbytes)
        return min(max(self.batches, small), max(2, LARGE_NBYTES // nbytes))


class Epoch(Iterator[Any]):
    """An iterator over the batches of one epoch.

    Args:
        feed: Plans the batches and gives them to the threads.
        collation: Tells how large batches are.
        window: How far ahead batches are drawn.
        staff: The threads that do the work; None for the calling thread.
        owns_staff: Whether the threads end with this epoch.
        inline: The worker that the calling thread is, without threads.
        stats: Counts what is delivered.
        length: Batches in the epoch, asked for only by ``len()``.
        timeout: Seconds to wait for a batch; None waits for ever.
        in_order: Whether a batch that is ready waits for those before it.
        finish: Called with each batch, in the consumer's thread; its result is returned.

    Invariants, whenever ``_turn`` is not held:
        1. The batches in ``_open`` and those that were returned are all that were drawn; in
           order, those that were returned come first, without a gap.

    Threads:
        next: shared; meant for one thread, the consumer.
        close, cancel: shared.
    """

    def __init__(
        self,
        feed: Feed,
        collation: Collation,
        window: Window,
        *,
        staff: Staff | None,
        owns_staff: bool,
        inline: Worker,
        stats: Stats,
        length: Callable[[], int],
        timeout: float | None = None,
        in_order: bool = True,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        end_thread_at_exit()
        self._feed = feed
        self._collation = collation
        self._window = window
        self._staff = staff
        self._owns_staff = owns_staff
        self._inline = inline
        self._stats = stats
        self._length = length
        self._timeout = timeout
        self._in_order = in_order
        self._finish = finish
        self._progress = Progress()
        self._pid = os.getpid()
        # Held while one thread gets its batch, the dataset's code in the calling thread included:
        # threads that share an iterator take turns.  Re-entrant, or a sample that asks for the
        # next batch would wait for itself.  All below: guarded by _turn, but that `close` may
        # put an empty window in place at any moment.
        self._turn = RLock()
        self._open: deque[OpenBatch | FailedBatch] = deque()  # drawn and not yet returned, in order
        self._drawn_all = False
        self._ended = False  # all were returned
        self._failed: Callable[[], None] | None = None  # counts the batch whose error was raised
        # Ends the pool's threads, or lets persistent ones drop what is cancelled.
        self._signal: Callable[[], None] = _nobody
        if staff is not None:
            self._signal = staff.stop if owns_staff else staff.wake
        # Dropping the iterator only signals: a finalizer must not wait for anybody.
        weakref.finalize(self, _abandon, self._progress, self._signal).atexit = False
        if staff is not None and feed.eager:
            self._draw()

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        batch = failure = taken = receipt = None
        self._collation.ring.warn_if_hoarded()
        try:
            with self._turn:
                batch = self._due()
                failure = batch.failure
                receipt = self._receipt(batch)
            if failure is not None:
                raise failure.error
            taken = batch.take()
            if self._finish is not None:
                taken = self._finish(taken)
            with self._turn:
                receipt()
            return taken
        except Exception:
            raise
        except BaseException as error:  # Ctrl-C, say, here or in a sample
            self.cancel()  # and wait for nobody: the sample that runs may never end
            if failure is None:
                # It came up in our own frames, all of which hold this iterator.
                error.with_traceback(None)
            raise
        finally:
            # The frame of this call stays with an error that is raised.
            batch = failure = taken = receipt = None
            del self

    def close(self) -> None:
        """Cancel what is queued, and wait for the samples that are running.  Idempotent.

        Persistent workers are not waited for: they may run samples of another epoch.
        """
        self.cancel()
        if self._staff is not None and self._owns_staff:
            self._staff.join()

    def cancel(self) -> None:
        """End the epoch as `close` does, but wait for nobody."""
        if self._pid != os.getpid():  # forked: a lock may be held by a thread that is not here
            self._progress.cancel()
            return
        self._progress.close()
        self._open = deque()  # not cleared: the consumer may be iterating over it
        self._feed.end()
        self._signal()
        if self._staff is not None:
            self._staff.nudge()

    def _due(self) -> OpenBatch | FailedBatch:
        """Return the next batch for the consumer, done or failed."""
        batch = None
        try:
            failed, self._failed = self._failed, None
            if failed is not None:
                failed()  # whoever goes on after its error does without it
            batch = self._next()
            while batch.exhausted:
                batch = self._next()
            return batch
        finally:
            del self, batch  # this frame stays with an error of a sample's in the calling thread

    def _receipt(self, batch: OpenBatch | FailedBatch) -> Callable[[], None]:
        """Return what counts a batch as delivered, once it was."""
        if not isinstance(batch, OpenBatch):
            return _nobody
        receipt = self._feed.receipt(batch)
        if batch.failure is None:
            self._feed.returned()
        elif isinstance(batch.failure.error, Exception):
            self._failed = receipt
        return receipt

    def _next(self) -> OpenBatch | FailedBatch:
        """Return the next batch that is done, and draw one more."""
        batch = None
        try:
            batch = self._first()
            if self._staff is not None:
                batch = self._wait(batch, self._staff)
            elif isinstance(batch, OpenBatch):
                self._feed.work(batch, self._progress, self._inline)
                if not batch.exhausted:
                    self._stats.delivered(0.0)
            self._pass(batch)
            return batch
        finally:
            # This frame, too, stays with an error of a sample's in the calling thread.
            del self, batch

    def _first(self) -> OpenBatch | FailedBatch:
        """Return the batch that is delivered next.

        Raises:
            ClosedError: `close` was called.
            StopIteration: All batches were delivered.
        """
        try:
            if self._ended:
                raise StopIteration
            if self._pid != os.getpid():
                raise ClosedError(_FORKED)
            if not self._open:
                self._draw()
            try:
                batch = self._open[0]
            except IndexError:
                batch = None
            # In this order: `close`, in another thread, first cancels, then empties the window.
            if self._progress.cancelled:
                raise _closed()
            if batch is None:
                self._ended = True
                self._feed.finish()
                self.cancel()  # for an epoch of no batches; all others have ended their pool
                raise StopIteration
            return batch
        finally:
            del self  # this frame stays with the error

    def _pass(self, batch: OpenBatch | FailedBatch) -> None:
        """Take a batch off the window, and draw one more."""
        try:
            try:
                self._open.remove(batch)
            except ValueError:  # closed by another thread
                raise _closed() from None
            if not batch.done:
                raise _closed()
            if isinstance(batch, OpenBatch):
                self._feed.left(batch)
            if self._staff is None:
                return
            self._draw()
            if not self._open and self._owns_staff:
                # Here and not at StopIteration, which a loop over len(loader) never asks for.
                self._staff.stop()
        finally:
            del self, batch  # this frame stays with the error

    def _wait(self, first: OpenBatch | FailedBatch, staff: Staff) -> OpenBatch | FailedBatch:
        """Wait for a batch until it is done, or the epoch is closed, and return it.

        Raises:
            RuntimeError: It takes longer than the timeout; the next call waits for it again.
            BaseException: What ``worker_init_fn`` raised; it ends the threads and the epoch.
        """
        started = perf_counter()
        progress, limit = self._progress, self._timeout
        try:
            try:
                in_time = staff.ready(limit, progress)
            except Exception:
                self.cancel()
                self._ended = True
                raise
            if limit is not None:
                limit = max(0.0, limit - (perf_counter() - started))
            if in_time and isinstance(first, OpenBatch):
                if self._in_order:
                    in_time = progress.wait(first, limit)
                else:
                    first, in_time = self._wait_for_any(first, limit)
            if not in_time:
                msg = f"DataLoader timed out after {self._timeout} seconds"
                raise RuntimeError(msg)
            if not first.exhausted:
                self._stats.delivered(perf_counter() - started)
            return first
        finally:
            # This frame stays with an error of worker_init_fn.
            del self, staff, first, progress

    def _wait_for_any(self, first: OpenBatch, limit: float | None) -> tuple[OpenBatch, bool]:
        """Wait for whichever open batch is done; return it, and whether there was one in time."""
        batches = [batch for batch in self._open if isinstance(batch, OpenBatch)]
        in_time = self._progress.wait_for_any(batches, limit)
        return next((batch for batch in batches if batch.done), first), in_time

    def _draw(self) -> None:
        """Draw batches from the sampler until the window is full."""
        room = 1
        if self._staff is not None:
            room = self._window.room(self._collation.first_nbytes or 0)
        while not (self._drawn_all or self._progress.cancelled) and len(self._open) < room:
            try:
                batch = self._feed.draw(self._progress)
                if batch is None:
                    self._drawn_all = True
                    return
            except Exception as error:  # noqa: BLE001  # raised in its place, after what came before
                end_thread_at_exit()
                # Of an epoch that another thread has closed nobody wants it, and it would keep
                # this frame, and with it the iterator.
                if not self._progress.cancelled:
                    self._open.append(FailedBatch(error))
                return
            self._open.append(batch)


def _closed() -> ClosedError:
    end_thread_at_exit()
    return ClosedError(_CLOSED)


def _abandon(progress: Progress, signal: Callable[[], None]) -> None:
    progress.cancel()
    signal()


def _nobody() -> None:
    """There are no threads to signal."""
