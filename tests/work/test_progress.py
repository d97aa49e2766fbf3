"""What workers share: the first batch of an epoch has all threads, then they share what is open."""

from __future__ import annotations

from threadloader._batch.collate import Collation
from threadloader._batch.ring import Ring
from threadloader._fetch.failure import Failure
from threadloader._order.tickets import PlannedBatch, TicketSize
from threadloader._work.open_batch import OpenBatch, Pipeline
from threadloader._work.progress import Progress


def test_until_a_batch_is_done_threads_share_one_and_then_those_that_are_open() -> None:
    progress = Progress()
    collation = Collation(None, output="numpy", batched=True, ring=Ring(4))
    pipeline = Pipeline([], whole_batches=True, ticket_size=TicketSize(), collation=collation)
    batches = [
        OpenBatch(PlannedBatch(number, [number], None), pipeline, progress) for number in range(5)
    ]
    assert progress.shared() == 1
    progress.collated(batches[0], None)
    assert progress.shared() == 4
    for batch in batches[1:3]:
        progress.collated(batch, Failure(LookupError(), 0))
        progress.collated(batch, None)  # a second time, it counts for nothing
    assert progress.shared() == 2
