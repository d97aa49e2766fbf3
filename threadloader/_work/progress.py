"""What workers report of an epoch, and what its consumer waits for.

Every epoch that goes on is known here, so that all end when the interpreter does.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from threadloader._lifetime.dropping import AtomicWeakSet
from threadloader._lifetime.process import Phase, at_exit, in_forked_child
from threadloader._threads.waiting import Tokens, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from threadloader._fetch.failure import Failure
    from threadloader._order.tickets import Ticket

__all__ = ["Awaited", "Progress"]


class Awaited(Protocol):
    """A batch that somebody may wait for.

    Threads:
        all but an unlocked look at ``done``: guarded by its `Progress`.
    """

    done: bool
    missing: int  # rows
    failure: Failure | None

    def keep_lowest(self, failure: Failure | None) -> Failure | None:
        """Note an error, unless a lower row has one; return the one of the two that is not kept."""


# Every epoch that may have open batches: the process-wide hook of the interpreter's exit.
_epochs: AtomicWeakSet[Progress] = AtomicWeakSet()


@in_forked_child
def _forget_epochs() -> None:
    """Start afresh in a forked child: no epoch of the parent's goes on."""
    global _epochs  # noqa: PLW0603  # of the process, and this is a new one
    _epochs = AtomicWeakSet()


@at_exit(Phase.CANCEL_EPOCHS)
def _cancel_all() -> None:
    """Cancel every epoch; a consumer that goes on in an exit handler is told that it is closed."""
    for progress in _epochs.all():
        progress.close()


class Progress:
    """What workers report and the consumer waits for.

    Invariants, whenever ``_lock`` is not held:
        1. A batch that is done has no running ticket, and never changes again.

    Threads:
        begun: planner, or the worker that has read the batch.
        shared: any.
        finished, collated: worker.
        wait, wait_for_any, close: consumer.
        cancel: shared, also from a finalizer; it takes no lock.
    """

    def __init__(self) -> None:
        _epochs.add(self)
        self.cancelled = False  # only ever set; read and written whole, on both builds
        # Told of each batch that is done, and of the end; called with the lock held, or by a
        # finalizer: it must do no more than `SimpleQueue.put` does.
        self.told: Callable[[], None] = _nobody
        self._tokens: Tokens = SimpleQueue()  # for who waits
        self._lock = Lock()
        # All below, and the progress of each open batch: guarded by _lock.
        self._awaited: Awaited | None = None
        self._any_awaited = False
        self._any_done = False
        # The ids of batches that were begun, and are not done.  No lock, which the planner would
        # take from its workers at each batch: adding and discarding are atomic on both builds.
        self._open: set[int] = set()

    def begun(self, batch: object) -> None:
        """Count a batch that workers may work on now."""
        self._open.add(id(batch))

    def shared(self) -> int:
        """Tell how many batches the workers share; until the first is done, it is theirs alone."""
        # Unlocked: each is read whole on both builds, and a number that is late does no harm.
        return max(1, len(self._open)) if self._any_done else 1

    def cancel(self) -> None:
        """Let no further sample be fetched."""
        self.cancelled = True

    def finished(self, batch: Awaited, ticket: Ticket, failure: Failure | None) -> bool:
        """Count a ticket's rows; return whether the batch is now to be collated."""
        with self._lock:
            # The loser is let go after the lock: its frames may hold finalizers of the user's.
            loser = batch.keep_lowest(failure)  # noqa: F841
            batch.missing -= ticket.stop - ticket.start
            if batch.missing or self.cancelled:
                return False
            if batch.failure is None:
                return True
            self._let_go(batch)
            return False

    def collated(self, batch: Awaited, failure: Failure | None) -> None:
        """Let the consumer have a batch."""
        with self._lock:
            loser = batch.keep_lowest(failure)  # noqa: F841  # let go after the lock
            self._let_go(batch)

    def wait(self, batch: Awaited, timeout: float | None = None) -> bool:
        """Wait until ``batch`` is done, or the epoch is closed; return False if it takes too long.

        Args:
            batch: The batch.
            timeout: Seconds; None waits for ever.
        """
        # Unlocked first: one attribute load, and a batch that is done stays so.
        if batch.done:
            return True
        try:
            with self._lock:  # or it could be done in between, and nobody be told
                self._awaited = batch
            return wait_until(lambda: batch.done or self.cancelled, self._tokens, timeout)
        finally:
            self._awaited = None

    def wait_for_any(self, batches: Iterable[Awaited], timeout: float | None = None) -> bool:
        """Wait until one of ``batches`` is done, as `wait` does for one."""

        def reached() -> bool:
            return self.cancelled or any(batch.done for batch in batches)

        try:
            with self._lock:
                self._any_awaited = True
            return wait_until(reached, self._tokens, timeout)
        finally:
            self._any_awaited = False

    def tell_nobody(self) -> None:
        """Let go of whoever was told of batches."""
        self.told = _nobody

    def close(self) -> None:
        """Cancel, and wake a consumer that waits in another thread."""
        self.cancel()
        self._tokens.put(None)
        self.told()

    def _let_go(self, batch: Awaited) -> None:
        self._open.discard(id(batch))
        batch.done = self._any_done = True
        if batch is self._awaited or self._any_awaited:
            self._tokens.put(None)
        self.told()

    def has(self, batch: Awaited) -> bool:
        """Whether there is nothing to wait for."""
        return batch.done


def _nobody() -> None:
    """There is nobody to tell."""
