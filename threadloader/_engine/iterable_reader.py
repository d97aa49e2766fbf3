"""One pass over an iterable dataset: its samples in order, and the job of reading a batch of them.

    read its samples -> begin the batch -> collate it here, or hand it on to the other threads

The pass can begin in the middle, from a saved state: the dataset is brought there by its own state,
or what was delivered before is read again, and left out.  A replica belongs to one worker, whose
thread alone reads it.  The same thread collates what it read, or other threads take tickets of it,
to apply a transform.
"""

from __future__ import annotations

from contextlib import suppress
from inspect import isgenerator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._engine.open_batch import OpenBatch
from threadloader._lifetime import DROPPED
from threadloader._order.resume import (
    Checkpoint,
    begin,
    fresh_state,
    is_stateful,
    restore_after,
    restore_whole,
    snapshot,
    snapshot_between,
    states_of,
)
from threadloader._order.share import asked
from threadloader._order.tickets import PlannedBatch
from threadloader._report import stages
from threadloader._worker.failure import failure_of
from threadloader._worker.worker_info import in_part, in_pass
from threadloader.errors import ClosedError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from threadloader._engine.copies import Worker
    from threadloader._engine.open_batch import Pipeline
    from threadloader._engine.progress import Progress
    from threadloader._engine.settings import Settings
    from threadloader._order.resume import Position
    from threadloader._order.share import Part
    from threadloader._worker.fetcher import Cancellable


