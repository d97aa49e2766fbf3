"""What workers do with one batch: its tickets, its progress, its errors.

    claim a ticket -> fetch its samples -> write their rows -> the last one collates -> done

A batch is open from its planning to its delivery.  Workers reach it only through tickets, so
one that nobody waits for any more lives as long as its last running ticket, and its slot is not
reused before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from threadloader._fetch.failure import Failure, failure_of, strip
from threadloader._fetch.on_error import refusal
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.tickets import Ticket, TicketCutter, TicketSize
from threadloader._rng.streams import enter_batch_stream, enter_sample_streams, leave_streams
from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._batch.filling import Filling, Sent
    from threadloader._fetch.fetcher import Fetches
    from threadloader._fetch.on_error import OnError
    from threadloader._order.tickets import PlannedBatch
    from threadloader._threads.thread_group import Job
    from threadloader._torch.device import Event
    from threadloader._work.counters import Counters
    from threadloader._work.progress import Progress

__all__ = [
    "FailedBatch",
    "OpenBatch",
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
    ticket_size: TicketSize
    collation: Collation
    seed: int | None = None  # of the random streams of samples and batches; None for none
    on_error: OnError = "raise"  # what is done about samples that fail
    gathers: bool = False  # whether batches take rows of arrays
    # Each worker's copy of the user's, or None where there was nothing to copy; None for no copies.
    collate_fns: list[Any] | None = None


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
        "skipped",
        "unread",
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
        self.skipped: list[Failure] = []  # of the rows left out; appending is atomic on both builds
        self.unread: list[Failure] = []  # of samples that would have been rows
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
        stages, progress = self._stages, self._progress
        self.plan = plan
        self.filling = stages.collation.open(len(plan.indices), plan.ends)
        self.missing = len(plan.indices)
        workers = len(stages.fetchers)
        progress.begun(self)
        self._cutter = TicketCutter(
            plan, stages.ticket_size, workers, progress.shared, one_ticket=stages.whole
        )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to return, once it is done without a failure."""
        return self.exhausted or bool(self.skipped and len(self.skipped) == len(self.plan.indices))

    def leave_out(self, failure: Failure) -> None:
        """Make the batch without the row that failed."""
        self.filling.leave_out(failure.row)
        self.skipped.append(failure)

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
        """Return the batch, once it is done without a failure; of several, what gives each."""
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
            failure = _finish(batch, stages, worker)
            worker.counters.collate_seconds += perf_counter() - started
            progress.collated(batch, failure)
    except BaseException as error:  # noqa: BLE001  # a bug of ours must not leave anybody waiting
        progress.collated(batch, Failure(error, ticket.start))
    finally:
        batch = ticket = stages = progress = failure = DROPPED


def _fill(
    batch: OpenBatch, ticket: Ticket, stages: Stages, progress: Progress, worker: Worker
) -> Failure | None:
    """Fetch the samples of a ticket and write them."""
    samples = failed = None
    fetcher = stages.fetchers[worker.number]
    try:
        started = perf_counter()
        singly = not (stages.whole or stages.gathers)
        samples, failed = fetcher.fetch(ticket, progress, stages.seed, singly=singly)
        fetched = perf_counter()
        if failed is not None:
            return _go_on(batch, ticket, samples, failed, stages, progress, worker)
        if progress.cancelled:
            return None  # not all of them were fetched
        batch.filling.write(ticket.start, ticket.stop, samples)
        written = perf_counter()
        _count(worker.counters, ticket, fetched - started, written - fetched)
        stages.ticket_size.measured(ticket.stop - ticket.start, written - started)
        return None
    except BaseException as error:  # noqa: BLE001  # no memory, say; handed to the consumer
        return failure_of(error, ticket.start, batch.plan, worker.place)
    finally:
        samples = failed = None
        batch = ticket = stages = progress = fetcher = DROPPED


