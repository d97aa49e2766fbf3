"""What workers do with one batch: its tickets, its progress, its errors.

    claim a ticket -> fetch its samples -> write their rows -> the last one collates -> done

A batch is open from its planning to its delivery.  Workers reach it only through tickets, so
one that nobody waits for any more lives as long as its last running ticket, and its slot is not
reused before.
"""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import dataclass
from functools import partial
from threading import Condition, RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from threadloader.errors import ThreadLoaderError
from threadloader.failure import Failure, failure_of, strip
from threadloader.order import Pace, TicketCutter
from threadloader.pool import begin_exit
from threadloader.rng import begin_batch, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from threadloader.collate import Collation
    from threadloader.device import Event
    from threadloader.fetch import Fetches
    from threadloader.filling import Filling, Sent
    from threadloader.pool import Job
    from threadloader.stats import Counters
    from threadloader.ticket import PlannedBatch, Ticket

__all__ = [
    "FailedBatch",
    "OpenBatch",
    "Progress",
    "Stages",
    "Worker",
    "work_inline",
]


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker knows of itself."""

    number: int  # from 0
    place: str  # "worker 3", for notes on errors
    counters: Counters  # its own; nobody else writes them


@dataclass(frozen=True, slots=True)
class Stages:
    """What workers need of the stages.  Nothing here refers to the loader or to the sampler."""

    fetchers: list[Fetches]  # one a worker
    whole: bool  # whether a batch is one ticket
    pace: Pace
    collation: Collation
    seed: int | None = None  # of the random streams of samples and batches; None for none


# Every epoch that may have open batches: the process-wide hook of the interpreter's exit.  It is
# registered after that of the pool, which is imported above, and so runs before it: first no
# sample starts, then threads end.
_epochs: weakref.WeakSet[Progress] = weakref.WeakSet()
_epochs_lock = RLock()  # a finalizer of the user's may run inside, and start an epoch


def _forget_epochs() -> None:
    """Start afresh in a forked child: no epoch of the parent's goes on, and a lock may be held."""
    global _epochs, _epochs_lock  # of the process, and this is a new one
    _epochs, _epochs_lock = weakref.WeakSet(), RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_epochs)


@atexit.register
def _cancel_all() -> None:
    """Cancel every epoch; a consumer that goes on in an exit handler is told that it is closed."""
    begin_exit()
    with _epochs_lock:
        epochs = list(_epochs)
    for progress in epochs:
        progress.close()


class Progress:
    """What workers report and the consumer waits for.

    Invariants, whenever ``_changed`` is not held:
        1. A batch that is done has no running ticket, and never changes again.

    Threads:
        finished, collated: worker.
        wait, wait_for_any, close: consumer.
        cancel: shared, also from a finalizer; it takes no lock.
    """

    def __init__(self) -> None:
        with _epochs_lock:
            _epochs.add(self)
        self.cancelled = False  # only ever set; read and written whole, on both builds
        # Told of each batch that is done, and of the end; called with the lock held, or by a
        # finalizer: it must do no more than `SimpleQueue.put` does.
        self.told: Callable[[], None] = _nobody
        self._changed = Condition()
        # All below, and the progress of each open batch: guarded by _changed.
        self._awaited: OpenBatch | None = None
        self._any_awaited = False

    def cancel(self) -> None:
        """Let no further sample be fetched."""
        self.cancelled = True

    def finished(self, batch: OpenBatch, ticket: Ticket, failure: Failure | None) -> bool:
        """Count a ticket's rows; return whether the batch is now to be collated."""
        with self._changed:
            # The loser is let go after the lock: its frames may hold finalizers of the user's.
            loser = batch.keep_lowest(failure)  # noqa: F841
            batch.missing -= ticket.stop - ticket.start
            if batch.missing or self.cancelled:
                return False
            if batch.failure is None:
                return True
            self._let_go(batch)
            return False

    def collated(self, batch: OpenBatch, failure: Failure | None) -> None:
        """Let the consumer have a batch."""
        with self._changed:
            loser = batch.keep_lowest(failure)  # noqa: F841  # let go after the lock
            self._let_go(batch)

    def wait(self, batch: OpenBatch, timeout: float | None = None) -> bool:
        """Wait until ``batch`` is done, or the epoch is closed; return False if it takes too long.

        Args:
            batch: The batch.
            timeout: Seconds; None waits for ever.
        """
        # Unlocked first: one attribute load, and a batch that is done stays so.
        if batch.done:
            return True
        with self._changed:
            self._awaited = batch
            try:
                return self._changed.wait_for(lambda: batch.done or self.cancelled, timeout)
            finally:
                self._awaited = None

    def wait_for_any(self, batches: Iterable[OpenBatch], timeout: float | None = None) -> bool:
        """Wait until one of ``batches`` is done, as `wait` does for one."""
        with self._changed:
            self._any_awaited = True
            try:
                return self._changed.wait_for(
                    lambda: self.cancelled or any(batch.done for batch in batches), timeout
                )
            finally:
                self._any_awaited = False

    def tell_nobody(self) -> None:
        """Let go of whoever was told of batches."""
        self.told = _nobody

    def close(self) -> None:
        """Cancel, and wake a consumer that waits in another thread."""
        self.cancel()
        with self._changed:
            self._changed.notify_all()
        self.told()

    def _let_go(self, batch: OpenBatch) -> None:
        batch.done = True
        if batch is self._awaited or self._any_awaited:
            self._changed.notify_all()
        self.told()

    def has(self, batch: OpenBatch) -> bool:
        """Whether there is nothing to wait for."""
        return batch.done


def _nobody() -> None:
    """There is nobody to tell."""


