"""What workers do with one batch: its tickets, its samples that fail, its end.

    claim a ticket -> fetch its samples -> write their rows -> the last one collates -> done

A batch is open from its planning to its delivery.  Workers reach it only through tickets.  So a
batch that nobody waits for any more lives until its last running ticket ends, and its slots are
not reused before.
"""

from __future__ import annotations

import math
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from threadloader._engine.progress import Awaited
from threadloader._lifetime import DROPPED
from threadloader._order.tickets import Ticket, TicketCutter, TicketSize
from threadloader._report import stages
from threadloader._worker.failure import Failure, error_to_raise, failure_of, set_notes, strip
from threadloader._worker.streams import (
    enter_batch_stream,
    enter_sample_streams,
    leave_streams,
)
from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from threadloader._batch.collate import Collation
    from threadloader._batch.filling import DeviceBatch, Filling
    from threadloader._engine.copies import Worker
    from threadloader._engine.progress import Progress
    from threadloader._order.tickets import PlannedBatch
    from threadloader._report.stages import Tracer
    from threadloader._threads.pool import Job
    from threadloader._torch.device import Event
    from threadloader._worker.failure import OnError


class Pipeline(NamedTuple):
    """What workers need to make the batches of an epoch; it refers to no loader and no sampler."""

    whole_batches: bool  # whether a batch is one ticket
    ticket_size: TicketSize
    collation: Collation
    seed: int | None = None  # of the random streams of samples and batches; None for none
    on_error: OnError = "raise"
    gathers: bool = False  # whether batches take rows of arrays


class OpenBatch(Awaited):
    """A batch from its planning to its delivery; the pool's work, which is cut into tickets.

    Threads:
        claim, jobs: the pool, with its lock held.
        as `Awaited`; failure: also an unlocked read in `_work`, which may come one sample late.
    """

    __slots__ = (
        "_cutter",
        "exhausted",
        "filling",
        "given",
        "on_device",
        "pipeline",
        "plan",
        "progress",
        "skipped",
    )

    filling: Filling  # set, as the missing rows are, when the work on it begins

    def __init__(self, plan: PlannedBatch, pipeline: Pipeline, progress: Progress) -> None:
        self.done = self.arrived = False
        self.failure = None
        self.plan = plan
        self.given = False  # whether workers have it
        self._cutter: TicketCutter | None = None  # where threads may share the work
        self.exhausted = False  # whether there was nothing to read; it is not delivered then
        self.skipped: list[Failure] = []  # of rows left out; appending is atomic on both builds
        # On its way to the device; set by the copier, if there is one.
        self.on_device: tuple[DeviceBatch, Event] | None = None
        self.pipeline = pipeline
        self.progress = progress

    def begin(self) -> None:
        """Cut the batch into tickets; called before the pool has it.  Idempotent."""
        if self._cutter is not None:
            return
        plan, pipeline, progress = self.plan, self.pipeline, self.progress
        self.filling = pipeline.collation.open(len(plan.indices))
        self.missing = len(plan.indices)
        progress.begun(self)
        self._cutter = TicketCutter(
            plan, pipeline.ticket_size, progress.share, one_ticket=pipeline.whole_batches
        )

    @property
    def count_as(self) -> Any:
        """What the feed counts it as, once it is delivered; see `Feed.count`."""
        return self.plan

    @property
    def empty(self) -> bool:
        """Whether a batch that is done, without a failure, has no samples to deliver."""
        return self.exhausted or bool(self.skipped and len(self.skipped) == len(self.plan.indices))

    def leave_out(self, failure: Failure) -> None:
        """Make the batch without the row that failed."""
        self.filling.leave_out(failure.row)
        self.skipped.append(failure)

    def claim(self) -> Job[Worker] | None:
        """Return the next ticket as a job, or None after the last."""
        ticket = None
        if self._cutter is not None and not self.progress.cancelled:
            ticket = self._cutter.cut()
        if ticket is None:
            return None
        return partial(_work, self, ticket)

    def jobs(self) -> int:
        """Estimate how many tickets are left, at least 1."""
        return 1 if self._cutter is None else self._cutter.left()

    def make(self, worker: Worker) -> None:
        """Make the batch by its only ticket, in the calling thread; nobody else has it."""
        plan = self.plan
        try:
            rows = len(plan.indices)
            self.filling = self.pipeline.collation.open(rows)
            _work(self, Ticket(plan, 0, rows), worker)
        finally:
            self = plan = DROPPED

    def try_to_make(self, worker: Worker, until: float = math.inf) -> None:
        """Make the batch in the calling thread, ticket by ticket; others may do the rest.

        Args:
            worker: The calling thread.
            until: On `perf_counter`; the tickets that are left then are not begun.
        """
        job = None
        try:
            self.begin()
            while (job := self.claim()) is not None:
                job(worker)
                if perf_counter() >= until:
                    break
        finally:
            self = job = DROPPED

    def take(self) -> Any:
        """Return the batch, which is done without a failure."""
        return self.filling.take()


