"""Samples of an iterable dataset: they were read already, and have their transform applied here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._fetch.each_sample import call_each
from threadloader._fetch.own_generators import OwnGenerators
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.streams import enter_sample_streams, leave_streams, seeding

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._fetch.dataset_copy import Copied
    from threadloader._fetch.each_sample import RunningEpoch
    from threadloader._fetch.fetcher import Fetched
    from threadloader._order.tickets import PlannedBatch, Ticket

__all__ = ["ReadSamples"]


class ReadSamples:
    """Fetches samples that were read already: the `Fetcher` of an iterable dataset.

    Args:
        dataset: The worker's replica, for `get_worker_info()`.
        transform: This worker's own copy, applied to each sample; None for none.
        copied: As for `Fetcher`.

    Threads:
        fetch: one thread, the worker that owns it.
    """

    __slots__ = ("_generators", "_transform", "dataset")

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None = None,
        copied: Copied | None = None,
    ) -> None:
        self.dataset = dataset
        self._transform = transform
        self._generators = None if transform is None else OwnGenerators(transform, copied)

    gathers = False

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:  # noqa: ARG002  # as a `Fetcher`
        """Return True: samples are fetched one by one."""
        return True

    def fetch(
        self,
        ticket: Ticket,
        epoch: RunningEpoch,
        seed: int | None = None,
        *,
        singly: bool = False,  # noqa: ARG002  # as a `Fetcher`
    ) -> Fetched:
        """Fetch the samples of a ticket; see `Fetcher.fetch`."""
        read: list[Any] = ticket.batch.drawn
        if self._transform is None:
            samples = read[:]
            read.clear()  # the batch is one ticket: nobody else needs them
            return samples, None
        transformed: list[Any] = []
        try:
            transform = self._transform
            if seed is not None:
                enter_sample_streams(seed, ticket.batch.position + ticket.start, transformed)
                transform = seeding(transform)
            part, own = read[ticket.start : ticket.stop], self._generators
            if own is None:
                call_each(transform, part, transformed, epoch)
            else:
                own.call(call_each, transform, part, transformed, epoch, each=True)
            return transformed, None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return transformed, error
        finally:
            if seed is not None:  # the streams may be those of a sample that loads from here
                leave_streams()
            # The error keeps this frame.
            self = ticket = epoch = read = transformed = part = own = transform = DROPPED
