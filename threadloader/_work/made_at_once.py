"""A batch that the calling thread makes at once, without what lets threads share the work.

That takes half the time of an `OpenBatch`, which has tickets, a lock and a state that others look
at.  Only a batch about which nothing is unusual is made so.  What was fetched of any other one is
handed to an `OpenBatch`, which makes all decisions.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._fetch.array_rows import Rows
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.tickets import Ticket, TicketSize
from threadloader._trace import stages
from threadloader._work.open_batch import OpenBatch

if TYPE_CHECKING:
    from threadloader._fetch.each_sample import RunningEpoch
    from threadloader._fetch.fetcher import Fetched, Fetches
    from threadloader._order.tickets import PlannedBatch
    from threadloader._work.open_batch import Pipeline, Worker
    from threadloader._work.progress import Progress

__all__ = ["make_at_once"]


def make_at_once(
    results: list[tuple[Any] | OpenBatch],
    plan: PlannedBatch,
    pipeline: Pipeline,
    progress: Progress,
    worker: Worker,
) -> None:
    """Make a batch in the calling thread.

    Args:
        results: Gets the batch alone, or an `OpenBatch` with the work that is left, or nothing if
            the epoch was closed.  It is not returned: an error that the dataset keeps would keep
            the frames that it is returned through, and they the batch.
        plan: The batch.
        pipeline: What workers need.
        progress: Of the epoch.
        worker: The calling thread.
    """
    samples = failed = made = None
    fetcher = pipeline.fetchers[worker.number]
    try:
        rows = len(plan.indices)
        # An open batch tells of its stages.
        at_once = rows and stages.tracer is None
        path = pipeline.collation.path_at_once(rows) if at_once else None
        if path is None:
            results.append(OpenBatch(plan, pipeline, progress))
            return
        counters, started = worker.counters, perf_counter()
        timing = counters.begin_timing() if started >= counters.timing_due else None
        ticket = Ticket(plan, 0, rows)
        singly = not (pipeline.whole_batches or pipeline.gathers)
        samples, failed = fetcher.fetch(ticket, progress, pipeline.seed, singly=singly)
        fetched = perf_counter()
        if progress.cancelled:
            return
        if failed is None and type(samples) in (list, Rows) and len(samples) == rows:
            try:
                made = path.make(samples)
            except Exception:  # noqa: BLE001  # no memory, say: the open batch will meet it again
                made = None
        if made is None:
            results.append(_opened(plan, pipeline, progress, worker, (samples, failed)))
            return
        counters.tickets += 1
        counters.samples += rows
        counters.fetch_seconds += fetched - started
        made_by = perf_counter()
        counters.write_seconds += made_by - fetched
        pipeline.ticket_size.measured(rows, made_by - started)
        if timing is not None:
            counters.timed(made_by, timing)
        results.append(made)
    finally:
        samples = failed = made = None
        results = plan = pipeline = progress = fetcher = path = ticket = DROPPED


def _opened(
    plan: PlannedBatch, pipeline: Pipeline, progress: Progress, worker: Worker, fetched: Fetched
) -> OpenBatch:
    """Return a batch whose only ticket was fetched."""
    fetchers = list(pipeline.fetchers)
    fetchers[worker.number] = _FirstFetched(fetchers[worker.number], fetched)
    one_ticket = TicketSize(max(1, len(plan.indices)))
    try:
        return OpenBatch(
            plan, pipeline._replace(fetchers=fetchers, ticket_size=one_ticket), progress
        )
    finally:
        plan = pipeline = progress = fetched = fetchers = DROPPED


class _FirstFetched:
    """A fetcher whose first samples are there already.

    Args:
        fetcher: Fetches all others.
        fetched: What it returned for the whole batch.
    """

    __slots__ = ("_fetched", "_fetcher")

    def __init__(self, fetcher: Fetches, fetched: Fetched) -> None:
        self._fetcher = fetcher
        self._fetched = [fetched]

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
        """Return what is there, or fetch a ticket; see `Fetches`."""
        try:
            if self._fetched:
                return self._fetched.pop()
            return self._fetcher.fetch(ticket, epoch, seed, singly=singly)
        finally:
            self = ticket = epoch = DROPPED  # an error keeps this frame
