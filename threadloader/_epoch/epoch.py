"""One pass over the data: what the planner does, in the consumer's thread.

    feed -> OpenBatch -> pool -> (work: fetch, write, collate) -> delivered, by default in order

The consumer's thread draws the whole window of batches when the epoch starts, and one more (or one
more pack) before each that it returns, as torch does; workers never touch the sampler.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._epoch.ending import abandon, closed, forked
from threadloader._epoch.grouped import GroupedBatches
from threadloader._fetch.failure import strip_all
from threadloader._lifetime.dropping import DROPPED, when_dropped
from threadloader._lifetime.process import end_thread_at_exit
from threadloader._work.copier import Copier
from threadloader._work.open_batch import FailedBatch, OpenBatch
from threadloader._work.progress import Progress
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._epoch.feed import Feed
    from threadloader._epoch.skipped import Tally
    from threadloader._settings import Settings
    from threadloader._threads.thread_group import ThreadGroup
    from threadloader._torch.device import Device
    from threadloader._work.counters import Stats
    from threadloader._work.open_batch import Worker
    from threadloader._work.workers import Workers

__all__ = ["Epoch"]


class Epoch(Iterator[Any]):
    """An iterator over the batches of one epoch.

    Args:
        settings: Of the loader.
        feed: Plans the batches and gives them to the threads.
        collation: Tells how large batches are.
        tally: Counts the samples that were left out.
        workers: The threads that do the work; None for the calling thread.
        inline: The worker that the calling thread is, without threads.
        stats: Counts what is delivered.
        device: The device of the settings, opened for this epoch; None for none.
        prepare: Called by `start`, before batches are planned.

    Invariants, whenever ``_turn`` is not held:
        1. The batches in ``_open``, the rest of ``_pack`` and those that were returned are all
           that were drawn; in order, those that were returned come first, without a gap.

    Threads:
        start: who calls ``iter()``, once.
        next, close, cancel: shared; next is meant for one thread, the consumer.
    """

    def __init__(
        self,
        settings: Settings,
        feed: Feed,
        collation: Collation,
        tally: Tally,
        workers: Workers | None,
        *,
        inline: Worker,
        stats: Stats,
        device: Device | None,
        prepare: Callable[[Progress], None] | None,
    ) -> None:
        end_thread_at_exit()
        self._feed = feed
        self._collation = collation
        self._tally = tally
        self._window = settings.window
        self._workers = workers
        self._owns_workers = not settings.persistent_workers
        self._inline = inline
        self._stats = stats
        self._length = partial(len, settings.index_sampler)
        self._timeout = settings.timeout or None
        self._in_order = settings.in_order
        self._finish = settings.move or (lambda batch: batch)
        self._prepare = prepare
        self._progress = progress = Progress()
        self._copier: Copier | None = None
        if device is not None:
            self._copier = Copier(
                device,
                progress,
                settings.device_prefetch,
                in_order=settings.in_order,
                name=settings.name,
            )
        self._delivery: Copier | Progress = self._copier or progress
        self._pid = os.getpid()
        # Held while one thread gets its batch, the dataset's code in the calling thread included:
        # threads that share an iterator take turns.  Re-entrant, or a sample that asks for the
        # next batch would wait for itself.  All below: guarded by _turn, but that `close` may
        # empty the window at any moment.
        self._turn = RLock()
        self._open: deque[OpenBatch | FailedBatch] = deque()  # drawn and not yet returned, in order
        self._drawn_all = False
        self._ended = False  # all were returned
        self._pack: GroupedBatches | None = (
            None  # batches that were made as one, and not all returned
        )
        self._failed: Callable[[], None] | None = None  # counts the batch whose error was raised
        signals: list[Callable[[], None]] = [partial(collation.ring.leave, progress)]
        if workers is not None:
            signals.append(workers.stop if self._owns_workers else workers.wake)
        if self._copier is not None:
            signals.append(self._copier.wake)
        # Dropping the iterator only signals: a finalizer must not wait for anybody.
        self._signal = when_dropped(self, abandon, progress, signals)
        try:
            collation.ring.enter(progress)
            if workers is not None:
                workers.startup.watch(self)
            feed.start()
        except BaseException:  # Ctrl-C in the sampler, say
            self.cancel()
            raise

    def start(self) -> None:
        """Let the threads begin, and plan the first batches.

        Raises:
            RuntimeError: A thread can't be started; unless ``next()`` is to raise it.
        """
        try:
            if self._prepare is not None:
                self._prepare(self._progress)
            if self._copier is not None:
                self._copier.start()
            if self._workers is not None:
                self._workers.start()
                if self._feed.eager:
                    self._draw()
        except BaseException as error:  # the same
            end_thread_at_exit()
            if isinstance(error, ClosedError) and self._progress.cancelled:
                return  # by another thread, which `next` tells
            self.cancel()
            self._closed()  # takes the error from where threads, and so this epoch, would keep it
            raise
        finally:
            self = DROPPED  # this frame stays with the error

    @property
    def thread_groups(self) -> list[ThreadGroup[Any]]:
        """What is left of the epoch when it is dropped: the threads that still run."""
        groups: list[ThreadGroup[Any]] = [] if self._copier is None else [self._copier.thread_group]
        return groups if self._workers is None else [*groups, *self._workers.thread_groups]

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        batch = failure = taken = receipt = pack = None
        number = 0
        try:
            self._collation.ring.warn_if_hoarded()
            self._tally.warn()
            with self._turn:
                if (pack := self._pack) is not None:
                    number, last = pack.next_number()
                    return self._next_of(pack, number, last=last)
                batch = self._due()
                failure = batch.failure
                receipt = self._receipt(batch)
                if failure is None:
                    taken = self._finish(self._take(batch))
                    receipt()
            if failure is not None:
                raise failure.error
            return taken
        except Exception:
            raise
        except BaseException as error:  # Ctrl-C, say, here or in a sample
            self.cancel()  # and wait for nobody: the sample that runs may never end
            self._feed.take_back(batch if pack is None else pack.batch, number)
            if failure is None:
                # It came up in our own frames, all of which hold this iterator.
                error.with_traceback(None)
            else:
                strip_all(error)
            raise
        finally:
            if self._copier is not None and isinstance(batch, OpenBatch):
                self._copier.drop(batch)  # unless it was taken
            # The frame of this call stays with an error that is raised.
            batch = failure = taken = receipt = pack = None
            self = DROPPED

    def close(self) -> None:
        """Cancel what is queued, and wait for the samples that are running.  Idempotent.

        Persistent workers are not waited for: they may run samples of another epoch.
        """
        self.cancel()
        if self._workers is not None and self._owns_workers:
            self._workers.join()
        if self._copier is not None:
            self._copier.join()

    def cancel(self) -> None:
        """End the epoch as `close` does, but wait for nobody."""
        if self._pid != os.getpid():  # forked: a lock may be held by a thread that is not here
            self._progress.cancel()
            return
        self._progress.close()
        self._open = deque()  # not cleared: the consumer may be iterating over it
        self._pack = None
        self._feed.end()
        self._signal()  # which dropping the iterator will not do again
        if self._workers is not None:
            self._workers.nudge()
        if self._copier is not None:
            self._copier.nudge()

    def _next_of(self, pack: GroupedBatches, number: int, *, last: bool) -> Any:
        """Return one of several batches that were made as one."""
        try:
            if last or self._progress.cancelled:
                self._pack = None
            if self._pid != os.getpid():
                raise forked()
            if self._progress.cancelled:
                raise self._closed()
            taken = self._finish(pack.make(number))
            self._stats.delivered(0.0)
            self._feed.receipt(pack.batch, number)()
            return taken
        finally:
            self = pack = DROPPED  # this frame stays with the error

    def _due(self) -> OpenBatch | FailedBatch:
        """Return the next batch for the consumer, done or failed."""
        batch = None
        try:
            failed, self._failed = self._failed, None
            if failed is not None:
                failed()  # whoever goes on after its error does without it
            while True:
                batch = self._next()
                if isinstance(batch, FailedBatch):
                    return batch
                excess = self._tally.add(batch)
                # If that is more than may be left out, it is raised in the place of the batch.
                batch.failure = batch.failure or excess
                if batch.failure is not None or not batch.empty:
                    return batch
                if not batch.exhausted:
                    self._feed.receipt(batch)()
        finally:
            # This frame stays with an error of a sample's in the calling thread.
            self = batch = DROPPED

    def _receipt(self, batch: OpenBatch | FailedBatch) -> Callable[[], None]:
        """Return what counts a batch as delivered, once it was."""
        if not isinstance(batch, OpenBatch) or batch.exhausted:
            return lambda: None  # there is nothing to count
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
            started = perf_counter()
            waits = self._workers is not None
            if self._workers is not None:
                batch = self._wait(batch, self._workers)
            elif isinstance(batch, OpenBatch):
                self._feed.work(batch, self._progress, self._inline)
                if self._copier is not None:
                    self._copier.wait(batch)
            if isinstance(batch, OpenBatch) and batch.plan.ends and batch.failure is not None:
                # Failed together: one by one, in their place, those before the error are right.
                self._remove(batch)
                self._open.extendleft(reversed(self._feed.split(batch, self._progress)))
                return self._next()
            if not batch.empty and (waits or isinstance(batch, OpenBatch)):
                self._stats.delivered(perf_counter() - started if waits else 0.0)
            self._pass(batch)
            return batch
        finally:
            # This frame, too, stays with an error of a sample's in the calling thread.
            self = batch = DROPPED

    def _first(self) -> OpenBatch | FailedBatch:
        """Return the batch that is delivered next.

        Raises:
            ClosedError: `close` was called.
            BaseException: That of a worker, or a copier, that could not begin.
            StopIteration: All batches were delivered.
        """
        try:
            if self._ended:
                raise StopIteration
            if self._pid != os.getpid():
                raise forked()
            if not self._open:
                self._draw()
            try:
                batch = self._open[0]
            except IndexError:
                batch = None
            # In this order: `close`, in another thread, first cancels, then empties the window.
            if self._progress.cancelled:
                raise self._closed()
            if batch is None:
                self._ended = True
                self.cancel()  # for an epoch of no batches; all others have ended their pool
                self._feed.finish()
                raise StopIteration
            return batch
        finally:
            self = DROPPED  # this frame stays with the error

    def _pass(self, batch: OpenBatch | FailedBatch) -> None:
        """Go on behind a batch, and draw one more."""
        try:
            self._remove(batch)
            if isinstance(batch, OpenBatch) and not self._delivery.has(batch):
                raise self._closed()
            if isinstance(batch, OpenBatch):
                self._feed.left(batch)
            if self._workers is None:
                return
            self._draw()
            if not self._open:
                # Here and not at StopIteration, which a loop over len(loader) never asks for.
                self._collation.ring.leave(self._progress)
                if self._owns_workers:
                    self._workers.stop()
        finally:
            self = batch = DROPPED  # this frame stays with the error

    def _closed(self) -> BaseException:
        """Return what the consumer of a cancelled epoch is told: why no worker could begin, say."""
        error = None if self._workers is None else self._workers.take_error()
        if error is None and self._copier is not None:
            error = self._copier.take_error()
        if error is None:
            return closed()
        self._ended = True
        self.cancel()
        return error

    def _remove(self, batch: OpenBatch | FailedBatch) -> None:
        """Take a batch off the window."""
        try:
            self._open.remove(batch)
        except ValueError:
            raise self._closed() from None  # by another thread
        finally:
            self = batch = DROPPED  # this frame stays with the error

    def _wait(self, first: OpenBatch | FailedBatch, workers: Workers) -> OpenBatch | FailedBatch:
        """Wait for a batch until it is done, or the epoch is closed, and return it.

        Raises:
            RuntimeError: It takes longer than the timeout; the next call waits for it again.
            BaseException: What ``worker_init_fn`` raised; it ends the threads and the epoch.
        """
        started = perf_counter()
        progress, limit = self._progress, self._timeout
        try:
            try:
                in_time = workers.ready(limit, progress)
            except Exception:
                self.cancel()
                self._ended = True
                raise
            if limit is not None:
                limit = max(0.0, limit - (perf_counter() - started))
            if in_time and isinstance(first, OpenBatch):
                if self._in_order:
                    in_time = self._delivery.wait(first, limit)
                else:
                    batches = [batch for batch in self._open if isinstance(batch, OpenBatch)]
                    in_time = self._delivery.wait_for_any(batches, limit)
                    first = next(filter(self._delivery.has, batches), first)
            if not in_time:
                msg = f"DataLoader timed out after {self._timeout} seconds"
                raise RuntimeError(msg)
            return first
        finally:
            # This frame stays with an error of worker_init_fn.
            self = workers = first = progress = batches = DROPPED

    def _draw(self) -> None:
        """Draw batches from the sampler until the window is full."""
        depth = self._collation.depth
        packing = self._feed.packs and self._copier is None and self._collation.packs
        most = depth.group_size(self._window) if packing else 1
        room = 1 if self._workers is None else depth.room(self._window, most)
        while not (self._drawn_all or self._progress.cancelled) and len(self._open) < room:
            try:
                batch = self._feed.draw(self._progress, most)
                if batch is None:
                    self._drawn_all = True
                    return
            except Exception as error:  # noqa: BLE001  # raised in its place, after what came before
                end_thread_at_exit()
                # Of a closed epoch nobody wants it, and it would keep this frame.
                if not self._progress.cancelled:
                    self._open.append(FailedBatch(error))
                return
            self._open.append(batch)
            if self._copier is not None:
                self._copier.put(batch)

    def _take(self, batch: Any) -> Any:
        """Return an open batch that did not fail."""
        self._collation.depth.delivered(batch.filling.nbytes)
        if self._copier is None:
            taken = batch.take()
            if not batch.plan.ends:
                return taken
            self._pack = pack = GroupedBatches(batch, taken)
            return pack.make(pack.next_number()[0])
        sent = self._copier.take(batch)
        if self._drawn_all and not self._open:
            self._copier.end()  # a loop over len(loader) never asks for StopIteration
        return sent.batch