class OpenBatch:
    """A batch from its planning to its delivery; for the pool, the work that tickets are cut of.

    Threads:
        claim, jobs: the pool, with its lock held.
        keep_lowest, missing, done: guarded by the epoch's `Progress`.
        failure: likewise, but for an unlocked look in `_work`, which may come one sample late.
    """

    __slots__ = (
        "_cutter",
        "_progress",
        "_stages",
        "arrived",
        "done",
        "exhausted",
        "failure",
        "filling",
        "missing",
        "plan",
        "sent",
    )

    filling: Filling  # all three: of a stream's batch only once it was read
    missing: int  # rows
    _cutter: TicketCutter

    def __init__(
        self, plan: PlannedBatch, stages: Stages, progress: Progress, *, begin: bool = True
    ) -> None:
        self.plan = plan
        self.failure: Failure | None = None
        self.done = False
        self.exhausted = False  # whether there was nothing to read; it is not returned then
        # The copier's, if there is one: whether the copy was begun, or the batch failed; and what
        # is on its way to the device.
        self.arrived = False
        self.sent: tuple[Sent, Event] | None = None
        self._stages = stages
        self._progress = progress
        if begin:
            self.begin(plan)

    def begin(self, plan: PlannedBatch) -> None:
        """Open the batch for its rows; called once, before the pool has it."""
        stages = self._stages
        self.plan = plan
        self.filling = stages.collation.open(len(plan.indices))
        self.missing = len(plan.indices)
        workers = len(stages.fetchers)
        self._cutter = TicketCutter(plan, stages.pace, workers, whole=stages.whole)

    def claim(self) -> Job[Worker] | None:
        """Return the next ticket as a job, or None after the last."""
        ticket = None if self._progress.cancelled else self._cutter.cut()
        if ticket is None:
            return None
        return partial(_work, self, ticket, self._stages, self._progress)

    def jobs(self) -> int:
        """Estimate how many tickets are left, at least 1."""
        return self._cutter.left()

    def take(self) -> Any:
        """Return the batch, once it is done without a failure."""
        return self.filling.take()

    def keep_lowest(self, failure: Failure | None) -> Failure | None:
        """Note an error, unless a lower row has one; return the one of the two that is not kept."""
        if failure is None or failure is self.failure:
            return None
        if self.failure is None or failure.row < self.failure.row:
            failure, self.failure = self.failure, failure
        return failure


# An exception keeps the frames of the user's code, and those keep the frames that called them,
# ours included, with all that their variables hold when they return.  So the functions between
# a thread's loop and the user's code drop what leads to a slot before they return.


def _work(
    batch: OpenBatch, ticket: Ticket, stages: Stages, progress: Progress, worker: Worker
) -> None:
    """Do one ticket; the job that a worker runs."""
    failure = batch.failure
    try:
        if failure is None or ticket.start < failure.row:
            failure = _fill(batch, ticket, stages, progress, worker)
        if progress.finished(batch, ticket, failure):
            started = perf_counter()
            failure = _finish(batch, worker, stages.seed)
            worker.counters.collate_seconds += perf_counter() - started
            progress.collated(batch, failure)
    except BaseException as error:  # noqa: BLE001  # a bug of ours must not leave anybody waiting
        progress.collated(batch, Failure(error, ticket.start))
    finally:
        del batch, ticket, stages, progress, failure


def _fill(
    batch: OpenBatch, ticket: Ticket, stages: Stages, progress: Progress, worker: Worker
) -> Failure | None:
    """Fetch the samples of a ticket and write them."""
    samples = failed = None
    try:
        started = perf_counter()
        samples, failed = stages.fetchers[worker.number].fetch(ticket, progress, stages.seed)
        fetched = perf_counter()
        if failed is not None:
            # __getitems__ does not tell which of its samples failed.
            row = None if stages.whole else ticket.start + samples
            return failure_of(failed, row, batch.plan, worker.place)
        if progress.cancelled:
            return None  # not all of them were fetched
        batch.filling.write(ticket.start, ticket.stop, samples)
        written = perf_counter()
        _count(worker.counters, ticket, fetched - started, written - fetched)
        stages.pace.measured(ticket.stop - ticket.start, written - started)
        return None
    except BaseException as error:  # noqa: BLE001  # no memory, say; handed to the consumer
        return failure_of(error, ticket.start, batch.plan, worker.place)
    finally:
        samples = failed = None
        del batch, ticket, stages, progress


def _finish(batch: OpenBatch, worker: Worker, seed: int | None) -> Failure | None:
    """Collate a batch whose rows are all there."""
    failed = None
    try:
        if seed is not None:
            begin_batch(seed, batch.plan.sequence)
        failed = batch.filling.finish()
        return (
            None if failed is None else failure_of(failed[0], failed[1], batch.plan, worker.place)
        )
    except BaseException as error:  # noqa: BLE001  # no memory, say; handed to the consumer
        return failure_of(error, None, batch.plan, worker.place)
    finally:
        end()
        failed = None
        del batch


def _count(counters: Counters, ticket: Ticket, fetch: float, collate: float) -> None:
    counters.tickets += 1
    counters.samples += ticket.stop - ticket.start
    counters.fetch_seconds += fetch
    counters.collate_seconds += collate


def work_inline(batch: OpenBatch, worker: Worker) -> None:
    """Do all the work of one batch in the calling thread."""
    while (job := batch.claim()) is not None:
        job(worker)
    del batch, job


class FailedBatch:
    """Stands in the window for a batch that could not be planned: an error, in its place."""

    done = True
    exhausted = False

    def __init__(self, error: Exception) -> None:
        if isinstance(error, ThreadLoaderError):
            BaseException.with_traceback(error, None)  # all frames are ours, and lead to the epoch
        strip(error)
        self.failure = Failure(error, 0)

    def take(self) -> NoReturn:
        """Raise the error."""
        raise self.failure.error
