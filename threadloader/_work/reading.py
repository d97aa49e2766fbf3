"""Iterable datasets: samples are read in the order in which the data gives them.

    IterableReader (one iterable) -> ReadJob (one batch's samples) -> begin the batch -> work

A source belongs to one worker, whose thread alone reads it.  What it read is then collated by
the same thread, or given out as tickets to other threads that apply a transform to it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from inspect import isgenerator
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any

from threadloader._fetch.failure import Failure, failure_of
from threadloader._fetch.on_error import refusal
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.tickets import PlannedBatch
from threadloader._resume.checkpoint import Checkpoint
from threadloader._resume.stateful import (
    fresh_state,
    is_stateful,
    restore,
    restore_after,
    restore_begun,
    restore_between,
    restore_whole,
    snapshot,
    snapshot_between,
    states_of,
)
from threadloader._rng.streams import enter_sample_streams, leave_streams
from threadloader._threads.thread_group import SingleJob
from threadloader._threads.worker_info import in_pass
from threadloader._work.open_batch import OpenBatch, Worker, work_inline
from threadloader.errors import ClosedError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from threadloader._fetch.fetcher import Cancellable, Fetched
    from threadloader._order.tickets import Ticket
    from threadloader._resume.position import Position
    from threadloader._settings import Settings
    from threadloader._work.open_batch import Stages
    from threadloader._work.progress import Progress

__all__ = ["IterableReader", "ReadJob", "ReadSamples", "StreamBatch", "read_inline"]

MOST_ERRORS = 100  # of an iterable, in the place of one batch: it may never give a sample again


class IterableReader:
    """One pass over one replica of an iterable dataset.

    Args:
        number: The worker that reads it.
        dataset: The worker's own replica.
        settings: Of the loader.
        position: Of the epoch; with a lane for each replica.
        pass_seed: See `worker_info.in_pass`; None for no pass.

    Threads:
        start, read: one thread, the worker that owns it; `start` also the consumer, before.
    """

    def __init__(
        self,
        number: int,
        dataset: Any,
        settings: Settings,
        position: Position,
        pass_seed: int | None = None,
    ) -> None:
        self.number = number
        self.position = 0  # samples that were read
        self.used_up = False  # whether it is a generator that has ended before
        self.checkpoint: Checkpoint | None = None  # taken after the last batch
        self._end_checkpoint: Checkpoint | None = None
        self._batches = 0  # read
        self._dataset = dataset
        self._rows = settings.batch_size
        self._drop_last = settings.drop_last
        steps = settings.snapshot_every_n_steps or 0
        self._every = -(-steps // len(position.lanes))  # of its own batches; 0 for none
        # Whether a later epoch reads the same replica.
        self._goes_on = settings.shares_dataset or settings.persistent_workers
        # Whether to note in the lane what the replica is like before it is read.
        self._tells = position.broken_off
        self._on_error = settings.on_error
        self._pass_seed = pass_seed
        self.skipped: list[tuple[int, Exception]] = []  # rows left out of the batch read last
        self._fresh: Any = None  # the dataset's state before another was restored
        self._ends_pass = False  # whether its own iterator, it was brought into a pass's middle
        self._iterator: Iterator[Any] | None = None
        self._started = False
        # What to leave out, until it is: batches up to a number, and some beyond.
        self._lane = lane = position.lanes[number]
        start = lane if position.restored else None
        self._stop = 0 if start is None else start.batches
        self._ahead = set() if start is None else set(start.ahead)
        self._from = (
            None if start is None else start.end_checkpoint or start.checkpoint or start.first
        )
        self._over = start is not None and (
            start.ended or bool(start.checkpoint and start.checkpoint.ended)
        )

    def start(self) -> None:
        """Ask the dataset for its iterator.

        Raises:
            BaseException: What its ``__iter__`` raises; there is nothing to read then.
        """
        self._started = True
        if self._over:
            self._restore_over()
            return
        states = self._restore()
        in_pass(self._pass_seed, self._begin, states)
        iterator = self._iterator
        self.used_up = isgenerator(iterator) and iterator.gi_frame is None

    def _begin(self, states: Mapping[str, Any]) -> None:
        self._iterator = iterator = iter(self._dataset)
        if "iterator" in states:
            restore("dataset's iterator", iterator, states["iterator"])
        elif "self" in states:
            restore_begun(iterator, states["self"])

    def _restore(self) -> Mapping[str, Any]:
        """Bring the dataset to where the lane is; return the states that its iterator may need."""
        checkpoint = self._from
        if checkpoint is None:
            if self._tells and self._every and is_stateful(self._dataset):
                # Of replicas in the middle of an epoch that was broken off, nobody else knows it.
                state = snapshot_between(self._dataset)
                if state is not None:
                    self._lane.first = Checkpoint(0, 0, {"dataset": state})
            return {}
        self._batches, self.position = checkpoint.batches, checkpoint.samples
        if checkpoint.between_passes:
            restore_after(self._dataset, checkpoint.states)
            return {}
        resumed = self._batches and self._goes_on
        if "dataset" in checkpoint.states:
            if resumed and "iterator" not in checkpoint.states and is_stateful(self._dataset):
                self._fresh = fresh_state(self._dataset)
            restore_between("dataset", self._dataset, checkpoint.states["dataset"])
        elif "self" in checkpoint.states:
            self._ends_pass = bool(resumed)
        return checkpoint.states

    def _restore_over(self) -> None:
        """Bring the dataset to the end of the pass, for the next one."""
        checkpoint = self.checkpoint = self._end_checkpoint = self._from
        if self._every and checkpoint is not None:
            restore_after(self._dataset, checkpoint.states)

    def read(self, epoch: Cancellable) -> list[Any] | None:
        """Return the samples of the next batch, or None for ever after the last.

        Raises:
            BaseException: What the dataset raises; the next call goes on with what comes then.
            StateError: The dataset ended before what was delivered when its state was saved.
        """
        if not self._started:
            self.start()
        if not self._over:
            self._leave_out(epoch)
        return self._read(epoch)

    def _read(self, epoch: Cancellable) -> list[Any] | None:
        self.skipped = []
        if self._iterator is None:
            self.checkpoint = self._end_checkpoint
            return None
        rows = 1 if self._rows is None else self._rows
        samples: list[Any] = []
        iterator = self._iterator
        try:
            while len(samples) < rows and not epoch.cancelled:
                # A generator may begin another's pass in its turn.
                in_pass(self._pass_seed, self._take, samples, rows, epoch)
        except StopIteration:
            self._iterator = None
            if not samples or self._drop_last:
                self.checkpoint = self._end_checkpoint = self._take_checkpoint(iterator, ended=True)
                self._let_go()
                return None
        except BaseException:
            samples.clear()  # the error keeps this frame
            self._batches += 1
            self.checkpoint = None
            raise
        self._batches += 1
        self.position += len(samples)
        at_end = self._iterator is None
        checkpoint = None
        # After the first, too: else nothing would tell that there are states to come.
        if at_end or (self._every and (self._batches == 1 or self._batches % self._every == 0)):
            checkpoint = self._take_checkpoint(iterator, ended=at_end)
        if at_end:
            self._end_checkpoint = checkpoint
            self._let_go()
        self.checkpoint = checkpoint if self._every else None
        return samples

    def _take(self, samples: list[Any], rows: int, epoch: Cancellable) -> None:
        """Add samples up to ``rows``, or to one that can't be read and is left out."""
        iterator: Any = self._iterator
        try:
            while len(samples) < rows and not epoch.cancelled:
                samples.append(next(iterator))
        except StopIteration:
            raise
        except Exception as error:
            if not self._leaves_out(iterator, len(samples), error):
                raise
        finally:
            samples = DROPPED  # the error keeps this frame

    def _leaves_out(self, iterator: Any, row: int, error: Exception) -> bool:
        """Whether reading goes on after an error, without the sample that it came for.

        Only an iterator written as a class does: a generator has ended, and so has what it feeds.
        """
        goes_on = isinstance(getattr(type(iterator), "__next__", None), FunctionType)
        if len(self.skipped) >= MOST_ERRORS:
            goes_on = False
            with suppress(Exception):  # it may refuse notes
                error.add_note(f"after {MOST_ERRORS} others that were left out of one batch")
        if not goes_on:
            return False
        refused = refusal(self._on_error, error, self.position + row)
        if refused is not None and refused is not error:
            raise refused
        if refused is None:
            self.skipped.append((row, error))
        return refused is None

    def _let_go(self) -> None:
        """See to it that the next pass is whole, after one that was begun in its middle."""
        fresh, self._fresh = self._fresh, None
        if self._ends_pass:
            # What was loaded after its ``__iter__`` may wait for the next one.
            self._ends_pass, fresh = False, snapshot(self._dataset)
        if fresh is not None:
            restore_whole("dataset", self._dataset, snapshot(self._dataset), fresh)

    def _take_checkpoint(self, iterator: Any, *, ended: bool) -> Checkpoint | None:
        """Return what the replica is like; None if it does not tell."""
        states = states_of("dataset", self._dataset, iterator)
        return Checkpoint(self._batches, self.position, states, ended=ended) if states else None

    def _leave_out(self, epoch: Cancellable) -> None:
        """Read what was delivered already, to no use but that it is behind."""
        while self._batches < self._stop or self._batches in self._ahead:
            if epoch.cancelled:
                return
            read = self._batches
            failed: Exception | None = None
            try:
                self._read(epoch)
            except Exception as error:  # noqa: BLE001  # it was raised before the state was saved
                failed = error
            if self._batches == read and not epoch.cancelled:
                msg = (
                    f"the iterable dataset ended after {read} batches, but {self._stop} were "
                    "delivered when the state was saved"
                )
                self._stop, self._ahead = 0, set()
                raise StateError(msg) from failed


