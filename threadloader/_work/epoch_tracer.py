"""How the work of an epoch is done while it is traced: by the same functions, given traced parts.

An epoch that nobody traces has none of this: see `Progress.tracer`.  A traced part does what the
plain one does, and tells when that begins and ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from threadloader._lifetime.dropping import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.collate import Collation
    from threadloader._batch.direct_filling import DirectPath
    from threadloader._batch.filling import CollateFailure, Filling
    from threadloader._fetch.array_rows import Rows
    from threadloader._fetch.each_sample import RunningEpoch
    from threadloader._fetch.fetcher import Fetched, Fetches
    from threadloader._order.tickets import PlannedBatch, Ticket
    from threadloader._trace.tracers import Tracer

__all__ = ["EpochTracer"]


class _Traced(Protocol):
    """The progress of an epoch."""

    tracer: EpochTracer | None


class _Batch(Protocol):
    """An open batch."""

    filling: Filling


class _UnreadBatch(Protocol):
    """A batch of an iterable."""

    plan: PlannedBatch

    @property
    def reader(self) -> Any:
        """Reads it."""


class _Worker(Protocol):
    """The identity of a worker."""

    @property
    def number(self) -> int:
        """From 0."""


class _Pipeline(Protocol):
    """What workers need."""

    @property
    def fetchers(self) -> list[Fetches]:
        """One for each worker."""

    @property
    def collation(self) -> Collation:
        """Makes the batches."""

    @property
    def _replace(self) -> Any:
        """Returns one with other parts."""


B = TypeVar("B", bound=_Batch)
P = TypeVar("P", bound=_Pipeline)
W = TypeVar("W", bound=_Worker)
E = TypeVar("E", bound=_Traced)


class EpochTracer:
    """Tells a tracer of the stages of one epoch, and does their work.

    Args:
        tracer: Is told.
        number: Of the epoch.

    Threads:
        work, read: worker.
        make_at_once, taken: consumer.
        begin, end: any.
    """

    __slots__ = ("_number", "_tracer", "broken_off", "end")

    def __init__(self, tracer: Tracer, number: int) -> None:
        self._tracer = tracer
        self._number = number
        self.end = tracer.end
        self.broken_off = tracer.broken_off

    def begin(self, stage: str, batch: int | None = None, first: int = 0, after: int = 0) -> None:
        """Note that a stage begins; `end` is to follow, in the same thread.

        Args:
            stage: Its name.
            batch: Its number in the epoch; -1 for no certain one; None for that of the stage that
                this one is a part of.
            first: The first row that it works on.
            after: The row after the last; ``first`` for the whole batch.
        """
        rows = None if batch is None else (self._number, batch, first, after)
        self._tracer.begin(stage, rows)

    def taken(self, batch: int, running: int, planned: int, done: int) -> None:
        """Note that the consumer takes a batch; see `Tracer`."""
        self._tracer.taken(self._number, batch, running, planned, done)

    def work(
        self,
        do_ticket: Callable[[B, Ticket, P, E, W], None],
        batch: B,
        ticket: Ticket,
        pipeline: P,
        progress: E,
        worker: W,
    ) -> None:
        """Do one ticket; the job that a worker runs.

        Args:
            do_ticket: Does it.
            batch: Its first argument.
            ticket: The ticket.
            pipeline: What workers need.
            progress: Of the epoch.
            worker: The calling thread.
        """
        self.begin("ticket", ticket.batch.sequence, ticket.start, ticket.stop)
        try:
            # Two threads may both replace it: each replaces the plain one.
            if type(batch.filling) is not _TracedFilling:
                batch.filling = _TracedFilling(batch.filling, progress)
            _, pipeline = self._with_traced_fetcher(pipeline, worker)
            do_ticket(batch, ticket, pipeline, progress, worker)
        finally:
            self.end()
            batch = ticket = pipeline = progress = DROPPED

    def read(self, batch: _UnreadBatch, progress: _Traced) -> Any:
        """Return the samples of a batch of an iterable; see `IterableReader.read`."""
        self.begin("read", batch.plan.sequence)
        try:
            return batch.reader.read(progress)
        finally:
            self.end()
            batch = progress = DROPPED

    def make_at_once(
        self,
        make: Callable[..., None],
        results: list[Any],
        plan: PlannedBatch,
        pipeline: P,
        progress: _Traced,
        worker: W,
    ) -> None:
        """Make a batch in the calling thread, which is one ticket.

        Args:
            make: Makes it.
            results: Its first argument; see `make_at_once`.
            plan: The batch.
            pipeline: What workers need.
            progress: Of the epoch.
            worker: The calling thread.
        """
        fetcher = collation = None
        rows = len(plan.indices)
        try:
            if not rows or pipeline.collation.path_at_once(rows) is None:
                make(results, plan, pipeline, progress, worker)  # it leaves all work to tickets
                return
            self.begin("ticket", plan.sequence, 0, rows)
            try:
                fetcher, pipeline = self._with_traced_fetcher(pipeline, worker)
                collation = _TracedCollation(pipeline.collation, self)
                pipeline = pipeline._replace(collation=collation)
                make(results, plan, pipeline, progress, worker)
            finally:
                self.end()
                if fetcher is not None:
                    fetcher.tracer = None  # an open batch may keep it, whose tickets are told of
            if results and type(results[-1]) is tuple:
                self.taken(plan.sequence, 0, 0, 0)
        finally:
            results = plan = pipeline = progress = fetcher = collation = DROPPED

    def _with_traced_fetcher(self, pipeline: P, worker: _Worker) -> tuple[_TracedFetcher, P]:
        """Return the worker's fetcher, traced, and the pipeline with it."""
        fetchers = pipeline.fetchers.copy()
        fetchers[worker.number] = fetcher = _TracedFetcher(fetchers[worker.number], self)
        return fetcher, pipeline._replace(fetchers=fetchers)


