"""Whether all workers of a pool have begun, and with which error.

Each runs the user's ``worker_init_fn`` first, and the consumer waits until all have.
"""

from __future__ import annotations

from contextlib import suppress
from queue import SimpleQueue
from threading import RLock
from typing import Any

from threadloader._lifetime import AtomicWeakSet
from threadloader._threads.waiting import Tokens, wait_until
from threadloader.errors import ClosedError

_FAILED = (
    "a worker could not begin, or its worker_init_fn failed, and the threads have ended; "
    "iter(loader) starts new ones"
)


class Startup:
    """Whether all workers of a pool have begun, and with which error.

    Args:
        workers: How many are waited for; 0 if they have no ``worker_init_fn`` to run.

    Invariants, whenever ``_lock`` is not held:
        1. Each worker that is not missing any more has run its ``worker_init_fn``.

    Threads:
        begun: worker, once each.
        failed: worker, or the thread that starts the workers.
        wait, watch, take_error: consumer.
        nudge: shared.
    """

    def __init__(self, workers: int) -> None:
        self._epochs: AtomicWeakSet[Any] = AtomicWeakSet()  # that these workers load
        self.awaited = workers > 0
        # One for each waiting thread.  Added, removed and copied by single calls, atomic on both
        # builds.
        self._waiting: set[Tokens] = set()
        self._lock = RLock()  # re-entrant for a finalizer of the user's that runs inside
        # All below: guarded by _lock.
        self._missing = workers
        self._errors: dict[int, BaseException] = {}
        self._failed = False

    def begun(self, number: int, error: BaseException | None) -> None:
        """Note that a worker is ready, or the error of its ``worker_init_fn``."""
        with self._lock:
            self._missing -= 1
            if error is not None:
                self._errors[number] = error
                self._failed = True
        self.nudge()

    def failed(self, number: int, error: BaseException) -> None:
        """Note the error of a worker that ended or could not begin, and cancel all its epochs."""
        with suppress(BaseException):  # an error that refuses notes
            error.add_note(f"worker {number} could not run")
        with self._lock:
            self._errors[number] = error
            self._failed = True
        for epoch in self._epochs.all():
            epoch.cancel()

    def watch(self, epoch: Any) -> None:
        """Let ``epoch`` be cancelled if a worker can't begin; its consumer asks `take_error`."""
        self._epochs.add(epoch)
        if self._failed:  # in this order, or it could fail in between and cancel nothing
            epoch.cancel()

    def wait(self, timeout: float | None, epoch: Any) -> bool:
        """Wait until all workers have begun; return False if that takes too long.

        Args:
            timeout: Seconds; None waits for ever.
            epoch: Once it is ``cancelled`` there is nothing to wait for; `nudge` then.
        """
        # Unlocked: one attribute load, and workers that have begun stay so.
        if not self._missing:
            return True
        tokens: Tokens = SimpleQueue()
        try:
            self._waiting.add(tokens)  # first, or the last could begin now and wake nobody
            return wait_until(lambda: not self._missing or epoch.cancelled, tokens, timeout)
        finally:
            self._waiting.discard(tokens)

    def nudge(self) -> None:
        """Let all waiting threads look again."""
        for tokens in self._waiting.copy():
            tokens.put(None)

    def take_error(self) -> BaseException | None:
        """Return the error of the lowest worker, once; None if all have begun.

        It is not kept here, where the threads could reach it: once raised, it leads to the
        consumer's frames, and an iterator that its own threads hold is never dropped.
        """
        # Unlocked, as it is only ever set; each batch asks.
        if not self._failed:
            return None
        with self._lock:
            errors, self._errors = self._errors, {}
        return errors[min(errors)] if errors else ClosedError(_FAILED)
