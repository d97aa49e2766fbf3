"""Iterable datasets: samples are read in the order in which the data gives them.

    Source (one iterable) -> Reading (one batch's samples) -> begin the batch -> work

A source belongs to one worker, whose thread alone reads it.  What it read is then collated by
the same thread, or given out as tickets to other threads that apply a transform to it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader.errors import ClosedError
from threadloader.rng import begin_samples, end
from threadloader.ticket import PlannedBatch
from threadloader.work import OpenBatch, failure_of, work_inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader.fetch import Cancellable, Fetched
    from threadloader.pool import Job
    from threadloader.ticket import Ticket
    from threadloader.work import Progress, Stages, Worker

__all__ = ["Errand", "Given", "Reading", "Source", "StreamBatch", "read_inline"]


class Source:
    """One pass over one replica of an iterable dataset.

    Args:
        number: The worker that reads it.
        dataset: The worker's own replica.
        rows: Samples in a batch; None for samples that are not collated.
        drop_last: Whether a last batch with fewer samples is left out.

    Threads:
        start, read: one thread, the worker that owns it; `start` also the consumer, before.
    """

    def __init__(
        self,
        number: int,
        dataset: Any,
        rows: int | None,
        *,
        drop_last: bool,
    ) -> None:
        self.number = number
        self.position = 0  # samples that were read
        self._dataset = dataset
        self._rows = rows
        self._drop_last = drop_last
        self._iterator: Iterator[Any] | None = None
        self._started = False

    def start(self) -> None:
        """Ask the dataset for its iterator.

        Raises:
            BaseException: What its ``__iter__`` raises; there is nothing to read then.
        """
        self._started = True
        self._iterator = iter(self._dataset)

    def read(self, epoch: Cancellable) -> list[Any] | None:
        """Return the samples of the next batch, or None for ever after the last.

        Raises:
            BaseException: What the dataset raises; the next call goes on with what it yields then.
        """
        if not self._started:
            self.start()
        if self._iterator is None:
            return None
        rows = 1 if self._rows is None else self._rows
        samples: list[Any] = []
        try:
            while len(samples) < rows and not epoch.cancelled:
                samples.append(next(self._iterator))
        except StopIteration:
            self._iterator = None
            if not samples or self._drop_last:
                return None
        except BaseException:
            samples.clear()  # the error keeps this frame
            raise
        self.position += len(samples)
        return samples


class Given:
    """Fetches what a source has read already; stands where map-style datasets have a Fetcher.

    Args:
        dataset: The worker's replica, for `get_worker_info()`.
        transform: This worker's own copy, applied to each sample; None for none.

    Threads:
        fetch: one thread, the worker that owns it.
    """

    __slots__ = ("_transform", "dataset")

    def __init__(self, dataset: Any, transform: Callable[[Any], Any] | None = None) -> None:
        self.dataset = dataset
        self._transform = transform

    def fetch(self, ticket: Ticket, epoch: Cancellable, seed: int | None = None) -> Fetched:
        """Return the samples of a ticket; like `Fetcher.fetch`."""
        read: list[Any] = ticket.batch.drawn
        if self._transform is None:
            samples = read[:]
            read.clear()  # it is one ticket: nobody else wants them
            return samples, None
        transform = self._transform
        transformed: list[Any] = []
        try:
            if seed is not None:
                begin_samples(seed, ticket.batch.position + ticket.start, transformed)
            for row in range(ticket.start, ticket.stop):
                if epoch.cancelled:
                    break
                transformed.append(transform(read[row]))
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            done = len(transformed)
            transformed.clear()  # the error keeps this frame
            return done, error
        finally:
            end()
            del self, ticket, epoch, read, transform
        return transformed, None


class StreamBatch(OpenBatch):
    """A batch whose samples are known once its source was read.

    Threads:
        as `OpenBatch`; begin: the worker that reads the source.
    """

    __slots__ = ("source",)

    def __init__(self, sequence: int, source: Source, stages: Stages, progress: Progress) -> None:
        unread = PlannedBatch(sequence, (), None, label="row")
        super().__init__(unread, stages, progress, begin=False)
        self.source = source


class Errand:
    """Work that is one job, for the thread whose turn it is.

    Args:
        job: The job.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job[Worker]) -> None:
        self._job: Job[Worker] | None = job

    def claim(self) -> Job[Worker] | None:
        """Return the job, and then None."""
        job, self._job = self._job, None
        return job

    def jobs(self) -> int:
        """Return 1."""
        return 1


class Reading(Errand):
    """The work of reading one batch.

    Args:
        batch: The batch.
        stages: What workers need.
        progress: Of the epoch.
        hand_on: Takes the batch when it was read; None has it collated by the thread that read.
    """

    __slots__ = ()

    def __init__(
        self,
        batch: StreamBatch,
        stages: Stages,
        progress: Progress,
        hand_on: Callable[[OpenBatch], None] | None,
    ) -> None:
        super().__init__(partial(_read, batch, stages, progress, hand_on))


def read_inline(batch: StreamBatch, stages: Stages, progress: Progress, worker: Worker) -> None:
    """Read and collate a batch in the calling thread."""
    _read(batch, stages, progress, None, worker)
    del batch, stages, progress


def _read(
    batch: StreamBatch,
    stages: Stages,
    progress: Progress,
    hand_on: Callable[[OpenBatch], None] | None,
    worker: Worker,
) -> None:
    """Read one batch; see `work._work` for why locals are dropped."""
    samples = None
    try:
        if progress.cancelled:
            return
        started = perf_counter()
        samples = batch.source.read(progress)
        worker.counters.fetch_seconds += perf_counter() - started
        if samples is None:
            batch.exhausted = True
            progress.collated(batch, None)
            return
        rows, position = range(len(samples)), batch.source.position - len(samples)
        batch.begin(PlannedBatch(batch.plan.sequence, rows, samples, position, label="row"))
        if hand_on is None:
            work_inline(batch, worker)
        else:
            with suppress(ClosedError):  # the others have ended: nobody waits for it
                hand_on(batch)
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        progress.collated(batch, failure_of(error, None, batch.plan, worker))
    finally:
        samples = None
        del batch, stages, progress, hand_on