class _TracedFetcher:
    """A fetcher that tells when it fetches; see `Fetches`.

    Args:
        fetcher: Fetches.
        tracer: Is told.
    """

    __slots__ = ("_fetcher", "tracer")

    def __init__(self, fetcher: Fetches, tracer: EpochTracer) -> None:
        self._fetcher = fetcher
        self.tracer: EpochTracer | None = tracer  # None for nobody any more

    @property
    def dataset(self) -> Any:
        """See `Fetches`."""
        return self._fetcher.dataset

    @property
    def gathers(self) -> bool:
        """See `Fetches`."""
        return self._fetcher.gathers

    def can_fetch_singly(self, plan: PlannedBatch) -> bool:
        """See `Fetches`."""
        return self._fetcher.can_fetch_singly(plan)

    def fetch(
        self, ticket: Ticket, epoch: RunningEpoch, seed: int | None = None, *, singly: bool = False
    ) -> Fetched:
        """Fetch the samples of a ticket; see `Fetches`."""
        tracer = self.tracer
        if tracer is not None:
            tracer.begin("fetch")
        try:
            return self._fetcher.fetch(ticket, epoch, seed, singly=singly)
        finally:
            if tracer is not None:
                tracer.end()
            self = ticket = epoch = DROPPED  # an error keeps this frame


class _TracedFilling:
    """A filling that tells when rows are written, and the batch is finished; see `Filling`.

    Args:
        filling: Does both.
        progress: Of the epoch; its tracer is told, which it may have no longer.
    """

    __slots__ = ("_filling", "_progress")

    def __init__(self, filling: Filling, progress: _Traced) -> None:
        self._filling = filling
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filling, name)

    def write(self, start: int, stop: int, samples: Any) -> None:
        """Add rows; see `Filling`."""
        tracer = self._progress.tracer
        if tracer is not None:
            tracer.begin("write")
        try:
            self._filling.write(start, stop, samples)
        finally:
            if tracer is not None:
                tracer.end()
            self = samples = DROPPED  # an error keeps this frame

    def finish(self, collate_fn: Callable[[Any], Any] | None = None) -> CollateFailure | None:
        """Collate the samples; see `Filling`."""
        tracer = self._progress.tracer
        if tracer is not None:
            tracer.begin("collate")
        try:
            return self._filling.finish(collate_fn)
        finally:
            if tracer is not None:
                tracer.end()
            self = collate_fn = DROPPED  # the same


class _TracedCollation:
    """The collation of a batch that is made at once, on a path that tells; see `Collation`."""

    __slots__ = ("_collation", "_tracer")

    def __init__(self, collation: Collation, tracer: EpochTracer) -> None:
        self._collation = collation
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collation, name)

    def path_at_once(self, rows: int) -> _TracedPath | None:
        """Return the direct path, traced; see `Collation`."""
        path = self._collation.path_at_once(rows)
        return None if path is None else _TracedPath(path, self._tracer)


class _TracedPath:
    """The direct path of one batch that is made at once; see `DirectPath`."""

    __slots__ = ("_path", "_tracer")

    def __init__(self, path: DirectPath, tracer: EpochTracer) -> None:
        self._path = path
        self._tracer = tracer

    def make(self, samples: list[Any] | Rows) -> tuple[Any] | None:
        """Make the batch; see `DirectPath.make`."""
        self._tracer.begin("collate")
        try:
            return self._path.make(samples)
        finally:
            self._tracer.end()
            self = samples = DROPPED  # an error keeps this frame
