"""The threads of a loader that outlive an epoch: kept for the next one, or not to be overtaken.

Persistent workers serve all epochs.  A plain iterable, which all epochs have in common, is read by
one thread at a time: the next epoch's reader begins when the one before has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._lifetime.dropping import Living
from threadloader._lifetime.process import end_thread_at_exit
from threadloader._threads.pool import join
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from threadloader._epoch.epoch import Epoch
    from threadloader._session.opening import Opening
    from threadloader._threads.pool import ThreadGroup
    from threadloader._work.counters import Stats
    from threadloader._work.workers import Workers

__all__ = ["KeptWorkers"]


class KeptWorkers:
    """The staff and the epochs of one loader.

    Args:
        name: Prefix of the threads' names.
        stats: Counts what they do.

    Threads:
        kept, make, begun: planner only.
        close, dismiss, cancel: shared.
    """

    def __init__(self, name: str, stats: Stats) -> None:
        self._name = name
        self._stats = stats
        self._kept: Workers | None = None
        self._readers: tuple[ThreadGroup[Any], ...] = ()  # of a plain iterable, not seen ended
        self._epochs: Living[Epoch] = Living()
        # The threads whose end nobody has seen, those of dropped iterators, too; as keys, which are
        # added, taken out and copied by single calls, atomic on both builds.
        self._groups: dict[ThreadGroup[Any], None] = {}

    def kept(self, opening: Opening) -> Workers | None:
        """Return the threads of the epochs before, if they are kept."""
        staff = self._kept
        if staff is None or staff.stopped:
            self.dismiss()
            return None
        if opening.replicates:
            # Its replicas are one state each: as in torch, the epoch before ends here.
            self.cancel()
        return staff

    def make(self, opening: Opening, base_seed: int) -> Workers | None:
        """Return new threads; None for the calling thread.

        Args:
            opening: What they load.
            base_seed: Of the workers.
        """
        shared = opening.plain and opening.shares
        if shared:
            # It is read by one thread at a time, and one that waits for its consumer would not end.
            self.cancel()
        # In this order: an epoch that is only about to start its reader sees that it was cancelled.
        # Not of the last one alone: one that was cancelled before it began has waited for nobody.
        readers = [group for group in self._readers if not group.gone] if shared else []
        before = tuple(thread for group in readers for thread in group.threads.copy())
        # Here the dataset is copied, before the consumer's thread goes on to change anything.
        staff = opening.make_workers(self._name, base_seed, self._stats, before)
        if staff is not None and shared:
            self._readers = (*readers, staff.pools[0].group)
        # Unless the user's code, called just now, has begun another epoch.
        if opening.persistent and not self.keeps:
            self._kept = staff
        return staff

    def begun(self, epoch: Epoch) -> None:
        """Note an epoch, to be closed with the loader, and its threads, to be waited for."""
        self._epochs.add(epoch)
        self._forget_gone()
        for group in epoch.groups:
            self._groups[group] = None

    @property
    def staff(self) -> Workers | None:
        """The threads that are kept for the next epoch, if they were not stopped."""
        return self._kept

    @property
    def keeps(self) -> bool:
        """Whether there are threads that a next epoch goes on with."""
        return self._kept is not None and not self._kept.stopped

    def give_up(self, error: BaseException, staff: Workers | None, *, shared: bool) -> None:
        """Keep no threads of an epoch that does not come about.

        Args:
            error: Why it does not.
            staff: What it was to have.
            shared: Whether epochs before it go on with the same threads: then they are kept.
        """
        if not shared:
            self.dismiss()
            if staff is not None:
                staff.stop()
        if isinstance(error, ClosedError):
            end_thread_at_exit()  # which is what closed its threads

    def dismiss(self) -> None:
        """Let kept threads end after their running jobs: the next epoch has new ones."""
        staff = self._kept
        if staff is not None:
            staff.stop()
            if self._kept is staff:  # last: after an interrupt the next call stops them
                self._kept = None

    def cancel(self) -> None:
        """End all epochs; waits for nobody."""
        for epoch in self._epochs.all():
            epoch.cancel()

    def close(self) -> None:
        """End all epochs and threads, after running samples; in one of these, wait for none."""
        self.dismiss()
        self.cancel()
        groups = list(self._groups.copy())
        for group in groups:
            group.stop()
        join(groups)
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Note no longer the threads that have ended."""
        for group in self._groups.copy():
            if group.gone:
                self._groups.pop(group, None)
