"""A worker's access to its samples: the user's dataset, or its transform, is called here.

Each worker has a fetcher with its own copy.  The user's code runs in frames that refer to no slot:
an exception keeps its frames, and they keep their variables.

Samples are made one after the other in a loop of C.  A loop in Python costs more than an empty
``__getitem__``, above all on a free-threaded build: there each of its lines counts references to
objects of other threads (CPython 3.13 without GIL: 145 ns a call, and 70 in C).
"""

from __future__ import annotations

from functools import partial
from operator import getitem
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._batch.array_rows import arrays_of
from threadloader._lifetime import DROPPED
from threadloader._worker.streams import enter_sample_streams, leave_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._order.tickets import PlannedBatch, Ticket
    from threadloader._worker.own_generators import OwnGenerators


T_co = TypeVar("T_co", covariant=True)

# The samples, and the error of the sample after them, or None.
Fetched = tuple[Any, BaseException | None]


class Samples(Protocol[T_co]):
    """A map-style dataset that is no `torch.utils.data.Dataset`."""

    def __getitem__(self, index: Any, /) -> T_co:
        """Return a sample."""


class Cancellable(Protocol):
    """An epoch, as far as workers ask whether it goes on."""

    @property
    def cancelled(self) -> bool:
        """Whether no further sample is to be fetched."""

    def fetching(self, left: list[Any], samples: list[Any]) -> None:
        """Empty a list as soon as the epoch is cancelled, until `fetched`; see the samples grow."""

    def fetched(self, left: list[Any]) -> None:
        """Leave a list alone."""


class Fetches:
    """What gives a worker its samples: a `Fetcher`, or `ReadSamples` for an iterable.

    Args:
        dataset: The worker's own copy.
        generators: Those of its objects; None for none.

    Threads:
        fetch: one thread, the worker that owns it.
    """

    __slots__ = ("_generators", "dataset")

    def __init__(self, dataset: Any, generators: OwnGenerators | None) -> None:
        self.dataset = dataset
        self._generators = generators

    def fetch(
        self, ticket: Ticket, epoch: Cancellable, seed: int | None, *, singly: bool
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
        raise NotImplementedError

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:  # noqa: ARG002  # a `Fetcher` asks it
        """Whether samples of a batch can be fetched one by one."""
        return True

    def _fetch_each(
        self,
        function: Callable[[Any], Any],
        arguments: list[Any],
        epoch: Cancellable,
        position: int,
        seed: int | None,
    ) -> Fetched:
        """Return what the user's function makes of each argument."""
        samples: list[Any] = []
        own = self._generators
        try:
            if seed is not None:
                enter_sample_streams(seed, position, samples)
            if own is None:
                call_each(function, arguments, samples, epoch)
            else:
                own.call(call_each, function, arguments, samples, epoch, each=True)
                if not own:  # it has looked, and found none
                    self._generators = None
            return samples, None
        except BaseException as error:  # noqa: BLE001  # handed to the consumer
            return samples, error
        finally:
            if seed is not None:  # the streams may be those of a sample that loads from here
                leave_streams()
            # The error keeps this frame.
            self = function = arguments = samples = own = epoch = DROPPED


class Fetcher(Fetches):
    """Fetches samples of one dataset; of an array dataset it only says which rows they are.

    Args:
        dataset: This worker's own copy.
        whole_batches: Whether to call ``__getitems__`` with all indices of a batch.
        generators: Those of its objects; None for none that follow the samples.
    """

    __slots__ = ("_arrays", "_whole_batches")

    def __init__(
        self, dataset: Any, *, whole_batches: bool, generators: OwnGenerators | None = None
    ) -> None:
        self._whole_batches = whole_batches
        self._arrays = arrays_of(dataset)
        super().__init__(dataset, None if self._arrays else generators)

    def fetch(
        self, ticket: Ticket, epoch: Cancellable, seed: int | None, *, singly: bool
    ) -> Fetched:
        """Fetch the samples of a ticket; see `Fetches`."""
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
        position = batch.position + ticket.start
        return self._fetch_each(getitem_of(self.dataset), left, epoch, position, seed)

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:
        """Whether samples of a batch can be fetched one by one."""
        return type(plan.drawn) in (list, tuple) and _torch.has_getitem(self.dataset)

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


class ReadSamples(Fetches):
    """Fetches samples of an iterable that were read already: a transform is applied to them here.

    Args:
        dataset: The worker's replica, for `get_worker_info()`.
        transform: This worker's own copy, applied to each sample; None for none.
        generators: Those of the transform; None for none that follow the samples.
    """

    __slots__ = ("_transform",)

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None = None,
        generators: OwnGenerators | None = None,
    ) -> None:
        super().__init__(dataset, generators)
        self._transform = transform

    def fetch(
        self,
        ticket: Ticket,
        epoch: Cancellable,
        seed: int | None,
        *,
        singly: bool,  # noqa: ARG002  # as a `Fetcher`
    ) -> Fetched:
        """Fetch the samples of a ticket; see `Fetches`."""
        batch = ticket.batch
        samples: list[Any] = batch.drawn[ticket.start : ticket.stop]
        if self._transform is None:
            batch.drawn.clear()  # the batch is one ticket: nobody else needs them
            return samples, None
        position = batch.position + ticket.start
        return self._fetch_each(self._transform, samples, epoch, position, seed)


def call_each(
    function: Callable[[Any], Any],
    arguments: list[Any],
    results: list[Any],
    epoch: Cancellable,
) -> None:
    """Call a function with each argument, and add the results to a list.

    Args:
        function: The user's.
        arguments: Emptied if the epoch is cancelled: no further call is made.
        results: Empty; grows with each call, and has the results before an error.
        epoch: Of the samples.
    """
    calls, left = len(arguments), iter(arguments)
    try:
        epoch.fetching(arguments, results)  # a list that is emptied ends the loop over it
        results.extend(map(function, left))
        if len(results) < calls and (argument := arguments[len(results) :][:1]):
            # A call raised StopIteration, which ended the loop, too, and is lost.  To call again
            # brings it back with its traceback; where it does not, the sample failed all the same.
            function(*argument)
            raise StopIteration
    finally:
        epoch.fetched(arguments)
        # An error keeps this frame.
        function = arguments = results = epoch = argument = left = DROPPED


def getitem_of(dataset: Any) -> Callable[[Any], Any]:
    """Return a function that does ``dataset[index]``, but looks up ``__getitem__`` only now."""
    for kind in type(dataset).__mro__:
        method = vars(kind).get("__getitem__")
        if type(method) is FunctionType:
            return MethodType(method, dataset)
        if "__getitem__" in vars(kind):
            break
    return partial(getitem, dataset)
