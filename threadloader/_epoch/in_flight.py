"""The batches in flight: they were planned, and are not delivered yet.

The window says how many there may be.  In order the oldest one, the head, is delivered next; out
of order any one that is done.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._epoch.inline import Inline
from threadloader._lifetime.dropping import DROPPED
from threadloader._lifetime.exit_and_fork import end_thread_at_exit
from threadloader._order.known_samplers import is_known
from threadloader._order.tickets import INLINE_SECONDS
from threadloader._trace import stages
from threadloader._work.open_batch import FailedBatch, OpenBatch
from threadloader._work.workers import runs_event_loop
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.collate import Collation
    from threadloader._epoch.feed import Feed, Receipt
    from threadloader._settings import Settings
    from threadloader._work.copier import Copier
    from threadloader._work.open_batch import Worker
    from threadloader._work.progress import Progress
    from threadloader._work.workers import Workers

__all__ = ["InFlight"]

# Of a batch that the calling thread has made as one ticket.  Below that two batches that are made
# one after the other delay nobody; a first one may take a millisecond for what is done once.
ONE_TICKET_SECONDS = 5e-3


class InFlight:
    """The batches in flight, oldest first.

    Args:
        settings: Of the loader; the window, the timeout, and whether batches stay in order.
        feed: Plans the batches and gives them to the threads.
        progress: Of the epoch.
        collation: Knows how large batches are, and whether they can be made in groups.
        workers: The threads that make them; None for the calling thread.
        inline: The worker that the calling thread is, without threads.
        copier: Copies each to a device; None for no copies.

    Threads:
        all but clear and moment: consumer, one thread at a time.
        clear, moment: shared.
    """

    def __init__(
        self,
        settings: Settings,
        feed: Feed,
        progress: Progress,
        collation: Collation,
        workers: Workers | None,
        *,
        inline: Worker,
        copier: Copier | None,
    ) -> None:
        self._feed = feed
        self._progress = progress
        self._collation = collation
        self._window = settings.window
        self._workers = workers
        self._inline_worker = inline
        self._rows = 0  # of the last batch that was made in the calling thread; 0 for none
        self._copier = copier
        self._ring, self._ticket_size = collation.ring, settings.ticket_size
        self._kept_batches, self._whole_batches = settings.kept_batches, settings.whole_batches
        self._concurrency = settings.concurrency
        # How far a sampler of the user's is drawn ahead must not depend on the speed of threads.
        self._may_widen = settings.iterable or is_known(settings.index_sampler)
        self._has_budget = False  # whether was asked what batches may take in this epoch
        self._delivery: Copier | Progress = copier or progress
        self._timeout = settings.timeout or None
        self._limit = self._timeout  # what `await_workers` has left of it, for one batch
        self._in_order = settings.in_order
        # Whether all workers are known to have begun.  From then on an error that ends one of them
        # also cancels the epoch.
        self._begun = workers is None
        self._batches: deque[OpenBatch | FailedBatch] = deque()
        self._planned_all = False
        self._dataset = settings.dataset
        # Of batches that must be those that the calling thread would make; None of all others.
        default = workers is not None and workers.is_default
        self._first_samples = workers.first_samples if workers is not None and default else None
        self._draws_ahead = settings.draws_ahead
        self._copies = settings.dataset_copy != "shared"
        # Whether the calling thread makes the batches, one at a time, when they are asked for.
        begins = workers is None or workers.begins_inline
        batches = settings.batches if begins and workers is not None else math.inf
        self._inline = Inline(settings.concurrency, begins=begins, workers=workers, batches=batches)
        self._making = False  # whether the calling thread makes a batch at once

    @property
    def empty(self) -> bool:
        """Whether there are none; another thread may close the epoch at any moment."""
        return not self._batches

    @property
    def cancelled(self) -> bool:
        """Whether the epoch was closed; another thread may do so at any moment."""
        return self._progress.cancelled

    @property
    def inline(self) -> bool:
        """Whether the calling thread makes the batches."""
        return self._inline.on

    @property
    def plans_ahead(self) -> bool:
        """Whether batches are planned before they are asked for."""
        return self._draws_ahead and not self._inline.on

    @property
    def planned_all(self) -> bool:
        """Whether there is nothing left to plan."""
        return self._planned_all

    def moment(self) -> tuple[int, int, int]:
        """Return how the window is at this moment; from any thread.

        Returns:
            Threads that may run samples, 0 for the calling thread; batches that are planned; and
            those of them that are done.
        """
        running = 0 if self._inline.on else self._concurrency.running()
        while True:
            # To list a deque is one call, but no atomic one without a GIL.  It takes far less time
            # than from one change to the next.  (Its own `copy` takes 0.1 s on CPython 3.13 without
            # GIL, where other threads are busy.)
            with suppress(RuntimeError):
                batches = list(self._batches)
                return running, len(batches), sum(batch.done for batch in batches)

    def fill(self) -> None:
        """Plan batches until the window is full."""
        batch, tracer = None, stages.tracer
        try:
            if tracer is not None:
                tracer.begin("plan", self._progress.key)
            depth = self._collation.depth
            inline = self._inline.on
            groups = (
                not inline and self._feed.groups and self._copier is None and self._collation.groups
            )
            most = depth.group_size(self._window) if groups else 1
            if self._concurrency.exceeds_cores or depth.needed:
                depth.needed = self._needed()
            room = max(depth.room(self._window, most), self._feed.least) if self.plans_ahead else 1
            while not (self._planned_all or self._progress.cancelled) and len(self._batches) < room:
                try:
                    batch = self._feed.plan_next(self._progress, most, inline=inline)
                except Exception as error:  # noqa: BLE001  # raised in the batch's place
                    self._failed(error)
                    return
                if batch is None:
                    self._planned_all = True
                    return
                self._batches.append(batch)
                if self._copier is not None:
                    self._copier.put(batch)
        finally:
            if tracer is not None:
                tracer.end("plan")
            self = batch = DROPPED  # an error of the sampler keeps this frame

    def _needed(self) -> int:
        """Return how many batches keep more threads busy than there are cores; 0 for no more."""
        concurrency, batches = self._concurrency, self._batches  # `close` may replace them
        needed = 0
        if concurrency.exceeds_cores and batches and self._may_widen:
            depth = self._collation.depth
            if not self._has_budget:
                from threadloader._threads.free_memory import (  # noqa: PLC0415  # for these only
                    default_memory_budget,
                )

                depth.free_nbytes, self._has_budget = default_memory_budget(), True
            last = batches[-1]
            rows = len(last.plan.indices) if isinstance(last, OpenBatch) else 0
            needed = self._ticket_size.batches_for(
                concurrency.limit,
                rows,
                one_ticket=self._whole_batches,
                for_slowest=depth.knows_nbytes,
            )
        self._ring.batches = max(self._kept_batches, needed + 2)
        return needed

    def make_next(self) -> tuple[Any, Receipt] | None:
        """Return the next batch, made at once, and its receipt, if the calling thread can do that.

        Returns:
            None if not: then `head` is the next batch, if there is one.
        """
        made = None
        if self._making:
            msg = "a sample can't ask for the next batch of the iterator that loads it"
            raise RuntimeError(msg)
        try:
            here = self._inline.on and self._copier is None
            if not here or self._batches or self._progress.cancelled:
                return None
            if self._inline.draining:
                self._inline.drained()
            if self._workers is None:
                self._making = True
                made = self._feed.make_next(self._progress, self._inline_worker)
            elif runs_event_loop() and not self._stays:
                self._end_here(self._ticket_size.seconds)
            else:
                made = self._make_inline()
            if isinstance(made, OpenBatch):
                self._batches.append(made)
                return None
            return made
        except Exception as error:  # noqa: BLE001  # raised in the batch's place
            self._failed(error)
            return None
        finally:
            self._making = False
            self = made = DROPPED  # an error keeps this frame

    def head(self) -> OpenBatch | FailedBatch | None:
        """Return the oldest batch, planned now if none is in flight; None after the last."""
        if not self._batches:
            self.fill()
        try:
            return self._batches[0]
        except IndexError:  # none is left, or another thread has closed the epoch
            return None
        finally:
            self = DROPPED  # the same

    def done(self) -> OpenBatch | FailedBatch | None:
        """Return a batch that can be delivered without waiting, which stays in flight, or None.

        It is what `head`, `await_workers` and `wait` would find, but takes a fifth of their time.
        """
        batches = self._batches  # read once: another thread may replace it, but not change it
        if not batches or self._copier is not None or not self._begun:
            return None
        head = batches[0]
        return head if head.done else None

    def await_workers(self) -> bool:
        """Wait until the workers have begun; return False if that takes too long.

        Raises:
            BaseException: What ``worker_init_fn`` raised; it has ended the threads.
        """
        limit = self._timeout
        try:
            started = 0.0 if limit is None else perf_counter()
            if self._begun:
                self._limit = limit
                return True
            if self._workers is not None and not self._workers.ready(limit, self._progress):
                return False
            self._begun = True
            if limit is not None:
                self._limit = max(0.0, limit - (perf_counter() - started))
            return True
        finally:
            self = DROPPED  # an error of worker_init_fn keeps this frame

    def wait(
        self, head: OpenBatch | FailedBatch, most: float | None = None
    ) -> OpenBatch | FailedBatch | None:
        """Wait until a batch is done, or the epoch is closed; after `await_workers`.

        Args:
            head: What `head` returned.
            most: Seconds, of the timeout, that this call waits; None for all that is left.

        Returns:
            The batch, which stays in flight; None if it takes too long.
        """
        try:
            if self._workers is not None:
                inline = self._inline.on and not self._inline.draining
                if inline and isinstance(head, OpenBatch):
                    self._begin_inline(head)
                return self._wait_for_workers(head, most)
            if isinstance(head, OpenBatch):
                self._feed.work(head, self._progress, self._inline_worker)
                if self._copier is not None:
                    return self._wait_for_workers(head, most)
            return head
        finally:
            # An error of a sample in the calling thread keeps this frame.
            self = head = DROPPED

    def _begin_inline(self, head: OpenBatch) -> None:
        """Make a batch in the calling thread; if that takes long, workers make the rest of it."""
        is_first = not self._rows
        try:
            self._making = True
            # The first sample may load what all others find loaded.
            started = perf_counter()
            self._rows = rows = len(head.plan.indices)
            self._inline.planned(head.plan.sequence)
            choice = self._concurrency.inline_choice
            most = choice.most_seconds(rows) if choice.preferred else INLINE_SECONDS
            self._feed.work(head, self._progress, self._inline_worker, started + most)
            if not head.done:
                choice.give_up()
                self._end_inline(head)
            elif choice.preferred or self._progress.cancelled:
                pass  # whether it goes on is decided by whole batches
            elif (seconds := perf_counter() - started) > ONE_TICKET_SECONDS and self._may_leave():
                # It was one ticket, so nobody has looked at the time: a batch of one sample, say.
                self._end_here(seconds / (self._rows or 1))
            if is_first:
                self._inline.batch_returned()
            else:
                self._inline.batch_ended()
        finally:
            self._making = False
            self = head = DROPPED  # an error keeps this frame

    def _end_inline(self, head: OpenBatch) -> None:
        """Make the rest of a batch, by workers if its samples take long."""
        feed, worker = self._feed, self._inline_worker
        try:
            self._may_leave()  # what the first sample has opened is no state
            samples, started = worker.counters.samples, perf_counter()
            feed.work(head, self._progress, worker, started + INLINE_SECONDS)
            samples = worker.counters.samples - samples
            seconds = (perf_counter() - started) / samples if samples else math.inf
            if self._inline.helps(seconds, self._rows) or head.failure is not None:
                feed.work(head, self._progress, worker)
            while not (head.done or self._progress.cancelled or self._may_leave()):
                feed.work(head, self._progress, worker, math.inf if self._stays else 0.0)
            if head.done or self._progress.cancelled:
                return
            if not self._inline.stop(seconds):
                feed.work(head, self._progress, worker)
                return
            feed.give(head)
            if self._draws_ahead:
                self.fill()
        except ClosedError:
            if not self.cancelled:
                raise
            # By another thread; `wait` says so.
        finally:
            self = head = feed = DROPPED  # an error keeps this frame

    def _make_inline(self) -> tuple[Any, Receipt] | OpenBatch | None:
        """Make a batch at once, if the calling thread goes on with that."""
        inline, made = self._inline, None
        try:
            if not self._rows:
                return None
            ends = not (self._stays or inline.goes_on(self._rows)) and self._may_leave()
            if ends and self._end_here(inline.seconds(self._rows)):
                return None
            self._making = True
            inline.batch_begins()
            made = self._feed.make_next(self._progress, self._inline_worker)
            if isinstance(made, tuple):  # an open batch ends in `wait`
                inline.batch_ended()
            return made
        finally:
            self = made = DROPPED  # an error keeps this frame

    @property
    def _stays(self) -> bool:
        """Whether the calling thread makes all batches, for good."""
        return self._first_samples is not None and self._first_samples.in_process

    def _may_leave(self) -> bool:
        """Whether threads may take over; see `FirstSamples.may_leave`."""
        first = self._first_samples
        samples = self._inline_worker.counters.samples
        return first is None or first.may_leave(self._dataset, samples)

    def _end_here(self, seconds: float) -> bool:
        """Let workers make the batches from here on, if they can; see `Inline.stop`."""
        ends = self._inline.stop(seconds)
        if ends and self._draws_ahead:
            self.fill()
        return ends

    def look_at_objects(self) -> None:
        """Go on in the calling thread if the loop has set what copies of threads do not see."""
        first = self._first_samples
        copies = self._copies and (self._inline.draining or not self._inline.on)
        name = first.changed_by_loop() if first is not None and copies else None
        if first is not None and name is not None:
            self._stay(partial(first.stay_changed, name))

    def in_doubt(self, batch: OpenBatch | FailedBatch) -> OpenBatch | FailedBatch:
        """Return a batch; made again by the calling thread if a sample has failed in another one.

        Where none fails here, threads are not for these samples: one opens an event loop or sets a
        signal, say, or is not thread-safe.
        """
        first, again = self._first_samples, None
        try:
            if first is None or first.fails_in_process or self._inline.on or runs_event_loop():
                return batch
            if not isinstance(batch, OpenBatch) or batch.plan.ends:
                return batch
            failed = [*batch.skipped, *filter(None, (batch.failure,))]
            if not (failed and isinstance(failed[0].error, Exception)):
                return batch
            again = batch.in_process()
            self._making = True
            self._feed.work(again, self._progress, self._inline_worker)
            batches = self._batches
            with suppress(ValueError):  # `close` has emptied it
                batches[batches.index(batch)] = again
            if again.failure is not None or len(again.skipped) >= len(failed):
                first.fails_in_process = True
            elif first.fails_in_threads(failed[0].error):
                self._stay(partial(first.stay_failed, failed[0].error), again)
            return again
        finally:
            self._making = False
            self = batch = again = failed = DROPPED  # an error of a sample keeps this frame

    def _stay(self, say: Callable[[], None], *made: OpenBatch) -> None:
        """Make all batches in the calling thread, those in flight anew.

        Args:
            say: Notes it.
            made: What is made already.
        """
        self._inline.on, self._inline.draining = True, False
        self._batches = deque(
            batch.in_process() if isinstance(batch, OpenBatch) and batch not in made else batch
            for batch in self._batches
        )
        if self._progress.cancelled:  # by another thread, which has cleared what was there before
            self.clear()
        say()

    def split(self, group: OpenBatch) -> bool:
        """Have the batches of a group made one by one, in its place.

        Returns:
            False if the epoch was closed meanwhile.
        """
        if not self.remove(group):
            return False
        singles = self._feed.plan_singly(group, self._progress)
        self._batches.extendleft(reversed(singles))
        return True

    def remove(self, batch: OpenBatch | FailedBatch) -> bool:
        """Take out a batch that `wait` returned.

        Returns:
            False if the epoch was closed meanwhile.
        """
        try:
            self._batches.remove(batch)
        except ValueError:
            return False
        if not (self._inline.on or self._planned_all) and isinstance(batch, OpenBatch):
            self._inline.compare(len(batch.plan.indices))
        if self._copier is None or isinstance(batch, FailedBatch):
            return batch.done
        return self._copier.has(batch)

    def clear(self) -> None:
        """Drop all batches: the epoch is closed."""
        if self._first_samples is not None:
            self._first_samples.forget()
        self._batches = deque()  # not cleared: the consumer may be iterating over it

    def _failed(self, error: Exception) -> None:
        """Put the sampler's error in the place of the batch that could not be planned."""
        end_thread_at_exit()
        # Nobody takes it from a closed epoch, and it would keep this frame.
        if not self._progress.cancelled:
            self._batches.append(FailedBatch(error))

    def _wait_for_workers(
        self, head: OpenBatch | FailedBatch, most: float | None
    ) -> OpenBatch | FailedBatch | None:
        """Wait for a batch that other threads make; see `wait`."""
        limit, batches, tracer = self._limit, None, stages.tracer
        try:
            if most is not None:
                limit = most if limit is None else min(most, limit)
                self._limit = None if self._limit is None else self._limit - limit
            if isinstance(head, FailedBatch):
                return head
            if tracer is not None and not self._delivery.has(head):
                tracer.begin("wait", self._progress.key)
            if self._in_order:
                return head if self._delivery.wait(head, limit) else None
            batches = [batch for batch in self._batches if isinstance(batch, OpenBatch)]
            if not self._delivery.wait_for_any(batches, limit):
                return None
            return next(filter(self._delivery.has, batches), head)
        finally:
            if tracer is not None:
                tracer.end("wait")
            self = head = batches = DROPPED  # an interrupt keeps this frame
