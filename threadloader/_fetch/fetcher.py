"""Index → sample: what a worker does with the dataset.

One fetcher belongs to one worker and one epoch, and holds that worker's copy of the dataset.
The user's code runs here, in frames that see no slot: an exception keeps its frames, and
frames keep what their variables refer to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._fetch.array_rows import source_of
from threadloader._rng.streams import enter_sample_streams, leave_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from threadloader._order.tickets import PlannedBatch, Ticket

__all__ = ["Cancellable", "Fetched", "Fetcher", "Fetches", "Samples", "fetches_whole_batches"]

T_co = TypeVar("T_co", covariant=True)

# The samples, and the error of the one after them, if there was one.
Fetched = tuple[Any, BaseException | None]


class Samples(Protocol[T_co]):
    """A map-style dataset that is no `torch.utils.data.Dataset`."""

    def __getitem__(self, index: Any, /) -> T_co:
        """Return a sample."""


class Cancellable(Protocol):
    """What tells a worker that its samples are not wanted any more."""

    @property
    def cancelled(self) -> bool:
        """Whether no further sample is to be fetched."""


class Fetches(Protocol):
    """What gives a worker its samples, from its own copy of the dataset."""

    @property
    def dataset(self) -> Any:
        """The copy."""

    def fetch(
        self,
        ticket: Ticket,
        epoch: Cancellable,
        seed: int | None = None,
        *,
        singly: bool = False,
    ) -> Fetched:
        """Fetch the samples of a ticket; see `Fetcher.fetch`."""

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:
        """Whether samples of a batch can be fetched one by one."""

    @property
    def gathers(self) -> bool:
        """Whether samples are rows of arrays, which are written without code of the user's."""


def fetches_whole_batches(dataset: Any) -> bool:
    """Whether ``dataset.__getitems__`` is to be called, with all indices of a batch at once."""
    return _torch.gives_whole_batches(dataset)


class Fetcher:
    """Fetches samples of one dataset; of one that is nothing but arrays, only which rows.

    Args:
        dataset: This worker's own copy.
        whole: Whether to call ``__getitems__`` with a whole batch.

    Threads:
        fetch: one thread, the worker that owns it.
    """

    __slots__ = ("_source", "_whole", "dataset")

    def __init__(self, dataset: Any, *, whole: bool) -> None:
        self.dataset = dataset
        self._whole = whole
        self._source = source_of(dataset)

    def fetch(
        self,
        ticket: Ticket,
        epoch: Cancellable,
        seed: int | None = None,
        *,
        singly: bool = False,
    ) -> Fetched:
        """Fetch the samples of a ticket.

        Args:
            ticket: Which rows.
            epoch: Looked at before each sample; once it is cancelled, no further one is fetched.
            seed: Of the samples' random streams in this epoch; None for none.
            singly: Whether to call ``__getitem__`` in any case, not to gather rows either.

        Returns:
            A list of samples, in the order of the rows; or `Rows`; or whatever ``__getitems__``
            returned.  With an error, those before the one that failed.
        """
        batch = ticket.batch
        if self._whole and not singly:
            return self._fetch_whole(batch.drawn, batch.position, seed)
        indices = batch.indices
        if ticket.stop - ticket.start != len(indices):
            indices = indices[ticket.start : ticket.stop]
        if self._source is not None and not singly:
            if not self._source.is_current():  # a worker_init_fn, say, has put others in place
                self._source = source_of(self.dataset)
            rows = None if self._source is None else self._source.rows(indices)
            if rows is not None:
                return rows, None
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
        return self._fetch_each(indices, epoch, batch.position + ticket.start, seed)

    @property
    def gathers(self) -> bool:
        """Whether samples are rows of arrays; see `Fetches`."""
        return self._source is not None

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:
        """Whether samples of a batch can be fetched one by one."""
        return type(plan.drawn) in (list, tuple) and _torch.has_getitem(self.dataset)

    def _fetch_each(
        self,
        indices: Sequence[Any] | NDArray[Any],
        epoch: Cancellable,
        position: int,
        seed: int | None,
    ) -> Fetched:
        dataset = self.dataset
        samples: list[Any] = []
        add = samples.append
        try:
            if seed is not None:
                enter_sample_streams(seed, position, samples)
            for index in indices:
                if epoch.cancelled:
                    break
                add(dataset[index])
            return samples, None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return samples, error
        finally:
            leave_streams()
            del samples, add  # the error keeps this frame

    def _fetch_whole(self, indices: Any, position: int, seed: int | None) -> Fetched:
        try:
            if seed is not None:
                enter_sample_streams(seed, position, ())
            return self.dataset.__getitems__(indices), None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return [], error
        finally:
            leave_streams()
