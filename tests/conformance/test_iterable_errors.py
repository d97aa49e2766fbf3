"""Errors of an iterable dataset come where torch's workers raise them, and the rest follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.pictures import picture
from torch.utils.data import IterableDataset, get_worker_info

from conformance.loading import batches, errors, kinds, ours, processes, story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


class Hiccups:
    """An iterator that raises at some rows and can go on."""

    def __init__(self, size: int, bad: set[int]) -> None:
        self.size = size
        self.bad = bad
        self.row = -1

    def __iter__(self) -> Hiccups:
        return self

    def __next__(self) -> int:
        self.row += 1
        if self.row == self.size:
            raise StopIteration
        if self.row in self.bad:
            raise LookupError(self.row)
        return self.row


class Broken(IterableDataset[Any]):
    """Fails in the way that ``how`` says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __iter__(self) -> Iterator[Any]:
        if self.how == "next":
            return Hiccups(10, {1, 4, 5})
        return self.generate()

    def generate(self) -> Iterator[Any]:
        yield from range(4)
        raise {"generator": LookupError, "StopIteration": StopIteration}[self.how]("here")


@pytest.mark.parametrize("how", ["next", "generator", "StopIteration"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_iteration_goes_on_after_an_error(
    workers: int, batch_size: int | None, how: str, spawn: Spawn
) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        return loader(Broken(how), batch_size)

    expected = story(build, processes(workers))
    told = spawn(story, build, ours(workers)).result(PATIENCE)
    assert kinds(told) == kinds(expected)
    assert errors(told)


class Unstartable(IterableDataset[Any]):
    """Fails in ``__iter__``, gives no iterator, or fails before the first row."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __iter__(self) -> Any:
        if self.how == "raises":
            raise LookupError("iter")
        return 7 if self.how == "no iterator" else self.generate()

    def generate(self) -> Iterator[Any]:
        raise LookupError("first row")
        yield


def first_error(make_loader: Callable[..., Any], dataset: Any) -> tuple[str, type[Exception]]:
    """Return at which step the first error comes, and its type."""
    step, iterator = "iter", None
    try:
        iterator = iter(make_loader(dataset, 2))
        step = "next"
        next(iterator)
    except Exception as error:  # noqa: BLE001  # what is compared
        # Its traceback is a cycle that torch's iterator, and its processes, would hang on.
        return step, type(error.with_traceback(None))
    finally:
        # Dropped in a thread that ends, it dies late on a free-threaded build.
        getattr(iterator, "close", bool)()
    raise AssertionError("no error")


@pytest.mark.parametrize("how", ["raises", "no iterator", "generator"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_of_iter_comes_as_soon_as_with_torch(workers: int, how: str, spawn: Spawn) -> None:
    expected = first_error(processes(workers), Unstartable(how))
    assert spawn(first_error, ours(workers), Unstartable(how)).result(PATIENCE) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_replica_that_can_not_start_fails_once_and_the_others_give_all(
    workers: int, spawn: Spawn
) -> None:
    class Last(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            if info.id < info.num_workers - 1:
                raise LookupError("iter")
            return iter(range(3))

    told = spawn(story, lambda loader: loader(Last(), None), ours(workers), 1).result(PATIENCE)
    assert errors(told) == [LookupError] * (workers - 1)
    assert batches(told) == [picture(row) for row in range(3)]
