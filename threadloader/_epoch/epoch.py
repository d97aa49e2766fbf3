"""One pass over the data, in the consumer's thread: wait, count, raise or return.

    feed -> OpenBatch -> pool -> (work: fetch, write, collate) -> delivered, by default in order

The consumer's thread plans a whole window of batches when the epoch starts, and one more (or one
more group) before each that it returns, as torch does; workers never touch the sampler.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._epoch.delivery import CLOSED, FORKED, abandon, deliveries_of, moved
from threadloader._epoch.feed import Receipt
from threadloader._epoch.hanging import Patience
from threadloader._epoch.in_flight import InFlight
from threadloader._epoch.torch_names import TorchNames
from threadloader._fetch.failure import set_notes, strip_all
from threadloader._lifetime.dropping import DROPPED, when_dropped
from threadloader._lifetime.exit_and_fork import end_thread_at_exit
from threadloader._report.ending import warn_if_slow
from threadloader._trace import stages
from threadloader._trace.stages import Counts
from threadloader._work.open_batch import FailedBatch, OpenBatch, Worker
from threadloader._work.progress import Progress
from threadloader._work.stats import LONG_SECONDS
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._epoch.delivery import Delivery
    from threadloader._epoch.feed import Feed
    from threadloader._epoch.skipped import Tally
    from threadloader._fetch.failure import Failure
    from threadloader._order.tickets import PlannedBatch
    from threadloader._settings import Settings
    from threadloader._threads.thread_group import ThreadGroup
    from threadloader._torch.device import Device
    from threadloader._trace.stages import Tracer
    from threadloader._work.copier import Copier
    from threadloader._work.stats import Stats
    from threadloader._work.workers import Workers

__all__ = ["Epoch"]


class Epoch(TorchNames, Iterator[Any]):
    """An iterator over the batches of one epoch.

    Args:
        settings: Of the loader.
        feed: Plans the batches and gives them to the threads.
        collation: Knows how large batches are, and the ring of their slots.
        tally: Counts the samples that were left out.
        workers: The threads that do the work; None for the calling thread.
        stats: Counts the batches that are delivered.
        device: The device of the settings, opened for this epoch; None to leave batches in memory.
        prepare: Called by `start`, before batches are planned.
        base_seed: Of the workers.
        begun: Batches that were delivered before this epoch was resumed.

    Invariants, whenever ``_turn`` is not held:
        1. Each batch that was planned is in flight, or in ``_group``, or was delivered.  In order,
           the delivered batches come first, without a gap.

    Threads:
        start: the caller of ``iter()``, once.
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
        stats: Stats,
        device: Device | None,
        prepare: Callable[[Progress], None] | None,
        base_seed: int = 0,
        begun: int = 0,
    ) -> None:
        end_thread_at_exit()
        super().__init__(settings, base_seed, begun)
        self._feed = feed
        self._depth = collation.depth
        self._ring = collation.ring
        self._tally = tally
        self._threads = workers
        self._owns_workers = not settings.persistent_workers
        self._stats = stats
        self._counted = counted = stats.begin_epoch()
        self._iterable = settings.iterable
        self._concurrency = settings.concurrency
        self._move = settings.move
        self._prepare = prepare
        self._progress = progress = Progress(stats)
        self._patience: Patience | None = None
        self._copier: Copier | None = None
        if device is not None:
            from threadloader._work.copier import Copier  # noqa: PLC0415  # only needed here

            self._copier = Copier(
                device,
                progress,
                settings.device_prefetch,
                in_order=settings.in_order,
                name=settings.name,
                copied=stats.copied,
            )
        self._pid = os.getpid()
        # Held while one thread gets its batch, so that threads that share an iterator take turns;
        # also while the calling thread runs the dataset's code.  Re-entrant, or a sample that asks
        # for the next batch would wait for itself.  All below: guarded by _turn, but that `close`
        # may drop the batches at any moment.
        self._turn = RLock()
        inline = Worker(0, "the calling thread", counted)
        self._in_flight = InFlight(
            settings, feed, progress, collation, workers, inline=inline, copier=self._copier
        )
        self._group: deque[Delivery] = deque()  # batches left of a group that was taken out
        self._group_plan: PlannedBatch | None = None  # of that group
        self._failed: Receipt | None = None  # of the batch whose error was raised by the last call
        self._ended = False  # whether there is nothing more to deliver
        signals: list[Callable[[], None]] = [partial(self._ring.leave, progress)]
        if workers is not None:
            signals.append(workers.stop if self._owns_workers else workers.wake)
        if self._copier is not None:
            signals.append(self._copier.wake)
        # Dropping the iterator only signals: a finalizer must not wait for anybody.
        self._signal = when_dropped(self, abandon, progress, counted, signals)
        try:
            self._ring.enter(progress)
            if workers is not None:
                workers.startup.watch(self)
        except BaseException:  # Ctrl-C, say
            self.cancel()
            raise

    def start(self) -> None:
        """Let the threads begin, and plan the first batches.

        Raises:
            RuntimeError: A thread can't be started.  If the epoch was closed meanwhile, the first
                ``next()`` raises instead.
        """
        try:
            if self._prepare is not None:
                self._prepare(self._progress)
            if self._copier is not None:
                self._copier.start()
            if self._threads is not None:
                self._threads.start()
                if self._feed.eager and self._in_flight.plans_ahead:
                    self._in_flight.fill()
            self._counted.started(self.thread_groups)
        except BaseException as error:  # Ctrl-C in the sampler, say
            end_thread_at_exit()
            if isinstance(error, ClosedError) and self._progress.cancelled:
                return  # by another thread; `next` raises it
            self.cancel()
            self._closed()  # takes the error from where threads, and so this epoch, would keep it
            raise
        finally:
            self = DROPPED  # this frame stays with the error

    @property
    def thread_groups(self) -> list[ThreadGroup[Any]]:
        """The threads of the epoch, which may still run when it was dropped."""
        groups: list[ThreadGroup[Any]] = [] if self._copier is None else [self._copier.thread_group]
        return groups if self._threads is None else [*groups, *self._threads.thread_groups]

    def moment(self) -> tuple[int, int, int]:
        """Return the state of the window; see `InFlight.moment`."""
        return self._in_flight.moment()

    @property
    def ended(self) -> bool:
        """Whether it has no batches left, or was closed; stale as soon as it is read."""
        return self._ended or self._progress.cancelled

    def __next__(self) -> Any:
        take = receipt = failure = batch = None
        entered, tracer = perf_counter(), stages.tracer
        try:
            if tracer is not None or self._ring.seems_hoarded or self._tally.must_warn:
                self._enter(tracer)
            with self._turn:
                take, receipt, failure = self._next_delivery()
                if failure is None:
                    batch = take() if self._move is None else moved(take, self._move, self._stats)
                    receipt.count(returned=True)
                    self._num_yielded += 1
                else:
                    self._failed = receipt if isinstance(failure.error, Exception) else None
                counted = self._counted
                counted.latest = now = perf_counter()
                counted.loading_seconds += now - entered
                if now >= counted.due or now - entered >= LONG_SECONDS:
                    self._stats.note(counted, now - entered, self._in_flight)
            if failure is not None:
                set_notes(failure.error, failure.notes)
                raise failure.error
            return batch
        except Exception:
            raise
        except BaseException as error:  # Ctrl-C, say, here or in a sample
            self._break_off(error, receipt, failure)
            raise
        finally:
            if tracer is not None:
                tracer.end("next")
            # An error keeps the frames that it was raised through, here and in the methods below.
            self = take = receipt = failure = batch = DROPPED

    def close(self) -> None:
        """Cancel the batches in flight, and wait until running samples have ended.  Idempotent.

        Does not wait for persistent workers, which may run samples of another epoch.
        """
        self.cancel()
        if self._threads is not None and self._owns_workers:
            self._threads.join()
        if self._copier is not None:
            self._copier.join()

    def cancel(self) -> None:
        """End the epoch as `close` does, but wait for nobody."""
        if self._pid != os.getpid():  # forked: a lock may be held by a thread that is not here
            self._progress.cancel()
            return
        self._progress.close()
        self._in_flight.clear()
        self._group = deque()
        self._feed.end()
        self._signal()  # which dropping the iterator will not do again
        if self._threads is not None:
            self._threads.nudge()
        if self._copier is not None:
            self._copier.nudge()

    def _enter(self, tracer: Tracer | None) -> None:
        """Tell that `next` begins; and warn, where no batch is lost if warnings are made errors."""
        try:
            if tracer is not None:
                tracer.begin("next", self._progress.key)
            self._ring.warn_if_hoarded()
            self._tally.warn()
        finally:
            self = DROPPED

    def _break_off(
        self, error: BaseException, receipt: Receipt | None, failure: Failure | None
    ) -> None:
        """End the epoch by an error that is no `Exception`; its batch does not count."""
        try:
            self.cancel()  # and wait for nobody: the sample that runs may never end
            if receipt is not None:
                receipt.take_back()
            if failure is None:
                # It was raised in our own frames, all of which hold this iterator.
                error.with_traceback(None)
            else:
                strip_all(error)
        finally:
            self = receipt = failure = DROPPED  # a second Ctrl-C keeps this frame

    def _next_delivery(self) -> Delivery:
        """Wait for the next batch that has samples, or for the error in its place.

        Raises:
            StopIteration: All batches were delivered.
            ClosedError: The epoch was closed, or this process is a fork.
            RuntimeError: It takes longer than the timeout; the next call waits again.
            BaseException: A worker, or the copier, could not begin, and raised this.
        """
        made = batch = due = None
        receipts: Sequence[Receipt] = ()
        try:
            failed, self._failed = self._failed, None
            if failed is not None:
                # A consumer that goes on after the error does without the batch.
                failed.count(returned=False)
            if self._ended:
                raise StopIteration
            if self._pid != os.getpid():
                raise ClosedError(FORKED)
            group = self._group
            if group and not self._progress.cancelled:
                self._counted.batches += 1
                return group.popleft()
            self._in_flight.look_at_objects()
            made = self._in_flight.make_next()
            if made is not None:
                self._counted.batches += 1
                return [made[0]].pop, made[1], None
            while due is None:
                batch = self._wait_for_batch()
                receipts = self._take_out(batch)
                due = self._delivery_of(batch, receipts)
                if due is None:
                    receipts[0].count(returned=False)
            return due
        finally:
            self = made = batch = due = receipts = group = DROPPED

    def _wait_for_batch(self) -> OpenBatch | FailedBatch:
        """Return the next batch in flight once it is done; raise what `_next_delivery` does."""
        head = batch = None
        try:
            batch = self._in_flight.done()
            head = self._in_flight.head() if batch is None else batch
            # In this order: `close`, in another thread, first cancels, then clears.
            if self._progress.cancelled:
                raise self._closed()
            if head is None:
                self._ended = True
                self.cancel()  # for an epoch of no batches; others have ended their threads
                self._feed.end(finished=True)
                setup = self._concurrency, self._threads is not None, self._iterable
                warn_if_slow(self._stats, self._counted, setup)
                raise StopIteration
            if batch is None and self._threads is None:
                batch = self._in_flight.wait(head) or head  # it never takes too long
            elif batch is None:
                batch = self._await(head)
            batch = self._in_flight.in_doubt(batch)
            if isinstance(batch, OpenBatch) and batch.plan.ends and batch.failure is not None:
                # Its batches are made again one by one: those before the error can be delivered.
                if not self._in_flight.split(batch):
                    raise self._closed()  # by another thread
                return self._wait_for_batch()
            if not batch.empty and (self._threads is not None or isinstance(batch, OpenBatch)):
                self._counted.batches += 1
            return batch
        finally:
            self = head = batch = DROPPED

    def _await(self, head: OpenBatch | FailedBatch) -> OpenBatch | FailedBatch:
        """Wait for the workers to begin, and for a batch; raise what `_next_delivery` does."""
        counted, copying = self._counted, self._copier is not None and head.done
        here = counted.busy_seconds
        self._concurrency.begin_wait()
        try:
            try:
                begun = self._in_flight.await_workers()
            except Exception:  # of worker_init_fn
                self.cancel()
                self._ended = True
                raise
            if self._patience is None:
                find = None if self._threads is None else self._threads.find_lost
                self._patience = Patience(self._timeout, self._stats, self._progress, find)
            counted.waits_since = perf_counter()
            return self._patience.wait(self._in_flight, head, begun=begun)
        finally:
            counted.waits_since = 0.0
            seconds = self._concurrency.end_wait()
            seconds -= counted.busy_seconds - here  # it may have begun the first batch
            counted.waited(seconds, self._progress.reached_at, copying=copying)
            self = head = DROPPED

    def _take_out(self, batch: OpenBatch | FailedBatch) -> Sequence[Receipt]:
        """Take a batch out of the window, plan the next one, and return the batch's receipts."""
        receipts: Sequence[Receipt] = ()
        try:
            if not self._in_flight.remove(batch):
                raise self._closed()  # by another thread
            tracer = stages.tracer
            if isinstance(batch, OpenBatch):
                if tracer is not None and not batch.exhausted:  # up to the end of `next`
                    counts = self._counts()
                    tracer.begin("deliver", self._progress.key, batch.plan.sequence, counts=counts)
                receipts = self._feed.done(batch)
            if self._threads is not None and self._in_flight.plans_ahead:
                self._in_flight.fill()
                if self._in_flight.empty:
                    # Here and not at StopIteration, which a loop over len(loader) never reaches.
                    self._ring.leave(self._progress)
                    if self._owns_workers:
                        self._threads.stop()
            return receipts
        finally:
            self = batch = receipts = DROPPED

    def _counts(self) -> Counts:
        """Return what there is in the window and in the ring."""
        slots = self._ring.statistics()
        return Counts(*self.moment(), slots.free, slots.filling, slots.leased)

    def _delivery_of(
        self, batch: OpenBatch | FailedBatch, receipts: Sequence[Receipt]
    ) -> Delivery | None:
        """Return the delivery of a batch, or of the first batch of a group; None if it is empty."""
        try:
            if isinstance(batch, FailedBatch):
                return batch.take, Receipt(), batch.failure
            if batch.skipped or batch.unread:
                excess = self._tally.add(batch)
                # A sample too many that was left out is raised in the place of the batch.
                batch.failure = batch.failure or excess
            if batch.failure is not None:
                if self._copier is not None:
                    self._copier.drop(batch)
                return batch.take, receipts[0], batch.failure
            if batch.empty:
                return None
            nbytes = batch.filling.nbytes
            self._depth.delivered(nbytes)
            self._counted.nbytes += nbytes
            if self._copier is not None:
                return partial(self._take_copy, self._copier, batch), receipts[0], None
            if not batch.plan.ends:
                return batch.filling.take, receipts[0], None
            return self._begin_group(batch, receipts)
        finally:
            self = batch = receipts = DROPPED

    def _begin_group(self, batch: OpenBatch, receipts: Sequence[Receipt]) -> Delivery:
        """Return the first batch of a group; the others are delivered after it."""
        group: deque[Delivery] | None = None
        try:
            self._group = group = deliveries_of(batch, receipts)
            self._group_plan = batch.plan
            if self._progress.cancelled:  # by `close`, which may have come before the group was set
                self._group = deque()
            return group.popleft()
        finally:
            self = batch = receipts = group = DROPPED

    def _take_copy(self, copier: Copier, batch: OpenBatch) -> Any:
        """Return a batch on the device."""
        try:
            sent = copier.take(batch)
            if self._in_flight.empty and self._in_flight.planned_all:
                copier.end()  # a loop over len(loader) never reaches StopIteration
            return sent.batch
        finally:
            self = copier = batch = DROPPED

    def _closed(self) -> BaseException:
        """Return the error that the consumer of a cancelled epoch gets.

        It is that of a worker, or of the copier, that could not begin; or else a `ClosedError`.
        """
        error = None if self._threads is None else self._threads.take_error()
        if error is None and self._copier is not None:
            error = self._copier.take_error()
        if error is None:
            end_thread_at_exit()
            return ClosedError(CLOSED)
        self._ended = True
        self.cancel()
        return error
