"""Where an epoch's batches come from: a sampler, or the replicas of an iterable dataset in turn.

A feed plans one batch at a time, in the consumer's thread, and gives it to the workers.  For a
batch that is done it returns a receipt, which counts the batch once the consumer has it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._work.open_batch import OpenBatch, Worker
    from threadloader._work.progress import Progress

__all__ = ["Feed", "Receipt"]


class Receipt:
    """Counts a batch in the epoch's position, so that a state saved later goes on after it.

    This one counts nothing: it is for the end of a replica, and for an error of the sampler.

    Threads:
        all: consumer.
    """

    __slots__ = ()

    def count(self, *, returned: bool) -> None:
        """Count the batch.

        Args:
            returned: Whether the consumer gets it.  If not, an error was raised in its place, or
                all of its samples were left out.
        """

    def take_back(self) -> None:
        """Count the batch no longer, if it was counted last: the consumer did not get it."""


class Feed(Protocol):
    """Plans the batches of an epoch.

    Threads:
        end: shared; all others: consumer.
    """

    eager: bool  # whether batches may be planned before the first is asked for
    groups: bool  # whether several batches may be made as one

    @property
    def least(self) -> int:
        """The batches that are planned ahead at the least, whatever the window."""

    def plan_next(
        self, progress: Progress, most: int = 1, *, inline: bool = False
    ) -> OpenBatch | None:
        """Plan the next batch and give it to the workers; return None after the last.

        Args:
            progress: Of the epoch.
            most: Batches that may be made as one, if there are ``groups``.
            inline: Whether the calling thread begins to make it: `give` comes later, or never.

        Raises:
            Exception: What the sampler raises; the next call goes on with what it yields then.
        """

    def make_next(
        self, progress: Progress, worker: Worker
    ) -> tuple[Any, Receipt] | OpenBatch | None:
        """Plan the next batch, and make it at once in the calling thread if that can be.

        Args:
            progress: Of the epoch.
            worker: The calling thread.

        Returns:
            The batch and its receipt; or an open batch, as `plan_next` does; None after the last,
            or if the epoch was closed.
        """

    def give(self, batch: OpenBatch) -> None:
        """Give a batch to the workers, which the calling thread has begun to make."""

    def plan_singly(self, group: OpenBatch, progress: Progress) -> list[OpenBatch]:
        """Give the batches of a group, which failed, to the workers again, one by one."""

    def work(
        self, batch: OpenBatch, progress: Progress, worker: Worker, until: float = math.inf
    ) -> None:
        """Make a batch in the calling thread.

        Args:
            batch: The batch.
            progress: Of the epoch.
            worker: The calling thread.
            until: On `perf_counter`; then the tickets that are left are not begun.
        """

    def done(self, batch: OpenBatch) -> Sequence[Receipt]:
        """Note that a batch is done, or has failed, and was taken out of the window.

        Returns:
            Its receipt; for a group one for each batch.
        """

    def end(self, *, finished: bool = False) -> None:
        """Plan no more batches.  Idempotent.

        Args:
            finished: Whether all were delivered; the consumer calls it then.
        """
