"""The progress of an epoch: workers report it, and the consumer waits for it.

This module knows every epoch that goes on, to cancel all of them when the interpreter exits.
"""

from __future__ import annotations

from itertools import count
from operator import attrgetter
from queue import SimpleQueue
from threading import Lock, get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._lifetime import AtomicWeakSet, Phase, at_exit, in_forked_child
from threadloader._threads.waiting import Tokens, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._order.tickets import Ticket
    from threadloader._report.stages import EpochKey
    from threadloader._worker.failure import Failure


class Awaited:
    """A batch that the consumer may wait for.

    Threads:
        all: guarded by its `Progress`, except for an unlocked read of ``done`` and ``arrived``.
    """

    __slots__ = ("arrived", "done", "failure", "missing")

    done: bool
    arrived: bool  # where there is a copier: whether the copy has begun, or the batch failed
    failure: Failure | None
    missing: int  # rows

    def keep_lowest(self, failure: Failure | None) -> Failure | None:
        """Keep the error of the lowest row; return the other of the two, if there are two."""
        if failure is None or failure is self.failure:
            return None
        if self.failure is None or failure.row < self.failure.row:
            failure, self.failure = self.failure, failure
        return failure


# Every epoch that may have open batches, for the interpreter's exit.
_epochs: AtomicWeakSet[Progress] = AtomicWeakSet()
_numbers = count()  # of epochs, of all loaders together


@in_forked_child
def _forget_epochs() -> None:
    """Forget the parent's epochs in a forked child: none of them goes on there."""
    global _epochs  # noqa: PLW0603  # of the process, and this is a new one
    _epochs = AtomicWeakSet()


@at_exit(Phase.CANCEL_EPOCHS)
def _cancel_all() -> None:
    """Cancel every epoch; a consumer that goes on in an exit handler gets a `ClosedError`."""
    for progress in _epochs.all():
        progress.close()


class Progress:
    """The progress of one epoch.

    Args:
        loader: See `EpochKey`.
        copies: Whether a batch is delivered once it has arrived, not when it is done.

    Invariants, whenever ``_lock`` is not held:
        1. A batch that is done has no running ticket, and never changes again.

    Threads:
        begun: planner, or the worker that has read the batch.
        share: any.
        finished, collated: worker.
        arrived: copier.
        wait, close: consumer.
        cancel: shared, also from a finalizer; it takes no lock.
        fetching, fetched: worker.
        fetched_by: shared.
        reached_at: consumer, after a wait.
    """

    def __init__(self, loader: object = None, *, copies: bool = False) -> None:
        _epochs.add(self)
        self.key: EpochKey = loader, next(_numbers)  # in traces
        self.threads = 1  # that share the work; set by the consumer
        self.cancelled = False  # only ever set; read and written whole, on both builds
        # Called when a batch is done, and at the end, with the lock held or by a finalizer: it must
        # do no more than `SimpleQueue.put` does.
        self.on_change: Callable[[], None] | None = None
        # Whether a batch may be delivered.
        self.has: Callable[[Awaited], bool] = attrgetter("arrived" if copies else "done")
        self._tokens: Tokens = SimpleQueue()  # wake the consumer
        self.reached_at = 0.0  # on the clock: when a batch that was waited for could be delivered
        self._lock = Lock()
        # All below, and the progress of each open batch: guarded by _lock.
        self._awaited: Sequence[Awaited] = ()
        self._any_done = False
        # The ids of batches that were begun and are not done.  Not guarded by the lock, for which
        # planner and workers would compete: adding and discarding are atomic on both builds.
        self._open: set[int] = set()
        # The indices of running tickets, by their ids: emptied by `cancel`.  With them the samples
        # so far, and the thread.  Setting, popping and copying are atomic on both builds.
        self._left: dict[int, tuple[list[Any], list[Any], int]] = {}

    def begun(self, batch: object) -> None:
        """Note a batch that workers may work on now."""
        self._open.add(id(batch))

    def share(self) -> float:
        """Return a thread's fair share of the batches that were begun; at first of the first."""
        # Unlocked: each is read whole on both builds, and an old number does no harm.
        return (max(1, len(self._open)) if self._any_done else 1) / self.threads

    def cancel(self) -> None:
        """Have no further sample fetched."""
        self.cancelled = True
        for left, _, _ in self._left.copy().values():
            left.clear()

    def fetching(self, left: list[Any], samples: list[Any]) -> None:
        """Have the indices of a ticket emptied as soon as the epoch is cancelled.

        Args:
            left: The indices.
            samples: Grows by each sample that is fetched.
        """
        self._left[id(left)] = left, samples, get_ident()
        if self.cancelled:  # it may have been before they were set
            left.clear()

    def fetched(self, left: list[Any]) -> None:
        """Note the end of a ticket."""
        self._left.pop(id(left), None)

    def fetched_by(self, thread: int) -> int | None:
        """Return how many samples of its ticket a thread has fetched; None if it fetches none."""
        for _, samples, fetches in self._left.copy().values():
            if fetches == thread:
                return len(samples)
        return None

    def finished(self, batch: Awaited, ticket: Ticket, failure: Failure | None) -> bool:
        """Count the rows of a ticket; return whether the batch is now to be collated."""
        with self._lock:
            # Dropped after the lock is released: its frames may hold finalizers of the user's.
            higher = batch.keep_lowest(failure)  # noqa: F841
            batch.missing -= ticket.stop - ticket.start
            if batch.missing or self.cancelled:
                return False
            if batch.failure is None:
                return True
            self._mark_done(batch)
            return False

    def collated(self, batch: Awaited, failure: Failure | None) -> None:
        """Mark a batch as done."""
        with self._lock:
            # Dropped after the lock is released.
            higher = None if failure is None else batch.keep_lowest(failure)  # noqa: F841
            self._mark_done(batch)

    def arrived(self, batch: Awaited) -> None:
        """Note that the copy of a batch has begun, or that it failed."""
        with self._lock:
            batch.arrived = True
            if self._awaited:
                self._wake_for(batch)

    def wait(self, batches: Sequence[Awaited], timeout: float | None = None) -> bool:
        """Wait until any of ``batches`` may be delivered, or the epoch is closed.

        Args:
            batches: The batches.
            timeout: Seconds; None waits for ever.

        Returns:
            False if it takes too long.
        """
        # Unlocked first: one attribute load each, and a batch that is done stays so.
        if any(map(self.has, batches)):
            return True

        def reached() -> bool:
            return self.cancelled or any(map(self.has, batches))

        try:
            with self._lock:  # otherwise one could come in between, and wake nobody
                self._awaited = batches
            return wait_until(reached, self._tokens, timeout)
        finally:
            self._awaited = ()

    def close(self) -> None:
        """Cancel, and wake a consumer that waits in another thread."""
        self.cancel()
        self._tokens.put(None)
        self._report()

    def _mark_done(self, batch: Awaited) -> None:
        self._open.discard(id(batch))
        batch.done = self._any_done = True
        if self._awaited:
            self._wake_for(batch)
        if self.on_change is not None:
            self._report()

    def _wake_for(self, batch: Awaited) -> None:
        if batch in self._awaited and self.has(batch):
            self.reached_at = perf_counter()
            self._tokens.put(None)

    def _report(self) -> None:
        on_change = self.on_change  # once: another thread may drop it
        if on_change is not None:
            on_change()
