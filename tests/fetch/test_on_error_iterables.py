"""Iterables are read past the samples that fail, if they can go on after an error."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from support.faulty import Interrupted, run, skipping, texts
from support.patience import PATIENCE
from support.resuming import after, state_after
from support.streams import make

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

    from threadloader import ThreadLoader

pytestmark = pytest.mark.filterwarnings("ignore:a sample was left out")


class Generated(Interrupted):
    def __iter__(self) -> Iterator[int]:
        for row in range(self.size):
            if row in self.bad:
                raise LookupError(row)
            yield row


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("bad", [{0}, {1, 2}, {3}, {0, 1, 2, 3, 4}, {8}], ids=str)
def test_an_iterator_that_goes_on_is_read_past_its_errors(
    bad: set[int], threads: int, spawn: Spawn
) -> None:
    loader = skipping(Interrupted(10, bad), threads=threads)
    rows = [row for row in range(10) if row not in bad]
    expected = [rows[start : start + 3] for start in range(0, len(rows), 3)]
    assert run(spawn, loader) == expected
    assert loader.statistics().skipped_count == len(bad)


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_of_nothing_but_errors_is_no_empty_epoch_if_none_may_be_skipped(
    threads: int, spawn: Spawn
) -> None:
    loader = skipping(Interrupted(5, set(range(5))), threads=threads, max_skipped=0)
    told = run(spawn, loader)
    assert told
    assert isinstance(told[0], LookupError)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_generator_raises_as_it_has_ended(threads: int, spawn: Spawn) -> None:
    told = run(spawn, skipping(Generated(10, {4}), threads=threads))
    assert texts(told) == [[0, 1, 2], "LookupError(4)"]


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_that_never_gives_a_sample_again_ends_in_an_error(
    threads: int, spawn: Spawn
) -> None:
    class Dead:
        def __iter__(self) -> Dead:
            return self

        def __next__(self) -> int:
            raise OSError("dead")

    def first(loader: ThreadLoader[Any]) -> Any:
        return next(iter(loader))

    with skipping(Dead(), threads=threads, max_skipped=None) as loader:
        assert isinstance(spawn(first, loader).exception(PATIENCE), OSError)


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_a_transform_that_fails_leaves_its_row_out(threads: int, spawn: Spawn) -> None:
    def transform(row: int) -> int:
        if row in {0, 4, 6, 7, 8}:
            raise ValueError(row)
        return -row

    loader = skipping(Interrupted(12, {2}), threads=threads, transform=transform)
    # Read are 0 1 3, 4 5 6, 7 8 9, 10 11; of these some can't be transformed.
    assert run(spawn, loader) == [[-1, -3], [-5], [-9], [-10, -11]]
    assert loader.statistics().skipped_count == 6


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_function_is_given_the_index_that_is_listed(threads: int, spawn: Spawn) -> None:
    """Of an iterable: how many samples were read before, where reading or the transform failed."""
    asked: list[int] = []

    def on_error(_: Exception, index: int) -> str:
        asked.append(index)
        return "skip"

    def transform(row: int) -> int:
        if row in {5, 9}:
            raise ValueError(row)
        return row

    loader = make(Interrupted(12, {2}), on_error=on_error, threads=threads, transform=transform)
    run(spawn, loader)
    assert sorted(asked) == sorted(each.index for each in loader.statistics().skipped)
    assert sorted(asked) == [2, 4, 8]


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_goes_on_from_a_state_with_the_same_samples_left_out(
    threads: int, spawn: Spawn
) -> None:
    def build() -> ThreadLoader[Any]:
        return skipping(Interrupted(20, {0, 4, 5, 9, 19}), threads=threads)

    def rest(batches: int) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = state_after(build(), batches)
            return [batch.tolist() for batch in after(build(), state)[0]]

    whole = spawn(rest, 0).result(PATIENCE)
    assert [row for batch in whole for row in batch] == [
        row for row in range(20) if row not in {0, 4, 5, 9, 19}
    ]
    for batches in range(1, len(whole)):
        assert spawn(rest, batches).result(PATIENCE) == whole[batches:]
