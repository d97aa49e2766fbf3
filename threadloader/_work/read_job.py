"""The job of reading one batch of an iterable dataset.

    read its samples -> begin the batch -> collate it here, or hand it on to the other threads

A replica belongs to one worker, whose thread alone reads it.  The same thread collates what it
read, or other threads take tickets of it, to apply a transform.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._fetch.failure import failure_of
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.tickets import PlannedBatch
from threadloader._threads.debugging import TURNS
from threadloader._trace import stages
from threadloader._work.open_batch import OpenBatch, work_here
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._resume import Checkpoint
    from threadloader._work.copies import Worker
    from threadloader._work.iterable_reader import IterableReader
    from threadloader._work.open_batch import Pipeline
    from threadloader._work.progress import Progress


class IterableBatch(OpenBatch):
    """A batch of an iterable dataset, whose samples are read by a job.

    Threads:
        as `OpenBatch`; begin: the worker that reads.
    """

    __slots__ = ("checkpoint", "follows_failure", "number", "reader")

    def __init__(
        self,
        sequence: int,
        reader: IterableReader,
        number: int,
        pipeline: Pipeline,
        progress: Progress,
    ) -> None:
        unread = PlannedBatch(sequence, (), None, label="row")
        super().__init__(unread, pipeline, progress, begin=False)
        self.reader = reader
        self.number = number  # among the batches of its reader
        self.checkpoint: Checkpoint | None = None  # the reader's, after this batch
        self.follows_failure = False  # whether the reading of the one before has failed

    @property
    def count_as(self) -> IterableBatch:
        """Itself; see `OpenBatch`."""
        return self


def read(
    worker: Worker, batch: IterableBatch, hand_on: Callable[[OpenBatch], None] | None = None
) -> None:
    """Read one batch.

    Args:
        worker: The one that reads.
        batch: The batch.
        hand_on: Takes the batch when it was read; None: the thread that read it collates it.
    """
    samples = plan = None
    counters, progress = worker.counters, batch.progress
    try:
        if progress.cancelled:
            return
        worker.adopt()
        counters.task, counters.task_began = (batch.plan,), (started := perf_counter())
        timing = counters.begin_timing() if started >= counters.timing_due else None
        samples = _samples(batch)
        batch.checkpoint = batch.reader.checkpoint
        counters.fetch_seconds += (read := perf_counter()) - started
        if timing is not None:
            counters.timed(read, timing)
        rows = range(len(samples or ()))
        position = batch.reader.position - len(rows)
        plan = PlannedBatch(batch.plan.sequence, rows, samples, position, label="row")
        if samples is None:
            batch.plan, batch.exhausted = plan, True
            batch.follows_failure = batch.reader.failed
            progress.collated(batch, None)
            return
        batch.reader.failed = False
        batch.begin(plan)
        if hand_on is None:
            work_here(worker, batch)
        else:
            with suppress(ClosedError):  # the other threads have ended: nobody waits for it
                hand_on(batch)
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        batch.reader.failed = True
        progress.collated(batch, failure_of(error, None, batch.plan, worker.place))
    finally:
        if TURNS.taken:
            TURNS.leave()
        samples = plan = counters.task = None
        batch = progress = hand_on = DROPPED


def _samples(batch: IterableBatch) -> list[Any] | None:
    """Return the samples of a batch; see `IterableReader.read`."""
    tracer = stages.tracer
    try:
        if tracer is not None:
            tracer.begin("read", batch.progress.key, batch.plan.sequence)
        return batch.reader.read(batch.progress)
    finally:
        if tracer is not None:
            tracer.end("read")
        batch = DROPPED
