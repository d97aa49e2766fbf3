"""One pass over the data: the only module that knows all stages.

    planner -> _OpenBatch -> pool -> fetcher -> filling -> delivered in order

The consumer's thread is the planner: it draws the whole window of batches when the epoch
starts, and one more before each batch that it returns, as torch does; workers never touch the
sampler.  A worker that takes a ticket fetches its samples and writes their rows; whoever
writes the last row of a batch finishes it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Condition
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader.errors import ClosedError, SampleError
from threadloader.order import Pace, Planner, TicketCutter
from threadloader.ticket import PlannedBatch

if TYPE_CHECKING:
    from types import TracebackType

    from threadloader.collate import Collation, Filling
    from threadloader.fetch import Fetcher
    from threadloader.pool import Job, Pool
    from threadloader.stats import Counters, Stats
    from threadloader.ticket import Ticket

__all__ = ["Epoch", "Stages", "Window", "Worker"]

_PACKAGE = __name__.partition(".")[0]
_CLOSED = "this iterator was closed; iter(loader) starts a new one"


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker knows of itself."""

    number: int  # from 0
    place: str  # "worker 3", for notes on errors
    counters: Counters  # its own; nobody else writes them


@dataclass(frozen=True, slots=True)
class Stages:
    """What workers need of the stages.  Nothing here refers to the loader or to the sampler."""

    fetchers: list[Fetcher]  # one a worker
    whole: bool  # whether a batch is one ticket
    pace: Pace
    collation: Collation


SMALL_WINDOW = 16  # batches: handing over costs two thread switches a window (bench: rows)
SMALL_NBYTES = 16 << 20  # bytes that such a window may take
LARGE_NBYTES = 1 << 30  # bytes that any window may take, as long as two batches fit