class ReadSamples:
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

    gathers = False

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:  # noqa: ARG002  # as a `Fetcher`
        """Whether samples are one by one: they are."""
        return True

    def fetch(
        self,
        ticket: Ticket,
        epoch: Cancellable,
        seed: int | None = None,
        *,
        singly: bool = False,  # noqa: ARG002  # as a `Fetcher`
    ) -> Fetched:
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
                enter_sample_streams(seed, ticket.batch.position + ticket.start, transformed)
            for row in range(ticket.start, ticket.stop):
                if epoch.cancelled:
                    break
                transformed.append(transform(read[row]))
            return transformed, None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return transformed, error
        finally:
            leave_streams()
            # The error keeps this frame.
            self = ticket = epoch = read = transform = transformed = DROPPED


class StreamBatch(OpenBatch):
    """A batch whose samples are known once its source was read.

    Threads:
        as `OpenBatch`; begin: the worker that reads the source.
    """

    __slots__ = ("checkpoint", "number", "source")

    def __init__(
        self, sequence: int, source: IterableReader, number: int, stages: Stages, progress: Progress
    ) -> None:
        unread = PlannedBatch(sequence, (), None, label="row")
        super().__init__(unread, stages, progress, begin=False)
        self.source = source
        self.number = number  # of those of its source
        self.checkpoint: Checkpoint | None = None  # of the source after it


