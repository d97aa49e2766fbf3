"""Index → sample: a worker's access to a map-style dataset.

Each worker has a fetcher with its own copy of the dataset.  The user's code runs here, in frames
that refer to no slot: an exception keeps its frames, and they keep their variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._fetch.array_rows import arrays_of
from threadloader._fetch.each_sample import call_each, getitem_of
from threadloader._fetch.own_generators import OwnGenerators
from threadloader._rng.streams import enter_sample_streams, leave_streams, seeding

if TYPE_CHECKING:
    from threadloader._fetch.dataset_copy import Copied
    from threadloader._fetch.each_sample import RunningEpoch
    from threadloader._order.tickets import PlannedBatch, Ticket

__all__ = ["Cancellable", "Fetched", "Fetcher", "Fetches", "Samples", "fetches_whole_batches"]

T_co = TypeVar("T_co", covariant=True)

# The samples, and the error of the sample after them, or None.
Fetched = tuple[Any, BaseException | None]


class Samples(Protocol[T_co]):
    """A map-style dataset that is no `torch.utils.data.Dataset`."""

    def __getitem__(self, index: Any, /) -> T_co:
        """Return a sample."""


class Cancellable(Protocol):
    """An epoch, as far as a worker asks whether it goes on."""

    @property
    def cancelled(self) -> bool:
        """Whether no further sample is to be fetched."""


class Fetches(Protocol):
    """A worker's access to its samples: a `Fetcher`, or `ReadSamples` for an iterable."""

    @property
    def dataset(self) -> Any:
        """The worker's own copy."""

    def fetch(
        self,
        ticket: Ticket,
        epoch: RunningEpoch,
        seed: int | None = None,
        *,
        singly: bool = False,
    ) -> Fetched:
        """Fetch the samples of a ticket; see `Fetcher.fetch`."""

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:
        """Whether samples of a batch can be fetched one by one."""

    @property
    def gathers(self) -> bool:
        """Whether samples are rows of arrays, which are written without the user's code."""


def fetches_whole_batches(dataset: Any) -> bool:
    """Whether the dataset has ``__getitems__``, to be called with all indices of a batch."""
    return _torch.gives_whole_batches(dataset)


class Fetcher:
    """Fetches samples of one dataset; of an array dataset it only says which rows they are.

    Args:
        dataset: This worker's own copy.
        whole_batches: Whether to call ``__getitems__`` with all indices of a batch.
        copied: What the worker has copies of; None for none, where the dataset is the user's own.

    Threads:
        fetch: one thread, the worker that owns it.
    """

    __slots__ = ("_arrays", "_generators", "_whole_batches", "dataset")

    def __init__(self, dataset: Any, *, whole_batches: bool, copied: Copied | None = None) -> None:
        self.dataset = dataset
        self._whole_batches = whole_batches
        self._arrays = arrays_of(dataset)
        self._generators = None if self._arrays else OwnGenerators(dataset, copied)

    def fetch(
        self,
        ticket: Ticket,
        epoch: RunningEpoch,
        seed: int | None = None,
        *,
        singly: bool = False,
    ) -> Fetched:
        """Fetch the samples of a ticket.

        Args:
            ticket: The rows.
            epoch: Once it is cancelled, no further sample is fetched.
            seed: Seeds the samples' random streams in this epoch; None for none.
            singly: Whether to call ``__getitem__`` for each sample in any case.

        Returns:
            A list of samples, in the order of the rows; or `Rows`; or any object that
            ``__getitems__`` returned.  With an error, the samples before the one that failed.
        """
        batch = ticket.batch
        if self._whole_batches and not singly:
            return self._fetch_whole(batch.drawn, batch.position, seed)
        indices = batch.indices
        if ticket.stop - ticket.start != len(indices):
            indices = indices[ticket.start : ticket.stop]
        if self._arrays is not None and not singly:
            if not self._arrays.is_current():  # a worker_init_fn, say, has replaced them
                self._arrays = arrays_of(self.dataset)
            rows = None if self._arrays is None else self._arrays.rows(indices)
            if rows is not None:
                return rows, None
        left = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
        return self._fetch_each(left, epoch, batch.position + ticket.start, seed)

    @property
    def gathers(self) -> bool:
        """Whether samples are rows of arrays; see `Fetches`."""
        return self._arrays is not None

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:
        """Whether samples of a batch can be fetched one by one."""
        return type(plan.drawn) in (list, tuple) and _torch.has_getitem(self.dataset)

    def _fetch_each(
        self, indices: list[Any], epoch: RunningEpoch, position: int, seed: int | None
    ) -> Fetched:
        samples: list[Any] = []
        try:
            getitem, own = getitem_of(self.dataset), self._generators
            if seed is not None:
                enter_sample_streams(seed, position, samples)
                getitem = seeding(getitem)
            if own is None:
                call_each(getitem, indices, samples, epoch)
            else:
                own.call(call_each, getitem, indices, samples, epoch, each=True)
            return samples, None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return samples, error
        finally:
            if seed is not None:
                leave_streams()
            del samples  # the error keeps this frame

    def _fetch_whole(self, indices: Any, position: int, seed: int | None) -> Fetched:
        try:
            if seed is not None:
                enter_sample_streams(seed, position, ())
            if self._generators is None:
                return self.dataset.__getitems__(indices), None
            return self._generators.call(self.dataset.__getitems__, indices), None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return [], error
        finally:
            if seed is not None:
                leave_streams()