class IterableReader:
    """One pass over one replica of an iterable dataset.

    Args:
        number: The worker that reads it.
        dataset: The worker's own replica.
        settings: The loader's.
        position: The epoch's, with a lane for each replica.
        pass_seed: See `worker_info.in_pass`; None for no pass.
        part: What the dataset is asked for; None where it shares itself out.

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
        part: Part | None = None,
    ) -> None:
        self.number = number
        self.position = 0  # samples that were read
        self.used_up = False  # whether it is a generator that had ended before
        self.failed = False  # whether the reading of the last batch has; a generator ends with that
        self.checkpoint: Checkpoint | None = (
            None  # the replica's, after the batch that was read last
        )
        self._end_checkpoint: Checkpoint | None = None
        self._batches = 0  # read
        self._dataset = dataset
        self._batch_size = settings.batch_size
        self._drop_last = settings.drop_last
        steps = settings.snapshot_every_n_steps or 0
        self._snapshot_every = -(-steps // len(position.lanes))  # its own batches; 0 for no state
        # Whether a later epoch reads the same replica.
        self._continues = settings.shares_dataset or settings.persistent_workers
        # Whether to save the replica's state in the lane before it is read.
        self._saves_start = position.broken_off
        self._pass_seed = pass_seed
        self._part = part
        self._in_pass = in_pass
        self._is_new = False  # whether the dataset is a part that was made for this pass
        self._fresh: Any = None  # the dataset's state before the saved one was restored
        # Whether the dataset is its own iterator, and was brought into the middle of a pass.
        self._resumed_in_pass = False
        self._iterator: Iterator[Any] | None = None
        self._started = False
        # The batches to leave out: those up to a number, and some after it.
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
            BaseException: The error of its ``__iter__``; there is nothing to read then.
        """
        self._started = True
        if self._over:
            self._restore_over()
            return
        if self._part is not None:
            in_pass(self._pass_seed, self._ask, self._part)
        states = self._restore()
        self._in_pass(self._pass_seed, self._begin, states)
        iterator = self._iterator
        self.used_up = isgenerator(iterator) and iterator.gi_frame is None

    def _begin(self, states: Mapping[str, Any]) -> None:
        self._iterator = begin("dataset", self._dataset, states)

    def _ask(self, part: Part) -> None:
        """Ask the dataset for the part to read."""
        given = asked(self._dataset, part)
        if given is None:
            return
        self._in_pass = in_part
        self._is_new = given is not self._dataset
        if self._is_new:  # the next epoch asks for another one
            self._dataset, self._continues, self._saves_start = given, False, False

    def _restore(self) -> Mapping[str, Any]:
        """Note where the lane is; return the states from which the pass begins."""
        checkpoint = self._from
        if checkpoint is None:
            if self._saves_start and self._snapshot_every and is_stateful(self._dataset):
                # Nobody else knows the state of a replica in the middle of an epoch that was left.
                state = snapshot_between(self._dataset)
                if state is not None:
                    self._lane.first = Checkpoint(0, 0, {"dataset": state})
            return {}
        self._batches, self.position = checkpoint.batches, checkpoint.samples
        if checkpoint.between_passes:
            restore_after(self._dataset, checkpoint.states)
            return {}
        resumed = self._batches and self._continues
        if "dataset" in checkpoint.states:
            if resumed and "iterator" not in checkpoint.states and is_stateful(self._dataset):
                self._fresh = fresh_state(self._dataset)
        elif "self" in checkpoint.states:
            self._resumed_in_pass = bool(resumed)
        return checkpoint.states

    def _restore_over(self) -> None:
        """Bring the dataset to the end of the pass, for the next one."""
        checkpoint = self.checkpoint = self._end_checkpoint = self._from
        if self._snapshot_every and checkpoint is not None and checkpoint.states:
            restore_after(self._dataset, checkpoint.states)

    def read(self, epoch: Cancellable) -> list[Any] | None:
        """Return the samples of the next batch, or None for ever after the last.

        Raises:
            BaseException: The error of the dataset; the next call reads on after it.
            StateError: The dataset ended before the batches that were delivered when the state was
                saved.
        """
        if not self._started:
            self.start()
        if not self._over:
            self._leave_out(epoch)
        return self._read(epoch)

    def _read(self, epoch: Cancellable) -> list[Any] | None:
        if self._iterator is None:
            self.checkpoint = self._end_checkpoint
            return None
        rows = 1 if self._batch_size is None else self._batch_size
        samples: list[Any] = []
        iterator = self._iterator
        try:
            # A generator may begin another's pass in its turn.
            self._in_pass(self._pass_seed, self._take, samples, rows, epoch)
        except StopIteration:
            self._iterator = None
            if not samples or self._drop_last:
                self.checkpoint = self._end_checkpoint = self._take_checkpoint(iterator, ended=True)
                self._make_next_pass_whole()
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
        # Also after the first batch: otherwise nobody would know that there are states to come.
        if at_end or (
            self._snapshot_every
            and (self._batches == 1 or self._batches % self._snapshot_every == 0)
        ):
            checkpoint = self._take_checkpoint(iterator, ended=at_end)
            if checkpoint is None:  # what has no state now gets none
                self._snapshot_every = 0
        if at_end:
            self._end_checkpoint = checkpoint
            self._make_next_pass_whole()
        self.checkpoint = checkpoint if self._snapshot_every else None
        return samples

    def _take(self, samples: list[Any], rows: int, epoch: Cancellable) -> None:
        """Add samples up to ``rows``."""
        iterator: Any = self._iterator
        try:
            for _ in range(rows):
                if epoch.cancelled:
                    return
                samples.append(next(iterator))
        finally:
            samples = DROPPED  # the error keeps this frame

    def _make_next_pass_whole(self) -> None:
        """Restore the dataset's own state at the end of a pass that began in the middle."""
        fresh, self._fresh = self._fresh, None
        if self._resumed_in_pass:
            # A state that was loaded after its ``__iter__`` may apply to the next one.
            self._resumed_in_pass, fresh = False, snapshot(self._dataset)
        if fresh is not None:
            restore_whole("dataset", self._dataset, snapshot(self._dataset), fresh)

    def _take_checkpoint(self, iterator: Any, *, ended: bool) -> Checkpoint | None:
        """Return a checkpoint of the replica; None if it has no states to save."""
        states = states_of("dataset", self._dataset, iterator)
        if not states:
            return None
        if ended and self._is_new:
            states = {}  # it is read once, and there is nothing to go on from
        return Checkpoint(self._batches, self.position, states, ended=ended)

    def _leave_out(self, epoch: Cancellable) -> None:
        """Read the batches that were delivered before, and drop them."""
        while self._batches < self._stop or self._batches in self._ahead:
            if epoch.cancelled:
                return
            read = self._batches
            failed: Exception | None = None
            try:
                self._read(epoch)
            except Exception as error:  # noqa: BLE001  # the consumer had it before the state was saved
                failed = error
            if self._batches == read and not epoch.cancelled:
                msg = (
                    f"the iterable dataset ended after {read} batches, but {self._stop} were "
                    "delivered when the state was saved"
                )
                self._stop, self._ahead = 0, set()
                raise StateError(msg) from failed


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
        super().__init__(unread, pipeline, progress)
        self.reader = reader
        self.number = number  # among the batches of its reader
        self.checkpoint: Checkpoint | None = None  # the reader's, after this batch
        self.follows_failure = False  # whether the reading of the one before has failed

    def make(self, worker: Worker, hand_on: Callable[[OpenBatch], None] | None = None) -> None:
        """Read the batch, and collate it.

        Args:
            worker: The one that reads.
            hand_on: Takes the batch when it was read; None: the thread that read it collates it.
        """
        samples = None
        counters, progress = worker.counters, self.progress
        try:
            if progress.cancelled:
                return
            if worker.adopt is not None:
                worker.adopt()
            counters.task, counters.task_began = (self.plan,), (started := perf_counter())
            timing = counters.begin_timing() if started >= counters.timing_due else None
            samples = _samples(self)
            self.checkpoint = self.reader.checkpoint
            counters.fetch_seconds += (read := perf_counter()) - started
            if timing is not None:
                counters.timed(read, timing)
            rows = range(len(samples or ()))
            position = self.reader.position - len(rows)
            self.plan = PlannedBatch(self.plan.sequence, rows, samples, position, label="row")
            if samples is None:
                self.exhausted, self.follows_failure = True, self.reader.failed
                progress.collated(self, None)
                return
            self.reader.failed = False
            if hand_on is None:
                super().make(worker)
            else:
                self.begin()
                with suppress(ClosedError):  # the other threads have ended: nobody waits for it
                    hand_on(self)
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            self.reader.failed = True
            progress.collated(self, failure_of(error, None, self.plan, worker.place))
        finally:
            samples = counters.task = None
            self = progress = hand_on = DROPPED

    @property
    def count_as(self) -> IterableBatch:
        """Itself; see `OpenBatch`."""
        return self


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
