"""Where an epoch's batches come from: a sampler, or iterable replicas in turn.

A feed plans one batch at a time, in the consumer's thread, and gives it to the threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._work.open_batch import FailedBatch, OpenBatch, Worker
    from threadloader._work.progress import Progress

__all__ = ["Feed"]


class Feed(Protocol):
    """What an epoch asks for batches.

    Threads:
        all: planner only.
    """

    eager: bool  # whether batches may be planned before the first is asked for
    packs: bool  # whether several batches may be made as one

    def start(self) -> None:
        """Let what decides the order be drawn, giving nothing to the threads."""

    def draw(self, progress: Progress, most: int = 1) -> OpenBatch | None:
        """Plan the next batch and give it to the threads; None after the last.

        Args:
            progress: Of the epoch.
            most: Batches that may be made as one, if they ``pack``.

        Raises:
            Exception: What the sampler raises; the next call goes on with what it yields then.
        """

    def split(self, pack: OpenBatch, progress: Progress) -> list[OpenBatch]:
        """Give batches that were to be made as one to the threads again, one by one."""

    def work(self, batch: OpenBatch, progress: Progress, worker: Worker) -> None:
        """Do all the work of one batch in the calling thread; without threads only."""

    def left(self, batch: OpenBatch) -> None:
        """Take note that ``batch`` left the window."""

    def receipt(self, batch: OpenBatch, number: int = 0) -> Callable[[], None]:
        """Return what is called once ``batch`` was delivered: it counts from then on.

        Args:
            batch: The batch.
            number: Of several that were made as one, from 0.
        """

    def take_back(self, batch: OpenBatch | FailedBatch | None, number: int = 0) -> None:
        """Take no note of a batch that was to be delivered last, and was not."""

    def returned(self) -> None:
        """Take note that one more batch is returned to the consumer."""

    def finish(self) -> None:
        """Take note that the consumer is told of the end."""

    def end(self) -> None:
        """Take note that no more batches are wanted."""
