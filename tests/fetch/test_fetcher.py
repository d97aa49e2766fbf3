"""Fetching: index by index or a whole batch at once, and errors handed over, never raised."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from threadloader._fetch.each_sample import call_each
from threadloader._fetch.fetcher import Fetcher, fetches_whole_batches
from threadloader._order.tickets import PlannedBatch, Ticket
from threadloader._work.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


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
    fetched = Fetcher(Squares(), whole_batches=False).fetch(_ticket(indices), Progress())
    assert fetched == ([16, 4, 4], None)


def test_only_the_rows_of_the_ticket_are_fetched() -> None:
    dataset = Squares()
    fetched = Fetcher(dataset, whole_batches=False).fetch(_ticket([5, 6, 7, 8], 1, 3), Progress())
    assert fetched[0] == [36, 49]
    assert dataset.asked == [6, 7]


def test_an_empty_ticket_fetches_nothing() -> None:
    assert Fetcher(Squares(), whole_batches=False).fetch(_ticket([]), Progress()) == ([], None)


@pytest.mark.parametrize(
    "failure", [ValueError(3), StopIteration(3), KeyboardInterrupt()], ids=repr
)
def test_an_error_comes_with_the_samples_before_it(failure: BaseException) -> None:
    dataset = Squares(failure)
    samples, error = Fetcher(dataset, whole_batches=False).fetch(_ticket([1, 2, 3, 4]), Progress())
    assert (samples, error) == ([1, 4], failure)
    assert dataset.asked == [1, 2, 3] + [3] * isinstance(failure, StopIteration)


class Cancels(Squares):
    """Cancels an epoch once it was asked for so many samples."""

    def __init__(self, progress: Progress, samples: int) -> None:
        super().__init__()
        self.progress = progress
        self.samples = samples

    def __getitem__(self, index: int) -> int:
        if len(self.asked) + 1 == self.samples:
            self.progress.cancel()
        return super().__getitem__(index)


@pytest.mark.parametrize("fetched", [0, 1, 3])
def test_a_cancelled_ticket_ends_before_its_next_sample(fetched: int) -> None:
    progress = Progress()
    dataset = Cancels(progress, fetched)
    if not fetched:
        progress.cancel()
    result = Fetcher(dataset, whole_batches=False).fetch(_ticket([5, 6, 7, 8]), progress)
    assert result == ([25, 36, 49][:fetched], None)
    assert len(dataset.asked) == fetched


def test_cancelling_leaves_the_indices_of_a_batch_alone() -> None:
    progress, indices = Progress(), [5, 6, 7, 8]
    Fetcher(Cancels(progress, 1), whole_batches=False).fetch(_ticket(indices), progress)
    assert indices == [5, 6, 7, 8]


class StopsOnce(Squares):
    """Raises StopIteration the first time that it is asked for 3."""

    def __getitem__(self, index: int) -> int:
        first = index not in self.asked
        square = super().__getitem__(index)
        if index == 3 and first:
            raise StopIteration
        return square


def test_a_sample_that_raised_stop_iteration_once_has_failed() -> None:
    dataset = StopsOnce()
    fetcher = Fetcher(dataset, whole_batches=False)
    samples, error = fetcher.fetch(_ticket([1, 3, 2, 4]), Progress())
    assert samples == [1]
    assert type(error) is StopIteration
    assert dataset.asked == [1, 3, 3]


class Twice:
    """Callable, and no function: bound to nothing when it is looked up."""

    def __call__(self, index: int) -> int:
        return 2 * index


class Base:
    def __init__(self) -> None:
        self.__getitem__ = None  # a class alone says what its objects[index] is

    def __getitem__(self, index: int) -> int:
        return 2 * index


class Derived(Base):
    pass


class Static:
    @staticmethod
    def __getitem__(index: int) -> int:
        return 2 * index


class OfClass:
    @classmethod
    def __getitem__(cls, index: int) -> int:
        return 2 * index


class OfObject:
    __getitem__ = Twice()


class Not(Base):
    __getitem__ = None


class Doubles(dict[int, int]):
    def __missing__(self, index: int) -> int:
        return 2 * index


@pytest.mark.parametrize(
    "dataset",
    [Base(), Derived(), Static(), OfClass(), OfObject(), Doubles(), range(0, 20, 2), [0, 2, 4, 6]],
    ids=lambda value: type(value).__name__,
)
def test_samples_are_what_the_expression_with_brackets_gives(dataset: Any) -> None:
    fetched = Fetcher(dataset, whole_batches=False).fetch(_ticket([3, 1]), Progress())
    assert fetched == ([dataset[3], dataset[1]], None) == ([6, 2], None)


@pytest.mark.parametrize("dataset", [Not(), object(), {4}], ids=lambda value: type(value).__name__)
def test_what_takes_no_brackets_fails_as_it_does_there(dataset: Any) -> None:
    with pytest.raises(TypeError) as expected:
        dataset[3]
    samples, error = Fetcher(dataset, whole_batches=False).fetch(_ticket([3, 1]), Progress())
    assert samples == []
    assert repr(error) == repr(expected.value)


def test_the_samples_that_are_done_can_be_counted_meanwhile() -> None:
    # Random streams are found by this number.
    counted: list[int] = []
    results: list[Any] = []
    call_each(lambda _: counted.append(len(results)), [0] * 300, results, Progress())
    assert counted == list(range(300))


def test_getitems_gets_what_the_sampler_gave_and_its_result_is_passed_on() -> None:
    dataset, drawn = WholeSquares(), {1, 2}
    fetched = Fetcher(dataset, whole_batches=True).fetch(_ticket([1, 2], drawn=drawn), Progress())
    assert fetched == ((1, 4), None)
    assert dataset.asked[0] is drawn


@pytest.mark.parametrize(
    "failure", [ValueError(3), StopIteration(3), KeyboardInterrupt()], ids=repr
)
def test_an_error_of_getitems_comes_without_samples(failure: BaseException) -> None:
    fetched = Fetcher(WholeSquares(failure), whole_batches=True).fetch(_ticket([1, 2]), Progress())
    assert fetched == ([], failure)


def test_a_fetcher_asked_for_samples_leaves_getitems_alone() -> None:
    dataset = WholeSquares()
    assert Fetcher(dataset, whole_batches=False).fetch(_ticket([1, 2]), Progress()) == (
        [1, 4],
        None,
    )


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
