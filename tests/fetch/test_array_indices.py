"""Gathering takes the rows that the indices name one by one, and fails where they would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gathering import assert_alike, make, numbers
from support.patience import PATIENCE
from support.resuming import after, state_after

from threadloader._order.samplers import (
    BatchSampler,
    KeyedSampler,
    RandomSampler,
    SequentialSampler,
)
from threadloader.datasets import ArrayDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

    from threadloader import ThreadLoader

each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])


# Wrong rows --------------------------------------------------------------------------------------

SIZE = 9
ODD_INDICES = st.sampled_from(
    [True, False, np.bool_(1), 1.0, "1", None, (1,), 10**6, 2**40, -(2**40)]
)


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_is_the_indexs_own_or_the_index_is_an_error(
    data: st.DataObject, spawn: Spawn
) -> None:
    """A gather that clips would give the first or last row instead."""
    near = st.integers(-2 * SIZE, 2 * SIZE)
    kinds = st.sampled_from([int, np.int64])
    index = st.builds(lambda kind, value: kind(value), kinds, near)
    indices = data.draw(st.lists(st.lists(st.one_of(index, index, ODD_INDICES)), max_size=5))
    array = numbers(SIZE)[:, : data.draw(st.sampled_from([1, 3]))]
    dataset = array if data.draw(st.booleans()) else ArrayDataset(array[:, 0], array)
    threads = data.draw(st.sampled_from([0, 2]))
    kind = data.draw(st.sampled_from([list, tuple]))
    batches = [kind(batch) for batch in indices]

    def build(dataset: Any) -> ThreadLoader[Any]:
        return make(dataset, 1, batch_sampler=batches, threads=threads)

    (first, _) = assert_alike(spawn, dataset, build)
    assert len(first) == len(batches)


@pytest.mark.parametrize("bad", [SIZE, -SIZE - 1, 10**6, 2**62, -(2**62)])
@each_number_of_threads
def test_an_index_out_of_range_fails_its_batch_alone_and_is_named(
    bad: int, threads: int, spawn: Spawn
) -> None:
    def run(loader: ThreadLoader[Any]) -> None:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with pytest.raises(IndexError, match=str(bad)) as caught:
            next(iterator)
        assert caught.value.__notes__[0].endswith(f"batch 1, index {bad}")
        assert next(iterator).tolist() == [4, SIZE - 1]
        assert next(iterator, None) is None

    batches = [[0, 1], [2, bad], [4, -1]]
    with make(np.arange(SIZE), 1, batch_sampler=batches, threads=threads) as loader:
        spawn(run, loader).result(PATIENCE)


@pytest.mark.filterwarnings("ignore:a sample was left out")
@pytest.mark.parametrize("bad", [SIZE, -SIZE - 1, 2**63, -(2**64)])
def test_an_index_out_of_range_can_be_left_out(bad: int, spawn: Spawn) -> None:
    batches = [[0, 1], [2, bad], [4, -1]]
    with make(np.arange(SIZE), 1, batch_sampler=batches, on_error="skip") as loader:
        lists = spawn(lambda: [batch.tolist() for batch in loader]).result(PATIENCE)
    assert lists == [[0, 1], [2], [4, SIZE - 1]]
    assert [each.index for each in loader.statistics().skipped] == [bad]


@pytest.mark.filterwarnings("ignore:a sample was left out")
def test_indices_that_are_told_are_plain_numbers(spawn: Spawn) -> None:
    """As they are without gathering: they go into logs and JSON."""
    asked: list[Any] = []

    def on_error(_: Exception, index: Any) -> str:
        asked.append(index)
        return "skip"

    sampler = RandomSampler(range(SIZE + 3), np.random.default_rng(1))
    with make(np.arange(SIZE), 4, sampler=sampler, on_error=on_error) as loader:
        spawn(list, loader).result(PATIENCE)
    assert {type(index) for index in asked} == {int}
    assert {type(each.index) for each in loader.statistics().skipped} == {int}


# Samplers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batches",
    [
        [[0, -1, -9], [3, 3, 3]],
        [np.array([4, 0, 8]), np.array([-1, 2]), np.array([], int)],
        [(np.int64(1), 2), [True, False], [np.bool_(1), 0]],
        [range(3), range(8, 3, -2), range(5, 12), range(-3, 0), range(0)],
        [[slice(0, 2), 1], [0, slice(0, 2)], [[0, 1], [2, 3]], [None], ["a"], [1.0], [(0, 0)]],
        [np.arange(4, dtype=np.uint8), np.arange(4, dtype=np.int16), np.arange(4.0)],
        [[np.uint8(3), -1], [np.int32(0), 8, np.uint8(7)], [np.uint8(8)] * 40, [np.int8(-9)] * 20],
        [np.arange(6).reshape(2, 3), "12", {3, 4}, {5: 6}, iter([1, 2]), 3],
        [[0, 2**63], [-(2**63) - 1, 1], [2**64], [10**30]],
        [],
        [[]],
    ],
    ids=lambda batches: str(batches)[:40],
)
@each_number_of_threads
def test_what_batch_samplers_give(batches: Any, threads: int, spawn: Spawn) -> None:
    class Once:
        def __iter__(self) -> Iterator[Any]:
            return (iter([1, 2]) if hasattr(b, "__next__") else b for b in batches)

    def build(dataset: Any) -> ThreadLoader[Any]:
        return make(dataset, 1, batch_sampler=Once(), threads=threads)

    assert_alike(spawn, numbers(SIZE), build)
    assert_alike(spawn, ArrayDataset(np.arange(SIZE), numbers(SIZE)), build)


@pytest.mark.parametrize("size", [8, 1023, 1025, 2050])
@pytest.mark.parametrize("batch_size", [8, 1000, 3000])
@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, KeyedSampler])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_index_comes_once_around_the_spans_of_a_known_sampler(
    drop_last: bool, kind: Any, batch_size: int, size: int
) -> None:
    def seeded() -> Any:
        sampler = kind(range(size))
        if kind is not SequentialSampler:
            sampler.generator = np.random.default_rng(3)
        return sampler

    sampler = BatchSampler(seeded(), batch_size, drop_last)
    expected = list(sampler)
    loader = make(np.arange(size), 1, batch_sampler=BatchSampler(seeded(), batch_size, drop_last))
    assert [batch.tolist() for batch in loader] == expected


# Resuming ----------------------------------------------------------------------------------------


@each_number_of_threads
@pytest.mark.parametrize("order", ["sequential", "keyed", "generator", "user"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_it_goes_on_in_the_middle(drop_last: bool, order: str, threads: int, spawn: Spawn) -> None:
    size = 19

    def build(threads: int) -> ThreadLoader[Any]:
        arguments: dict[str, Any] = {"seed": 5}
        if order == "generator":
            arguments = {"shuffle": True, "generator": np.random.default_rng(2)}
        elif order == "user":
            arguments["sampler"] = [(7 * index) % size for index in range(size)]
        elif order != "sequential":
            arguments["shuffle"] = "keyed" if order == "keyed" else True
        return make(np.arange(size), 4, threads=threads, drop_last=drop_last, **arguments)

    def lists(epochs: list[Any]) -> Any:
        return [[batch.tolist() for batch in epoch] for epoch in epochs]

    with build(2) as loader:
        first, second = lists([spawn(list, loader).result(PATIENCE) for _ in range(2)])
    for done in range(len(first) + 1):
        state = spawn(state_after, build(1), done).result(PATIENCE)
        rest = lists(spawn(after, build(threads), state, 2).result(PATIENCE))
        assert rest == [first[done:], second]
