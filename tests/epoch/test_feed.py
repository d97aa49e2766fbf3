"""Feeds: which replica's batch is next, and what is said of a length that was wrong."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from support.settings import settings_of

from threadloader._batch.collate import Collation
from threadloader._batch.ring import Ring
from threadloader._epoch.iterable_feed import IterableFeed
from threadloader._epoch.open_feed import open_feed
from threadloader._epoch.sampler_feed import SamplerFeed
from threadloader._fetch.fetcher import Fetcher
from threadloader._fetch.read_samples import ReadSamples
from threadloader._order.planner import Planner
from threadloader._order.samplers import BatchSampler
from threadloader._order.tickets import TicketSize
from threadloader._order.user_pass import UserPass
from threadloader._resume.position import Lane, Position
from threadloader._rng.seeds import EpochSeeds
from threadloader._work.iterable_reader import IterableReader
from threadloader._work.open_batch import Pipeline, Worker
from threadloader._work.progress import Progress
from threadloader._work.read_job import IterableBatch
from threadloader._work.stats import Stats

if TYPE_CHECKING:
    from threadloader._epoch.feed import Receipt


def position_of(replicas: int) -> Position:
    return Position(0, [Lane() for _ in range(replicas)], turn=replicas - 1)


def collation() -> Collation:
    return Collation(list, output="numpy", batched=True, ring=Ring(batches=4))


def pipeline() -> Pipeline:
    return Pipeline([ReadSamples(None)], True, TicketSize(), collation())


def worker() -> Worker:
    return Worker(0, "worker 0", Stats().open())


def feed_of(*sizes: int, **settings: Any) -> IterableFeed:
    return feed_over(*map(range, sizes), **settings)


def feed_over(*replicas: Any, position: Position | None = None, **given: Any) -> IterableFeed:
    settings = settings_of("dataset", iterable=True, **given)
    position = position_of(len(replicas)) if position is None else position
    readers = [
        IterableReader(number, replica, settings, position)
        for number, replica in enumerate(replicas)
    ]
    return IterableFeed(readers, pipeline(), [], None, settings, position)


def planned(feed: IterableFeed, batches: int) -> list[int]:
    """Return the replicas of the next batches."""
    numbers = []
    for _ in range(batches):
        batch = feed.plan_next(Progress())
        assert isinstance(batch, IterableBatch)
        numbers.append(batch.reader.number)
    return numbers


def receipt_of_next(feed: IterableFeed) -> Receipt:
    """Have the next batch made, and return its receipt."""
    batch = feed.plan_next(Progress())
    assert batch is not None
    feed.work(batch, Progress(), worker())
    (receipt,) = feed.done(batch)
    return receipt


def deliver(feed: IterableFeed, batches: int) -> None:
    """Have the next batches made and counted."""
    for _ in range(batches):
        receipt_of_next(feed).count(returned=True)


def test_replicas_take_turns() -> None:
    assert planned(feed_of(9, 9, 9), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_an_exhausted_replica_is_skipped_and_the_others_keep_their_turns() -> None:
    feed, progress = feed_of(9, 9, 9), Progress()
    batches = [feed.plan_next(progress) for _ in range(2)]
    for _ in range(2):  # what was planned of it meanwhile is empty, too
        assert batches[1] is not None
        batches[1].exhausted = True
        feed.done(batches[1])
    assert planned(feed, 4) == [2, 0, 2, 0]


def test_out_of_order_the_turn_is_the_replica_s_with_the_fewest_batches_in_flight() -> None:
    feed = feed_of(9, 9, in_order=False)
    batches = [feed.plan_next(Progress()) for _ in range(4)]
    for _ in range(3):  # those of replica 0 are never done
        assert batches[1] is not None
        feed.done(batches[1])
        assert planned(feed, 1) == [1]


def test_without_replicas_there_is_nothing_to_plan() -> None:
    feed, progress = feed_of(0), Progress()
    batch = feed.plan_next(progress)
    assert batch is not None
    feed.work(batch, progress, worker())
    assert batch.done
    assert batch.exhausted
    feed.done(batch)
    assert feed.plan_next(progress) is None


def test_a_batch_is_read_and_collated_in_the_calling_thread() -> None:
    feed, progress = feed_of(3), Progress()
    batch = feed.plan_next(progress)
    assert batch is not None
    assert not batch.done
    feed.work(batch, progress, worker())
    assert batch.done
    assert list(batch.take()) == [0, 1]


def test_an_error_of_iter_is_raised_at_once_without_threads() -> None:
    with pytest.raises(TypeError):
        feed_over(7)


def test_a_delivery_that_is_taken_back_gives_back_the_turn() -> None:
    position = position_of(3)
    feed = feed_over(range(9), range(9), range(9), position=position)
    deliver(feed, 2)
    receipt = receipt_of_next(feed)
    receipt.count(returned=True)
    assert (position.turn, position.batches) == (2, 3)
    receipt.take_back()
    assert (position.turn, position.batches) == (1, 2)


def test_one_that_was_not_counted_leaves_the_turn_where_it_is() -> None:
    position = position_of(3)
    feed = feed_over(range(9), range(9), range(9), position=position)
    deliver(feed, 2)
    receipt_of_next(feed).take_back()
    assert (position.turn, position.batches) == (1, 2)


def test_more_batches_than_the_length_are_warned_of_each_time() -> None:
    feed = feed_of(9, reported_length=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        deliver(feed, 3)
    told = [str(warning.message) for warning in caught]
    assert [f"but {fetched} samples" in text for fetched, text in enumerate(told, 2)] == [True] * 2
    assert told[0].startswith("Length of IterableDataset dataset was reported to be 1")


def test_no_warning_without_a_length() -> None:
    feed = feed_of(9)
    deliver(feed, 3)


def test_an_iterable_without_pools_has_one_replica() -> None:
    settings = settings_of(range(3), iterable=True)
    feed = open_feed(settings, None, None, EpochSeeds(0, 0), Position(0, []), collation())
    assert isinstance(feed, IterableFeed)
    assert planned(feed, 3) == [0, 0, 0]


def test_a_sampler_s_feed_ends_with_the_sampler() -> None:
    planner = Planner(
        UserPass(BatchSampler(range(3), 2, drop_last=False)),
        Lane(),
        batched=True,
        whole_batches=False,
    )
    shared = Pipeline([Fetcher(range(3), whole_batches=False)], False, TicketSize(), collation())
    feed, progress = SamplerFeed(planner, shared, None, Position(0, [Lane()])), Progress()
    taken = []
    while (batch := feed.plan_next(progress)) is not None:
        feed.work(batch, progress, worker())
        taken.append(list(batch.take()))
        feed.done(batch)
    assert taken == [[0, 1], [2]]
