"""Fetching: index by index or a whole batch at once, and errors handed over, never raised."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from threadloader._fetch.fetcher import Fetcher, fetches_whole_batches
from threadloader._order.tickets import PlannedBatch, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@dataclass
class Wanted:
    """An epoch that is cancelled once a dataset was asked for so many samples."""

    asked: list[Any] = field(default_factory=list)
    samples: int = 100

    @property
    def cancelled(self) -> bool:
        return len(self.asked) >= self.samples


def _ticket(indices: Any, start: int = 0, stop: int | None = None, drawn: Any = None) -> Ticket:
    stop = len(indices) if stop is None else stop
    return Ticket(PlannedBatch(0, indices, indices if drawn is None else drawn), start, stop)


class Squares:
    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index == 3 and self.failure is not None:
            raise self.failure
        return index * index


class WholeSquares(Squares):
    def __getitems__(self, indices: Any) -> Any:
        self.asked.append(indices)
        if self.failure is not None:
            raise self.failure
        return tuple(index * index for index in indices)


@pytest.mark.parametrize("indices", [[4, 2, 2], (4, 2, 2)])
def test_samples_come_in_the_order_of_the_rows(indices: Any) -> None:
    fetched = Fetcher(Squares(), whole_batches=False).fetch(_ticket(indices), Wanted())
    assert fetched == ([16, 4, 4], None)


def test_only_the_rows_of_the_ticket_are_fetched() -> None:
    dataset = Squares()
    fetched = Fetcher(dataset, whole_batches=False).fetch(_ticket([5, 6, 7, 8], 1, 3), Wanted())
    assert fetched[0] == [36, 49]
    assert dataset.asked == [6, 7]


def test_an_empty_ticket_fetches_nothing() -> None:
    assert Fetcher(Squares(), whole_batches=False).fetch(_ticket([]), Wanted()) == ([], None)


@pytest.mark.parametrize(
    "failure", [ValueError(3), StopIteration(3), KeyboardInterrupt()], ids=repr
)
def test_an_error_comes_with_the_samples_before_it(failure: BaseException) -> None:
    dataset = Squares(failure)
    samples, error = Fetcher(dataset, whole_batches=False).fetch(_ticket([1, 2, 3, 4]), Wanted())
    assert (samples, error) == ([1, 4], failure)
    assert dataset.asked == [1, 2, 3]


@pytest.mark.parametrize("fetched", [0, 1, 3])
def test_a_cancelled_ticket_ends_before_its_next_sample(fetched: int) -> None:
    dataset = Squares()
    wanted = Wanted(dataset.asked, fetched)
    Fetcher(dataset, whole_batches=False).fetch(_ticket([5, 6, 7, 8]), wanted)
    assert len(dataset.asked) == fetched


def test_getitems_gets_what_the_sampler_gave_and_its_result_is_passed_on() -> None:
    dataset, drawn = WholeSquares(), {1, 2}
    fetched = Fetcher(dataset, whole_batches=True).fetch(_ticket([1, 2], drawn=drawn), Wanted())
    assert fetched == ((1, 4), None)
    assert dataset.asked[0] is drawn


@pytest.mark.parametrize(
    "failure", [ValueError(3), StopIteration(3), KeyboardInterrupt()], ids=repr
)
def test_an_error_of_getitems_comes_without_samples(failure: BaseException) -> None:
    fetched = Fetcher(WholeSquares(failure), whole_batches=True).fetch(_ticket([1, 2]), Wanted())
    assert fetched == ([], failure)


def test_a_fetcher_asked_for_samples_leaves_getitems_alone() -> None:
    dataset = WholeSquares()
    assert Fetcher(dataset, whole_batches=False).fetch(_ticket([1, 2]), Wanted()) == ([1, 4], None)


class Hidden(WholeSquares):
    __getitems__ = None


@pytest.mark.parametrize(
    ("dataset", "whole"),
    [(Squares(), False), (WholeSquares(), True), (Hidden(), False), ([1], False), ({}, False)],
    ids=lambda value: type(value).__name__,
)
def test_whole_batches_are_for_datasets_with_getitems(dataset: Any, whole: bool) -> None:
    assert fetches_whole_batches(dataset) is whole


@needs_torch
@pytest.mark.parametrize(
    "inner", [Squares(), WholeSquares()], ids=lambda inner: type(inner).__name__
)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda data, inner: data.Subset(inner, [0]),
        lambda data, inner: data.Subset(data.Subset(inner, [0]), [0]),
        lambda data, inner: data.StackDataset(Squares(), inner),
        lambda data, inner: data.StackDataset(a=inner, b=Squares()),
        lambda data, inner: data.Subset(data.StackDataset(inner), [0]),
    ],
    ids=["Subset", "Subset of Subset", "StackDataset", "StackDataset by name", "nested"],
)
def test_a_wrapper_of_torch_s_is_seen_through(
    wrap: Callable[[Any, Any], Any], inner: Squares
) -> None:
    from torch.utils import data  # noqa: PLC0415  # torch is optional

    assert fetches_whole_batches(wrap(data, inner)) is isinstance(inner, WholeSquares)


@needs_torch
def test_a_subclass_of_subset_keeps_its_own_getitems() -> None:
    from torch.utils import data  # noqa: PLC0415  # torch is optional

    class Cached(data.Subset[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return indices

    assert fetches_whole_batches(Cached(Squares(), [0]))
