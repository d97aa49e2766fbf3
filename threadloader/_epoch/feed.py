"""Where an epoch's batches come from: a sampler, or the replicas of an iterable dataset in turn.

A feed plans one batch at a time, in the consumer's thread, and gives it to the threads.  For each
that is done it gives a receipt, by which the batch is counted when the consumer has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._work.open_batch import OpenBatch, Worker
    from threadloader._work.progress import Progress

__all__ = ["Feed", "Receipt"]


class Receipt:
    """Counts a batch in the epoch's position: a state that is saved then goes on behind it.

    This one counts nothing, in the place of a batch that there is none of.

    Threads:
        all: consumer.
    """

    __slots__ = ()

    def count(self, *, returned: bool) -> None:
        """Count the batch.

        Args:
            returned: Whether the consumer gets it, and not an error or nothing in its place.
        """

    def take_back(self) -> None:
        """Count it no more, if it was counted last: the consumer did not get it."""


class Feed(Protocol):
    """What an epoch asks for batches.

    Threads:
        end: shared; all others: consumer.
    """

    eager: bool  # whether batches may be planned before the first is asked for
    groups: bool  # whether several batches may be made as one

    def plan_next(self, progress: Progress, most: int = 1) -> OpenBatch | None:
        """Plan the next batch and give it to the threads; return None after the last.

        Args:
            progress: Of the epoch.
            most: Batches that may be made as one, if there are ``groups``.

        Raises:
            Exception: What the sampler raises; the next call goes on with what it yields then.
        """

    def plan_singly(self, group: OpenBatch, progress: Progress) -> list[OpenBatch]:
        """Give the batches of a group to the threads again, one by one."""

    def work(self, batch: OpenBatch, progress: Progress, worker: Worker) -> None:
        """Do all the work of one batch in the calling thread; without threads only."""

    def done(self, batch: OpenBatch) -> Sequence[Receipt]:
        """Note that a batch is done, or failed, and left the window.

        Returns:
            A receipt for each batch that it is: several for a group.
        """

    def end(self, *, finished: bool = False) -> None:
        """Note that no more batches are wanted.  Idempotent.

        Args:
            finished: Whether the consumer has had all of them; called by it then.
        """