def _go_on(
    batch: OpenBatch,
    ticket: Ticket,
    samples: Any,
    failed: BaseException | None,
    stages: Stages,
    progress: Progress,
    worker: Worker,
) -> Failure | None:
    """Do the rest of a ticket without the samples that fail, unless one is to be raised.

    Args:
        batch: The batch.
        ticket: Which rows of it.
        samples: Those before the one that failed.
        failed: Its error.
        stages: What workers need.
        progress: Of the epoch.
        worker: The calling thread.
    """
    plan, fetcher = batch.plan, stages.fetchers[worker.number]
    start, singly = ticket.start, stages.whole
    failure: Failure | None = None
    refused: BaseException | None = None
    try:
        if singly and failed is not None:  # __getitems__ does not tell which of its samples failed
            skips = stages.on_error != "raise" and isinstance(failed, Exception)
            if not (skips and fetcher.can_fetch_singly(plan)):
                return failure_of(failed, None, plan, worker.place)
            samples, failed = fetcher.fetch(ticket, progress, stages.seed, singly=True)
        while failed is not None:
            failure = failure_of(failed, start + len(samples), plan, worker.place)
            refused = _refusal(failure, plan, stages)
            if refused is not None:
                told = refused is failure.error
                return failure if told else failure_of(refused, failure.row, plan, worker.place)
            if samples:
                batch.filling.write(start, failure.row, samples)
                worker.counters.samples += len(samples)
            batch.leave_out(failure)
            start, samples, failed = failure.row + 1, [], None
            if start < ticket.stop:
                ticket = Ticket(plan, start, ticket.stop)
                samples, failed = fetcher.fetch(ticket, progress, stages.seed, singly=singly)
        if samples and not progress.cancelled:
            batch.filling.write(start, ticket.stop, samples)
            worker.counters.samples += len(samples)
        worker.counters.tickets += 1
        return None
    finally:
        samples = failed = failure = refused = None
        batch = ticket = stages = progress = fetcher = plan = DROPPED


def _refusal(failure: Failure, plan: PlannedBatch, stages: Stages) -> BaseException | None:
    """Return what is raised for a sample that failed; None if it is to be left out."""
    if not isinstance(failure.error, Exception):
        return failure.error  # Ctrl-C, behind the last sample perhaps: that row has no index
    try:
        if stages.seed is not None:  # what on_error draws is the sample's, too
            enter_sample_streams(stages.seed, plan.position + failure.row, ())
        return refusal(stages.on_error, failure.error, plan.index_of(failure.row))
    finally:
        leave_streams()
        failure = plan = stages = DROPPED


def _finish(batch: OpenBatch, stages: Stages, worker: Worker) -> Failure | None:
    """Collate a batch whose rows are all there."""
    failed = own = None
    try:
        if stages.seed is not None:
            enter_batch_stream(stages.seed, batch.plan.sequence)
        own = None if stages.collate_fns is None else stages.collate_fns[worker.number]
        failed = batch.filling.finish(own)
        return (
            None if failed is None else failure_of(failed[0], failed[1], batch.plan, worker.place)
        )
    except BaseException as error:  # noqa: BLE001  # no memory, say; handed to the consumer
        return failure_of(error, None, batch.plan, worker.place)
    finally:
        leave_streams()
        failed = own = None
        batch = stages = DROPPED


def _count(counters: Counters, ticket: Ticket, fetch: float, collate: float) -> None:
    counters.tickets += 1
    counters.samples += ticket.stop - ticket.start
    counters.fetch_seconds += fetch
    counters.collate_seconds += collate


def work_inline(batch: OpenBatch, worker: Worker) -> None:
    """Do all the work of one batch in the calling thread."""
    while (job := batch.claim()) is not None:
        job(worker)
    batch = job = DROPPED


class FailedBatch:
    """Stands in the window for a batch that could not be planned: an error, in its place."""

    done = True
    empty = exhausted = False

    def __init__(self, error: Exception) -> None:
        if isinstance(error, ThreadLoaderError):
            BaseException.with_traceback(error, None)  # all frames are ours, and lead to the epoch
        strip(error)
        self.failure = Failure(error, 0)

    def take(self) -> NoReturn:
        """Raise the error."""
        raise self.failure.error