# The functions between a worker's loop and the user's code drop what leads to a slot before they
# return, because an exception may keep their frames: see `DROPPED`.


def _work(batch: OpenBatch, ticket: Ticket, worker: Worker) -> None:
    """Do one ticket; the job that a worker runs."""
    failure, progress, tracer = batch.failure, batch.progress, stages.tracer
    try:
        if tracer is not None:
            of_batch = ticket.batch.sequence
            tracer.begin("ticket", progress.key, of_batch, ticket.start, ticket.stop)
        if worker.adopt is not None:
            worker.adopt()
        if failure is None or ticket.start < failure.row:
            failure = _fill(batch, ticket, worker, tracer)
        # Rows need not be counted where one ticket has them all.
        counts = ticket.stop - ticket.start < len(ticket.batch.indices)
        if progress.finished(batch, ticket, failure) if counts else not progress.cancelled:
            if failure is None and not batch.filling.is_complete():
                failure = _finish(batch.filling, batch.plan, batch.pipeline, worker, tracer)
            progress.collated(batch, failure)
        worker.learn()
    except BaseException as error:  # noqa: BLE001  # a bug of ours must not leave anybody waiting
        progress.collated(batch, Failure(error, ticket.start))
    finally:
        if tracer is not None:
            tracer.end("ticket")
        batch = ticket = progress = failure = DROPPED


def _fill(
    batch: OpenBatch, ticket: Ticket, worker: Worker, tracer: Tracer | None
) -> Failure | None:
    """Fetch the samples of a ticket and write them."""
    samples = failed = timing = failure = None
    counters, pipeline = worker.counters, batch.pipeline
    try:
        counters.task, counters.task_began = ticket, (started := perf_counter())
        if started >= counters.timing_due:
            timing = counters.begin_timing()
        singly = not (pipeline.whole_batches or pipeline.gathers)
        if tracer is not None:
            tracer.begin("fetch")
        samples, failed = worker.fetcher.fetch(ticket, batch.progress, pipeline.seed, singly=singly)
        fetched = perf_counter()
        if failed is not None:
            failure = _fill_without_failed(batch, ticket, samples, failed, worker)
            seconds = perf_counter() - started
            counters.fetch_seconds += seconds  # with the writing, which is little
            pipeline.ticket_size.measured(ticket.stop - ticket.start, seconds)
            return failure
        if batch.progress.cancelled:
            return None  # not all of them were fetched
        if tracer is not None:
            tracer.begin("write")
        batch.filling.write(ticket.start, ticket.stop, samples)
        written = perf_counter()
        rows = ticket.stop - ticket.start
        counters.tickets += 1
        counters.samples += rows
        counters.fetch_seconds += fetched - started
        counters.write_seconds += written - fetched
        pipeline.ticket_size.measured(rows, written - started)
        if timing is not None:
            counters.timed(written, timing)
        return None
    except BaseException as error:  # noqa: BLE001  # a bug of ours must not leave anybody waiting
        return failure_of(error, ticket.start, batch.plan, worker.place)
    finally:
        samples = failed = failure = counters.task = None
        batch = ticket = pipeline = DROPPED


