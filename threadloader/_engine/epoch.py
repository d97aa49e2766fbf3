"""One pass over the data, in the consumer's thread: wait, count, raise or return.

The `Window` has the batches in flight, and the `Maker` has them made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from threadloader._engine.hanging import Patience
from threadloader._engine.open_batch import FailedBatch, OpenBatch
from threadloader._engine.torch_names import TorchNames
from threadloader._lifetime import DROPPED, end_thread_at_exit, when_dropped
from threadloader._report import stages
from threadloader._report.reports import warn_if_slow
from threadloader._report.stats import LONG_SECONDS
from threadloader._threads.tuner import PAUSE, PAUSE_SECONDS
from threadloader._worker.failure import Origin, set_notes, strip_all
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._engine.agreed_ends import AgreedEnds
    from threadloader._engine.copier import Copier
    from threadloader._engine.maker import Maker
    from threadloader._engine.progress import Progress
    from threadloader._engine.settings import Settings
    from threadloader._engine.skipped import Tally
    from threadloader._engine.window import Window
    from threadloader._engine.workers import Workers
    from threadloader._lifetime import DeviceMemory
    from threadloader._order.seeds import EpochSeeds
    from threadloader._order.tickets import PlannedBatch
    from threadloader._report.stages import Tracer
    from threadloader._report.stats import Deliveries
    from threadloader._threads.pool import ThreadGroup
    from threadloader._worker.failure import Failure


FORKED = (
    "this iterator was made before a fork and has no threads here; iter(loader) starts a new one"
)
CLOSED = (
    "this iterator was closed, by close(), or by a later iter() over the same iterable; "
    "iter(loader) starts a new one"
)
# A function that returns the batch, once; what the feed counts it as; the error in its place, or
# None.
Delivery: TypeAlias = "tuple[Callable[[], Any], Any, Failure | None]"


class Epoch(TorchNames, Iterator[Any]):
    """An iterator over the batches of one epoch.

    Args:
        settings: Of the loader.
        window: Has the batches in flight.
        maker: Has them made.
        tally: Counts the samples that were left out.
        seeds: Of the epoch.
        begun: Batches that were delivered before this epoch was resumed.
        ends: Agreed with other ranks; None if it ends with its own batches.

    Invariants, whenever ``_turn`` is not held:
        1. Each batch that was planned is in the window, or was delivered.  In order, the delivered
           batches come first, without a gap.

    Threads:
        start: the caller of ``iter()``, once.
        next, close, cancel: shared; next is meant for one thread, the consumer.
        moment: shared.
    """

    def __init__(
        self,
        settings: Settings,
        window: Window,
        maker: Maker,
        tally: Tally,
        seeds: EpochSeeds,
        begun: int,
        ends: AgreedEnds | None = None,
    ) -> None:
        end_thread_at_exit()
        super().__init__(settings, seeds.workers, begun)
        self._window, self._maker = window, maker
        self._feed, self._progress, self._copier = window.feed, window.progress, window.copier
        self._counted, self._stats, self._threads = maker.counted, maker.stats, maker.threads
        self._tally, self._ends = tally, ends
        self._seeds = seeds
        self._owns_workers = not settings.persistent_workers
        self._shared_out = settings.shared_out
        self._move = settings.move
        # Whether all workers are known to have begun.  From then on an error that ends one of them
        # also cancels the epoch.
        self._begun = maker.threads is None
        self._patience: Patience | None = None
        # Of the batch on a device that was taken last.  A loop that meets an error of the device
        # drops its batch before the traceback is printed: only this keeps torch from ending the
        # process there.
        self._last_sent: DeviceMemory | None = None
        if self._copier is not None:
            self._last_sent = self._copier.device.keep()
        self._pid = os.getpid()
        # Held while one thread gets its batch, so that threads that share an iterator take turns;
        # also while the calling thread runs the dataset's code.  Re-entrant, or a sample that asks
        # for the next batch would wait for itself.  All below, window and maker: guarded by _turn,
        # but that `close` may drop the batches at any moment.
        self._turn = RLock()
        self._outside = 0.0  # seconds of the loop before the present `next`
        self._failed: Any = None  # of the batch whose error was raised by the last call
        self._ended = False  # whether there is nothing more to deliver
        signals: list[Callable[[], None]] = [partial(window.ring.leave, self._progress)]
        workers = maker.threads
        if workers is not None:
            signals.append(workers.stop if self._owns_workers else workers.wake)
        if self._copier is not None:
            signals.append(self._copier.wake)
        if ends is not None:
            signals.append(ends.leave)
        # Dropping the iterator only signals: a finalizer must not wait for anybody.
        self._signal = when_dropped(self, _abandon, self._progress, self._counted, signals)
        try:
            window.ring.enter(self._progress)
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
            if self._copier is not None:
                self._copier.start()
            if self._threads is not None:
                self._threads.start()
                if self._feed.eager:
                    self._window.go_ahead()
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
        """Return how the window is at this moment, see `Window.moment`; from any thread."""
        return self._window.moment()

    @property
    def ended(self) -> bool:
        """Whether it has no batches left, or was closed; stale as soon as it is read."""
        return self._ended or self._progress.cancelled

    def __next__(self) -> Any:
        take = count_as = failure = batch = None
        entered, tracer = perf_counter(), stages.tracer
        try:
            if tracer is not None or self._tally.must_warn:
                self._enter(tracer)
            with self._turn:
                counted, maker = self._counted, self._maker
                maker.entered = entered
                outside, self._outside = self._outside, entered - counted.latest
                if self._outside > PAUSE_SECONDS and self._outside > PAUSE * outside:
                    maker.tuner.leave_out(self._outside)
                take, count_as, failure = self._next_delivery()
                if failure is None:
                    batch = take() if self._move is None else self._moved(take)
                    self._feed.count(count_as, returned=True)
                    self._num_yielded += 1
                else:
                    self._failed = count_as if isinstance(failure.error, Exception) else None
                counted.latest = now = perf_counter()
                counted.loading_seconds += now - entered
                if now >= counted.due or now - entered >= LONG_SECONDS:
                    self._stats.note(counted, now - entered, self._window.moment)
            if failure is not None:
                set_notes(failure.error, failure.notes, self._origin_of(failure, count_as))
                raise failure.error
            return batch
        except BaseException as error:
            self._let_go(error, count_as, users=failure is not None)
            raise
        finally:
            if tracer is not None:
                tracer.end("next")
            # An error keeps the frames that it was raised through, and these keep their callers.
            self = take = count_as = failure = batch = maker = DROPPED

    def _origin_of(self, failure: Failure, plan: Any) -> Origin | None:
        """Return where an error comes from; None of an iterable dataset, or a sampler's."""
        if self._shared_out or plan is None:
            return None
        return Origin(plan, failure.row if failure.is_of_row else None, self._seeds)

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
        self._last_sent = None
        self._maker.calling.end()
        self._window.close()
        self._signal()  # which dropping the iterator will not do again
        if self._threads is not None:
            self._threads.nudge()

    def _enter(self, tracer: Tracer | None) -> None:
        """Tell that `next` begins; and warn, where no batch is lost if warnings are made errors."""
        if tracer is not None:
            tracer.begin("next", self._progress.key)
        self._tally.warn()

    def _let_go(self, error: BaseException, count_as: Any, *, users: bool) -> None:
        """Let an error keep no frames of ours, which hold this iterator, and batches.

        One that is no `Exception`, Ctrl-C say, ends the epoch, and its batch does not count.

        Args:
            error: The error.
            count_as: As what the batch would be counted.
            users: Whether it was raised by the user's code, and has no frames of ours.
        """
        if isinstance(error, Exception):
            if not users:
                strip_all(error)
            return
        self.cancel()  # and wait for nobody: the sample that runs may never end
        if count_as is not None:
            self._feed.take_back(count_as)
        if users:
            strip_all(error)
        else:
            error.with_traceback(None)

    def _moved(self, take: Callable[[], Any]) -> Any:
        """Return a batch on a device without streams."""
        batch, started = take(), perf_counter()
        try:
            return self._move(batch)  # type: ignore[misc]  # it is not None
        finally:
            self._stats.copied(perf_counter() - started)
            self = take = batch = DROPPED  # an error keeps this frame

    def _next_delivery(self) -> Delivery:
        """Wait for the next batch that has samples, or for the error in its place.

        Raises:
            StopIteration: All batches were delivered.
            ClosedError: The epoch was closed, or this process is a fork.
            RuntimeError: It takes longer than the timeout; the next call waits again.
            BaseException: A worker, or the copier, could not begin, and raised this.
        """
        batch = due = None
        try:
            failed, self._failed = self._failed, None
            if failed is not None:
                # A consumer that goes on after the error does without the batch.
                self._feed.count(failed, returned=False)
            if self._ended:
                raise StopIteration
            self._check()
            while due is None:
                batch = self._wait_for_batch()
                if self._ends is not None and self._repeats(self._ends, batch):
                    self._counted.batches += 1
                    return self._ends.repeat, None, None
                if batch is None:
                    self._end()
                self._take_out(batch)
                due = self._delivery_of(batch)
                if due is None:
                    self._feed.count(batch.count_as, returned=False)
            return due
        finally:
            self = batch = due = DROPPED

    def _check(self) -> None:
        """Raise an error where no batch can come."""
        if self._pid != os.getpid():
            raise ClosedError(FORKED)
        if self._maker.making or self._window.planning:
            msg = "a sample, or sampler, can't ask for the next batch of the iterator that loads it"
            raise RuntimeError(msg)

    def _repeats(self, ends: AgreedEnds, batch: OpenBatch | FailedBatch | None) -> bool:
        """Whether this rank has no batch left, and others go on.

        Raises:
            BaseException: As `_next_delivery`; also where the epoch ends on all ranks.
        """
        if not ends.goes_on(batch):
            if self._progress.cancelled:
                raise self._closed()
            self._end()
        return batch is None

    def _wait_for_batch(self) -> OpenBatch | FailedBatch | None:
        """Return the next batch in flight once it is done; None after the last.

        Raises:
            BaseException: As `_next_delivery`.
        """
        head = None
        try:
            head = self._window.head()
            # In this order: `close`, in another thread, first cancels, then drops them.
            if self._progress.cancelled:
                raise self._closed()
            if head is None:
                return None
            if self._window.inline and isinstance(head, OpenBatch):
                self._maker.make(head)
            if self._copier is None and (self._threads is None or (head.done and self._begun)):
                return head
            return self._await(head)
        finally:
            self = head = DROPPED

    def _end(self) -> NoReturn:
        """End the epoch, all of whose batches were delivered."""
        self._ended = True
        self.cancel()  # for an epoch of no batches; others have ended their threads
        self._feed.end(finished=True)
        setup = self._maker.tuner, self._threads is not None, self._shared_out
        warn_if_slow(self._stats, self._counted, setup)
        self._tally.warn()  # of a last batch that had no sample
        raise StopIteration

    def _await(self, head: OpenBatch | FailedBatch) -> OpenBatch | FailedBatch:
        """Wait for the workers to begin, and for a batch; raise what `_next_delivery` does."""
        counted, copying = self._counted, self._copier is not None and head.done
        busy, began = counted.busy_seconds, perf_counter()
        if self._patience is None:
            find = None if self._threads is None else self._threads.find_lost
            self._patience = Patience(self._timeout, self._stats, self._progress, find)
        patience = self._patience
        try:
            left = patience.begin()
            if not self._begun and self._threads is not None:
                try:
                    self._begun = self._threads.ready(left, self._progress)
                except Exception:  # of worker_init_fn
                    self.cancel()
                    self._ended = True
                    raise
            counted.waits_since = perf_counter()
            while not (self._begun and self._reached(head, patience.seconds(self._maker.due()))):
                if perf_counter() >= self._maker.due():
                    self._maker.tune()
                else:
                    patience.check(head, begun=self._begun)
            if isinstance(head, FailedBatch):
                return head
            return next(filter(self._progress.has, self._window.deliverable(head)), head)
        finally:
            counted.waits_since = 0.0
            seconds = perf_counter() - began - (counted.busy_seconds - busy)
            counted.waited(seconds, self._progress.reached_at, copying=copying)

    def _reached(self, head: OpenBatch | FailedBatch, seconds: float | None) -> bool:
        """Wait for a batch that other threads make; return False if that takes too long."""
        if isinstance(head, FailedBatch):
            return True
        tracer = None if self._progress.has(head) else stages.tracer
        if tracer is not None:
            tracer.begin("wait", self._progress.key)
        try:
            return self._progress.wait(self._window.deliverable(head), seconds)
        finally:
            if tracer is not None:
                tracer.end("wait")

    def _take_out(self, batch: OpenBatch | FailedBatch) -> None:
        """Take a batch out of the window, and plan the next one."""
        if not self._window.take_out(batch):
            raise self._closed()
        if self._threads is not None:
            self._plan_on(self._threads)

    def _plan_on(self, threads: Workers) -> None:
        """Let as many threads as are best make the next batches; end them if there are none."""
        window, maker = self._window, self._maker
        if not window.inline and perf_counter() >= maker.due():
            maker.tune()
        window.go_ahead()
        if not (window.inline or window.batches):
            # Here and not at StopIteration, which a loop over len(loader) never reaches.
            window.ring.leave(self._progress)
            if self._owns_workers:
                threads.stop()

    def _delivery_of(self, batch: OpenBatch | FailedBatch) -> Delivery | None:
        """Return the delivery of a batch; None if it is empty."""
        if isinstance(batch, OpenBatch) and (batch.skipped or batch.exhausted):
            excess = self._tally.add(batch) if batch.skipped else None
            # A sample too many that was left out is raised in the place of the batch.
            batch.failure = batch.failure or excess
            if batch.failure is None and batch.empty:
                return None
        self._counted.batches += 1
        if isinstance(batch, FailedBatch) or batch.failure is not None:
            if self._copier is not None:
                self._copier.drop(batch)
            return batch.take, batch.count_as, batch.failure
        nbytes = batch.filling.nbytes
        self._counted.nbytes += nbytes
        if self._threads is not None:
            self._window.depth.delivered(nbytes)
        take = batch.filling.take
        if self._copier is not None:
            take = partial(self._take_copy, self._copier, batch)
        if self._ends is not None:
            take = self._ends.kept(take, self._window)
        return take, batch.count_as, None

    def _take_copy(self, copier: Copier, batch: OpenBatch) -> Any:
        """Return a batch on the device."""
        try:
            sent = copier.take(batch)
            if (last := self._last_sent) is not None:  # another thread may close the epoch
                last.memory = sent.tensors
            if not self._window.batches and self._window.planned_all:
                copier.end()  # a loop over len(loader) never reaches StopIteration
            return sent.batch
        finally:
            self = copier = batch = last = DROPPED

    @property
    def _sampler_iter(self) -> Iterator[Any]:
        """Yields the indices of the batches that are left, which the consumer does not get then."""
        return iter(self._next_index, _NEVER)

    def _next_index(self) -> Any:
        """Leave out the next batch, and return its indices.

        Raises:
            StopIteration: There is none.
        """
        if self._dataset_kind:
            return next(iter(self._index_sampler))  # a dummy, which says nothing of samples
        with self._turn:
            plan = self._leave_out()
        indices = [plan.index_of(row) for row in range(len(plan.indices))]
        return indices if self._auto_collation else indices[0]

    def _leave_out(self) -> PlannedBatch:
        """Count the next batch as one that the consumer does not get, and return its plan."""
        batch: OpenBatch | FailedBatch | None
        if self._window.inline and self._copier is None:
            batch = self._window.head()  # which nobody has begun to make
            if batch is None:
                raise StopIteration
            self._window.batches.remove(batch)
        else:
            batch = self._wait_for_batch()
            if batch is None:
                self._end()
            self._take_out(batch)
        if isinstance(batch, FailedBatch):
            batch.take()
        if self._copier is not None:
            self._copier.drop(batch)
        self._feed.count(batch.count_as, returned=False)
        return batch.plan

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


_NEVER = object()  # no sampler yields that


def _abandon(progress: Progress, counted: Deliveries, signals: list[Callable[[], None]]) -> None:
    """End an epoch whose iterator was dropped; waits for nobody."""
    progress.cancel()
    counted.end()
    for signal in signals:
        signal()