class ReadJob(SingleJob[Worker]):
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
    batch = stages = progress = DROPPED


def _read(
    batch: StreamBatch,
    stages: Stages,
    progress: Progress,
    hand_on: Callable[[OpenBatch], None] | None,
    worker: Worker,
) -> None:
    """Read one batch; see `work._work` for why locals are dropped."""
    samples = plan = None
    try:
        if progress.cancelled:
            return
        started = perf_counter()
        samples = batch.source.read(progress)
        batch.checkpoint = batch.source.checkpoint
        worker.counters.fetch_seconds += perf_counter() - started
        rows = range(len(samples or ()))
        position = batch.source.position - len(rows)
        plan = PlannedBatch(batch.plan.sequence, rows, samples, position, label="row")
        _note_unread(batch, plan, worker)
        if samples is None:
            batch.plan, batch.exhausted = plan, True
            progress.collated(batch, None)
            return
        batch.begin(plan)
        if hand_on is None:
            work_inline(batch, worker)
        else:
            with suppress(ClosedError):  # the others have ended: nobody waits for it
                hand_on(batch)
    except BaseException as error:  # noqa: BLE001  # handed to the consumer
        _note_unread(batch, batch.plan, worker)
        progress.collated(batch, failure_of(error, None, batch.plan, worker.place))
    finally:
        samples = plan = None
        batch = stages = progress = hand_on = DROPPED  # noqa: F841


def _note_unread(batch: StreamBatch, plan: PlannedBatch, worker: Worker) -> None:
    """Note the samples that were left out while a batch was read."""
    for row, error in batch.source.skipped:
        batch.unread.append(Failure(failure_of(error, None, plan, worker.place).error, row))
    batch.source.skipped = []
