"""The threads of a loader that outlive an epoch: kept for the next one, or waited for by it.

Persistent workers serve all epochs.  An iterable that all epochs share is read by one thread at a
time: the reader of an epoch begins when that of the epoch before has ended.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from threadloader._engine.copies import Original, warn_of_shared
from threadloader._engine.workers import Workers
from threadloader._lifetime import AtomicWeakSet, end_thread_at_exit
from threadloader._threads.pool import join
from threadloader._threads.tuner import gil_is_enabled
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._engine.epoch import Epoch
    from threadloader._engine.kept import Kept
    from threadloader._engine.settings import Settings
    from threadloader._threads.pool import ThreadGroup


class KeptWorkers:
    """The workers and the epochs of one loader.

    Args:
        kept: Of the loader.

    Threads:
        reuse, make, add: planner only.
        close, dismiss, forget, cancel: shared.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._original: Original | None = None  # what the workers of the last epoch have copied
        self._opens_once = False  # whether samples open what a process must not open twice
        # Kept for the next epoch; they may have been stopped.  Set here alone.
        self.workers: Workers | None = None
        # Of an iterable that epochs share: the threads that were not seen to end.
        self._readers: tuple[ThreadGroup[Any], ...] = ()
        self._epochs: AtomicWeakSet[Epoch] = AtomicWeakSet()
        # The threads whose end nobody has seen, those of dropped iterators, too; as keys, which are
        # added, taken out and copied by single calls, atomic on both builds.
        self._groups: dict[ThreadGroup[Any], None] = {}

    @property
    def keeps(self) -> bool:
        """Whether there are workers with which the next epoch continues."""
        return self.workers is not None and not self.workers.stopped

    def reuse(self, settings: Settings) -> Workers | None:
        """Return the workers that were kept for this epoch; None if it needs new ones."""
        if settings.num_workers and "free-threading" in sys.version and gil_is_enabled():
            from threadloader._threads.gil_switch import warn_of_the_gil  # noqa: PLC0415  # rare

            warn_of_the_gil()
        workers = self.workers
        if workers is None or workers.stopped:
            self.dismiss()
            return None
        if settings.replicated:
            # A replica has one state: as in torch, the epoch before ends here.
            self.cancel()
        elif workers.original is not None and not workers.original.is_current(settings):
            self.forget()  # an epoch that they load goes on with them
            return None
        workers.begin_again(self._kept.stats.latest)
        return workers

    def make(self, settings: Settings, base_seed: int) -> Workers:
        """Return new workers, and keep them if they are persistent.

        Args:
            settings: Of the loader; with at least one worker.
            base_seed: Of the workers.
        """
        shared = settings.unsharded and settings.shares_dataset
        if shared:
            # One thread reads it at a time, and a reader that waits for its consumer would not end.
            self.cancel()
        # After that, so that an epoch that is about to start its reader sees that it is cancelled.
        # Readers of all epochs: one that was cancelled before it began has waited for no other.
        readers = [group for group in self._readers if not group.gone] if shared else []
        if self._original is not None:
            self._opens_once |= self._original.opens_once
        if self._opens_once:  # an environment of LMDB: until its worker has ended
            ending = [group for group in self._groups.copy() if group.stopping]
            readers += [group for group in ending if not group.gone]
        earlier = tuple(thread for group in readers for thread in group.threads.copy())
        # Here the dataset is copied, before the consumer's thread goes on to change anything.
        original = None if settings.iterable else self._original_of(settings)
        workers = Workers(settings, self._kept, base_seed, original, earlier)
        if shared:
            self._readers = (*readers, workers.pools[0].thread_group)
        # Unless user code, called just now, has begun another epoch.
        if settings.persistent_workers and not self.keeps:
            self.workers = workers
        return workers

    def _original_of(self, settings: Settings) -> Original:
        """Return what workers copy: that of the last epoch, if nothing was set since."""
        original = self._original
        again = settings.worker_init_fn is None and original is not None
        if original is None or not (again and original.is_current(settings)):
            self._original = original = Original(settings)
            warn_of_shared(original.shared, default=settings.tunes_threads)
        return original

    def add(self, epoch: Epoch) -> None:
        """Note an epoch, to be closed with the loader, and its threads, which `close` waits for."""
        self._epochs.add(epoch)
        self._forget_gone()
        for group in epoch.thread_groups:
            self._groups[group] = None

    def give_up(self, workers: Workers, *exception: Any) -> None:
        """End the workers of an epoch that does not come about.

        Args:
            workers: They.
            exception: Its class, the error and its traceback, as of ``__exit__``.
        """
        if self.workers is workers:
            self.dismiss()
        workers.stop()
        if isinstance(exception[1], ClosedError):
            end_thread_at_exit()  # the exit may be what closed its threads

    def dismiss(self) -> None:
        """Let kept threads end after their running jobs: the next epoch has new ones."""
        workers = self.workers
        if workers is not None:
            workers.stop()
            if self.workers is workers:  # last: after an interrupt the next call stops them
                self.workers = None

    def forget(self) -> None:
        """Keep no workers for the next epoch; an epoch that they load goes on to its end."""
        workers, self.workers = self.workers, None
        if workers is not None and all(epoch.ended for epoch in self._epochs.all()):
            workers.stop()  # else they stop when the epoch is dropped

    def cancel(self) -> None:
        """End all epochs; waits for nobody."""
        for epoch in self._epochs.all():
            epoch.cancel()

    def close(self) -> None:
        """End all epochs and threads, after running samples; called in a sample, wait for none."""
        self.dismiss()
        self.cancel()
        groups = list(self._groups.copy())
        for group in groups:
            group.stop()
        join(groups)
        self._original = None
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Forget the threads that have ended."""
        for group in self._groups.copy():
            if group.gone:
                self._groups.pop(group, None)