@dataclass(frozen=True, slots=True)
class Window:
    """How many batches may be planned and not yet returned."""

    batches: int
    fixed: bool  # whether the user chose the number

    @property
    def most(self) -> int:
        """Batches at the most, whatever their size."""
        return self.batches if self.fixed else max(self.batches, SMALL_WINDOW)

    def room(self, nbytes: int) -> int:
        """Return how many batches to plan.

        Args:
            nbytes: Bytes of the last batch delivered; 0 if unknown.  Not of the last batch
                loaded: how far ahead a sampler is drawn must not depend on what is fast.
        """
        if self.fixed or not nbytes:
            return self.batches
        small = min(SMALL_WINDOW, SMALL_NBYTES // nbytes)
        return min(max(self.batches, small), max(2, LARGE_NBYTES // nbytes))


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error, and the row by which the lowest of several is chosen."""

    error: BaseException
    row: int


class _Progress:
    """What workers report and the consumer waits for.

    Invariants, whenever ``_changed`` is not held:
        1. A batch that is done has no running ticket, and never changes again.

    Threads:
        finished, collated: worker.
        wait, close: consumer.
        cancel: shared, also from a finalizer; it takes no lock.
    """

    def __init__(self) -> None:
        self.cancelled = False  # only ever set; read and written whole, on both builds
        self._changed = Condition()
        # All below, and the progress of each open batch: guarded by _changed.
        self._awaited: _OpenBatch | None = None

    def cancel(self) -> None:
        """Let no further sample be fetched."""
        self.cancelled = True

    def finished(self, batch: _OpenBatch, ticket: Ticket, failure: _Failure | None) -> bool:
        """Count a ticket's rows; return whether the batch is now to be collated."""
        with self._changed:
            if failure is not None:
                batch.keep_lowest(failure)
            batch.missing -= ticket.stop - ticket.start
            if batch.missing or self.cancelled:
                return False
            if batch.failure is None:
                return True
            self._let_go(batch)
            return False

    def collated(self, batch: _OpenBatch, failure: _Failure | None) -> None:
        """Let the consumer have a batch."""
        with self._changed:
            if failure is not None:
                batch.keep_lowest(failure)
            self._let_go(batch)

    def wait(self, batch: _OpenBatch) -> None:
        """Wait until ``batch`` is done, or the epoch is closed."""
        # Unlocked first: one attribute load, and a batch that is done stays so.
        if not batch.done:
            with self._changed:
                self._awaited = batch
                self._changed.wait_for(lambda: batch.done or self.cancelled)
                self._awaited = None

    def close(self) -> None:
        """Cancel, and wake a consumer that waits in another thread."""
        self.cancel()
        with self._changed:
            self._changed.notify_all()

    def _let_go(self, batch: _OpenBatch) -> None:
        batch.done = True
        if batch is self._awaited:
            self._changed.notify_all()


class _OpenBatch:
    """A batch from its planning to its delivery; for the pool, the work that tickets are cut of.

    Threads:
        claim, jobs: the pool, with its lock held.
        keep_lowest, missing, done: guarded by the epoch's `_Progress`.
        failure: likewise, but for an unlocked look in `_work`, which may come one sample late.
    """

    __slots__ = ("_cutter", "_progress", "_stages", "done", "failure", "filling", "missing", "plan")

    def __init__(self, plan: PlannedBatch, stages: Stages, progress: _Progress) -> None:
        self.plan = plan
        self.filling: Filling = stages.collation.open(len(plan.indices))
        self.missing = len(plan.indices)  # rows
        self.failure: _Failure | None = None
        self.done = False
        workers = len(stages.fetchers)
        self._cutter = TicketCutter(plan, stages.pace, workers, whole=stages.whole)
        self._stages = stages
        self._progress = progress

    def claim(self) -> Job[Worker] | None:
        ticket = None if self._progress.cancelled else self._cutter.cut()
        if ticket is None:
            return None
        return partial(_work, self, ticket, self._stages, self._progress)

    def jobs(self) -> int:
        return self._cutter.left()

    def keep_lowest(self, failure: _Failure) -> None:
        if self.failure is None or failure.row < self.failure.row:
            self.failure = failure


# An exception keeps the frames of the user's code, and those keep the frames that called them,
# ours included, with all that their variables hold when they return.  So the functions between
# a thread's loop and the user's code drop what leads to a slot before they return.


def _work(
    batch: _OpenBatch, ticket: Ticket, stages: Stages, progress: _Progress, worker: Worker
) -> None:
    """Do one ticket; the job that a worker runs."""
    failure = batch.failure
    if failure is None or ticket.start < failure.row:
        failure = _fill(batch, ticket, stages, progress, worker)
    if progress.finished(batch, ticket, failure):
        started = perf_counter()
        failure = _finish(batch, worker)
        worker.counters.collate_seconds += perf_counter() - started
        progress.collated(batch, failure)
    del batch, stages, progress, failure


def _fill(
    batch: _OpenBatch, ticket: Ticket, stages: Stages, progress: _Progress, worker: Worker
) -> _Failure | None:
    """Fetch the samples of a ticket and write them."""
    samples = failed = None
    try:
        started = perf_counter()
        samples, failed = stages.fetchers[worker.number].fetch(ticket, progress)
        fetched = perf_counter()
        if failed is not None:
            # __getitems__ does not tell which of its samples failed.
            row = None if stages.whole else ticket.start + len(samples)
            return _failure(failed, row, batch.plan, worker)
        batch.filling.write(ticket.start, ticket.stop, samples)
        written = perf_counter()
        _count(worker.counters, ticket, fetched - started, written - fetched)
        stages.pace.measured(ticket.stop - ticket.start, written - started)
        return None
    except BaseException as error:  # noqa: BLE001  # no memory, say; handed to the consumer
        return _failure(error, ticket.start, batch.plan, worker)
    finally:
        samples = failed = None
        del batch, stages, progress


def _finish(batch: _OpenBatch, worker: Worker) -> _Failure | None:
    """Collate a batch whose rows are all there."""
    failed = None
    try:
        failed = batch.filling.finish()
        return None if failed is None else _failure(failed[0], failed[1], batch.plan, worker)
    except BaseException as error:  # noqa: BLE001  # no memory, say; handed to the consumer
        return _failure(error, None, batch.plan, worker)
    finally:
        failed = None
        del batch


def _count(counters: Counters, ticket: Ticket, fetch: float, collate: float) -> None:
    counters.tickets += 1
    counters.samples += ticket.stop - ticket.start
    counters.fetch_seconds += fetch
    counters.collate_seconds += collate


def _failure(error: BaseException, row: int | None, plan: PlannedBatch, worker: Worker) -> _Failure:
    """Make an error ready for the consumer: with a note, and without our own frames."""
    # Not by attribute: an exception class may be a frozen dataclass.
    error.with_traceback(_without_our_frames(error.__traceback__))
    if isinstance(error, StopIteration):
        # Raised from next(), it would end the epoch as if the data had come to its end.
        stopped = SampleError("loading a sample raised StopIteration")
        stopped.__cause__ = error
        error = stopped
    with suppress(Exception):  # an index without a repr(), an error that refuses notes
        where = f"in {worker.place}, batch {plan.sequence}"
        if row is not None and row < len(plan.indices):
            where += f", index {plan.indices[row]!r}"
        error.add_note(where)
    return _Failure(error, row or 0)


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Skip the frames between a worker's loop and the user's code."""
    inner = traceback
    while inner is not None:
        module = inner.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != _PACKAGE:
            return inner
        inner = inner.tb_next
    return traceback  # no code but ours: that is what there is to see


class Epoch(Iterator[Any]):
    """An iterator over the batches of one epoch, in order.

    Args:
        planner: Draws the batches.
        stages: What workers need.
        window: How far ahead batches are drawn.
        pool: Whose threads do the work; None for the calling thread.
        owns_pool: Whether the pool ends with this epoch.
        inline: The worker that the calling thread is, without a pool.
        stats: Counts what is delivered.
        length: Batches in the epoch, asked for only by ``len()``.

    Threads:
        all methods: compatible; meant for one thread, the consumer.
        close: shared.
    """

    def __init__(
        self,
        planner: Planner,
        stages: Stages,
        window: Window,
        *,
        pool: Pool[Worker] | None,
        owns_pool: bool,
        inline: Worker,
        stats: Stats,
        length: Callable[[], int],
    ) -> None:
        self._planner = planner
        self._stages = stages
        self._window = window
        self._pool = pool
        self._owns_pool = owns_pool
        self._inline = inline
        self._stats = stats
        self._length = length
        self._progress = _Progress()
        self._open: deque[_OpenBatch] = deque()  # drawn and not yet returned, in order
        self._drawn_all = False
        # Dropping the iterator only signals: a finalizer must not wait for anybody.
        end = pool.stop if pool is not None and owns_pool else None
        wake = pool.wake if pool is not None and not owns_pool else None
        weakref.finalize(self, _abandon, self._progress, end or wake).atexit = False
        if pool is not None:
            self._draw()

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        batch = failure = None
        try:
            batch = self._first()
            if self._pool is None:
                _work_inline(batch, self._inline)
                self._stats.delivered(0.0)
            else:
                self._wait(batch)
            self._open.popleft()
            if self._pool is not None:
                self._draw()
            failure = batch.failure
            if failure is not None:
                raise failure.error
            return batch.filling.take()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, say, here or in a sample
            self.close()
            raise
        finally:
            # The frame of this call stays with an error that is raised.
            batch = failure = None
            del self

    def close(self) -> None:
        """Cancel what is queued, and wait for the samples that are running.  Idempotent."""
        self._progress.close()
        self._open.clear()
        if self._pool is None:
            return
        if self._owns_pool:
            self._pool.stop()
            self._pool.join()
        else:
            self._pool.wake()

    def _first(self) -> _OpenBatch:
        """Return the batch that is delivered next.

        Raises:
            ClosedError: `close` was called.
            StopIteration: All batches were delivered.
        """
        if self._progress.cancelled:
            raise ClosedError(_CLOSED)
        if not self._open:
            self._draw()
        if not self._open:
            if self._pool is not None and self._owns_pool:
                self._pool.stop()
            raise StopIteration
        return self._open[0]

    def _wait(self, batch: _OpenBatch) -> None:
        started = perf_counter()
        self._progress.wait(batch)
        self._stats.delivered(perf_counter() - started)
        if not batch.done:
            raise ClosedError(_CLOSED)

    def _draw(self) -> None:
        """Draw batches from the sampler until the window is full."""
        room = 1
        if self._pool is not None:
            room = self._window.room(self._stages.collation.delivered_nbytes)
        while not self._drawn_all and len(self._open) < room:
            try:
                plan = self._planner.draw()
            except Exception as error:  # noqa: BLE001  # raised in its place, after what came before
                self._open.append(_failed(error, self._stages, self._progress))
                return
            if plan is None:
                self._drawn_all = True
                return
            batch = _OpenBatch(plan, self._stages, self._progress)
            self._open.append(batch)
            if self._pool is not None:
                self._pool.put(batch)


def _work_inline(batch: _OpenBatch, worker: Worker) -> None:
    """Do all the work of one batch in the calling thread."""
    while (job := batch.claim()) is not None:
        job(worker)
    del batch, job


def _failed(error: Exception, stages: Stages, progress: _Progress) -> _OpenBatch:
    """Return a batch that stands for an error of the sampler."""
    batch = _OpenBatch(PlannedBatch(-1, (), None), stages, progress)
    batch.failure = _Failure(error, 0)
    batch.done = True
    return batch


def _abandon(progress: _Progress, signal: Callable[[], None] | None) -> None:
    progress.cancel()
    if signal is not None:
        signal()