def _fill_without_failed(
    batch: OpenBatch,
    ticket: Ticket,
    samples: Any,
    failed: BaseException | None,
    worker: Worker,
) -> Failure | None:
    """Fill the rest of a ticket without the samples that fail, or return the error to raise.

    Args:
        batch: The batch.
        ticket: Its rows.
        samples: The samples before the one that failed.
        failed: The error of that one.
        worker: The calling thread.
    """
    plan, pipeline = batch.plan, batch.pipeline
    start, singly = ticket.start, pipeline.whole_batches
    failure: Failure | None = None
    error: BaseException | None = None
    try:
        if singly and failed is not None:  # of __getitems__ nobody knows which sample failed
            skips = pipeline.on_error != "raise" and isinstance(failed, Exception)
            if not (skips and worker.fetcher.can_fetch_singly(plan)):
                return failure_of(failed, None, plan, worker.place)
            samples, failed = worker.fetcher.fetch(
                ticket, batch.progress, pipeline.seed, singly=True
            )
        while failed is not None:
            failure = failure_of(failed, start + len(samples), plan, worker.place)
            error = _error_to_raise(failure, plan, pipeline)
            if error is not None:
                same = error is failure.error
                return failure if same else failure_of(error, failure.row, plan, worker.place)
            if samples:
                batch.filling.write(start, failure.row, samples)
                worker.counters.samples += len(samples)
            batch.leave_out(failure)
            start, samples, failed = failure.row + 1, [], None
            if start < ticket.stop:
                ticket = Ticket(plan, start, ticket.stop)
                samples, failed = worker.fetcher.fetch(
                    ticket, batch.progress, pipeline.seed, singly=singly
                )
        if samples and not batch.progress.cancelled:
            batch.filling.write(start, ticket.stop, samples)
            worker.counters.samples += len(samples)
        worker.counters.tickets += 1
        return None
    finally:
        samples = failed = failure = error = None
        batch = ticket = pipeline = plan = DROPPED


def _error_to_raise(
    failure: Failure, plan: PlannedBatch, pipeline: Pipeline
) -> BaseException | None:
    """Return the error to raise for a sample that failed; None if the sample is left out."""
    if not isinstance(failure.error, Exception):
        return failure.error  # Ctrl-C, perhaps after the last sample: that row has no index
    try:
        if pipeline.seed is not None:  # on_error draws from the sample's random stream
            enter_sample_streams(pipeline.seed, plan.position + failure.row, ())
        if callable(pipeline.on_error):
            set_notes(failure.error, failure.notes)
        return error_to_raise(pipeline.on_error, failure.error, plan.index_of(failure.row))
    finally:
        if pipeline.seed is not None:  # the streams may be those of a sample that loads from here
            leave_streams()
        failure = plan = pipeline = DROPPED


def _finish(
    filling: Filling,
    plan: PlannedBatch,
    pipeline: Pipeline,
    worker: Worker,
    tracer: Tracer | None = None,
) -> Failure | None:
    """Collate a batch that has all its rows."""
    failed, counters, started = None, worker.counters, perf_counter()
    try:
        counters.task, counters.task_began = plan, started
        if pipeline.seed is not None:
            enter_batch_stream(pipeline.seed, plan.stream)
        if tracer is not None:
            tracer.begin("collate")
        failed = filling.finish(worker.collate_fn)
        if failed is None:
            return None
        return failure_of(failed[0], failed[1], plan, worker.place)
    except BaseException as error:  # noqa: BLE001  # a bug of ours must not leave anybody waiting
        return failure_of(error, None, plan, worker.place)
    finally:
        if pipeline.seed is not None:
            leave_streams()
        seconds = perf_counter() - started
        counters.collate_seconds += seconds
        pipeline.ticket_size.collated(seconds)
        failed = counters.task = None
        filling = plan = pipeline = DROPPED


class FailedBatch:
    """An error of the sampler, in the place of the batch that could not be planned."""

    done = True
    empty = exhausted = False
    count_as = on_device = None

    def __init__(self, error: Exception) -> None:
        if isinstance(error, ThreadLoaderError):
            BaseException.with_traceback(error, None)  # all frames are ours, and lead to the epoch
        strip(error)
        self.failure = Failure(error, 0)

    def take(self) -> NoReturn:
        """Raise the error."""
        raise self.failure.error
