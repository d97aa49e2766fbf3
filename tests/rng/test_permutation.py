"""Permutations with random access: bijections, without a pattern, in constant memory."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadloader import ThreadLoader
from threadloader._rng.permutation import (
    KeyedPermutation,
    ManyPermutations,
    mixed,
    short_permutations,
)

LARGE = 70_001  # beyond the table, and far from a power of two: many numbers are mapped again
HUGE = 10**9
FIRST_OF_A_BILLION = [927323193, 973136304, 876983163, 795890577]
FIRST_OF_TEN = [8, 4, 7, 0]
FIRST_OF_MANY = [49169139, 66188895022869852]
FIRST_SHORT = [[4, 3, 0, 1, 5, 2], [4, 0, 5, 3, 2, 1]]
KEYS = 300_000
# Of a chi-square statistic: more than 5 standard deviations above its mean for hundreds of
# degrees of freedom, with fixed seeds, so that the tests never fail by chance.
SIGMAS = 5.0


class Huge:
    """Sample ``i`` is ``i``."""

    def __len__(self) -> int:
        return HUGE

    def __getitem__(self, index: int) -> int:
        return index


def chi_square(counts: np.ndarray) -> float:
    """Return how many standard deviations counts are off an even distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def keys_of(count: int) -> np.ndarray:
    return mixed(np.arange(1, count + 1, dtype=np.uint64))


@pytest.mark.parametrize("length", [0, 1, 2, 5, 1000, 1 << 16, (1 << 16) + 1, LARGE, 1 << 17])
def test_every_index_comes_once(length: int) -> None:
    order = KeyedPermutation(length, 3)
    assert len(order) == length
    assert sorted(order.span(0, length).tolist()) == list(range(length))


@given(st.integers(1, 1 << 62), st.integers(0, 1 << 63), st.data())
def test_any_part_may_be_asked_for(length: int, seed: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length - 1))
    stop = min(length, start + data.draw(st.integers(0, 50)))
    order = KeyedPermutation(length, seed)
    values = order.span(start, stop).tolist()
    assert values == [int(order.span(i, i + 1)[0]) for i in range(start, stop)]
    assert all(0 <= value < length for value in values)
    assert len(set(values)) == len(values)


def test_it_is_the_same_on_every_build() -> None:
    assert KeyedPermutation(HUGE, 1).span(0, 4).tolist() == FIRST_OF_A_BILLION
    assert KeyedPermutation(10, 1).span(0, 4).tolist() == FIRST_OF_TEN


@pytest.mark.parametrize("length", [-1, (1 << 62) + 1])
def test_a_length_out_of_range_is_named(length: int) -> None:
    with pytest.raises(ValueError, match=str(length)):
        KeyedPermutation(length, 0)


@pytest.mark.parametrize("length", [1000, LARGE])
def test_each_place_gets_every_part_of_the_data_equally_often(length: int) -> None:
    counts = np.zeros((16, 16), int)  # place, sixteenth of the data
    for seed in range(500):
        values = KeyedPermutation(length, seed).span(length // 2, length // 2 + 16)
        counts[np.arange(16), values * 16 // length] += 1
    assert abs(chi_square(counts)) < SIGMAS


@pytest.mark.parametrize("threads", [0, 2])
def test_a_billion_samples_are_shuffled_in_a_megabyte(threads: int) -> None:
    loader = ThreadLoader(Huge(), 256, shuffle="keyed", threads=threads, seed=5, output="numpy")
    tracemalloc.start()
    try:
        iterator = iter(loader)
        first = next(iterator)
        peak = tracemalloc.get_traced_memory()[1]
        iterator.close()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert len(set(first.tolist())) == 256
    assert first.max() > HUGE // 2


@pytest.mark.parametrize(
    "arguments",
    [{"sampler": [0]}, {"sampler": []}, {"batch_sampler": [[0]]}, {"batch_sampler": []}],
)
def test_it_excludes_what_shuffle_excludes(arguments: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match="mutually exclusive"):
        ThreadLoader(range(4), shuffle="keyed", **arguments)
    with pytest.raises(ValueError, match="shuffle"):
        ThreadLoader(iter(range(4)), shuffle="keyed", threads=1)


# Several lengths and keys in one call, as mixtures of datasets need them


@pytest.mark.parametrize("length", [1, 2, 5, 1000, 1024, 1025, 70_001, 1 << 17])
def test_of_many_permutations_each_number_comes_once(length: int) -> None:
    numbers = np.arange(length)
    which = np.ones(length, np.int64)
    keys = np.full(length, 12345, np.uint64)
    entries = ManyPermutations([7, length]).entries(which, numbers, keys)
    assert sorted(entries.tolist()) == numbers.tolist()


@given(
    lengths=st.lists(st.integers(1, 1 << 62), min_size=1, max_size=5),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_an_entry_does_not_depend_on_the_others(
    lengths: list[int], key: int, data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9))
    numbers = [data.draw(st.integers(0, lengths[which] - 1)) for which in asked]
    keys = np.arange(len(asked), dtype=np.uint64) + np.uint64(key)
    many = ManyPermutations(lengths)
    together = many.entries(np.array(asked), np.array(numbers), keys).tolist()
    for place, which in enumerate(asked):
        alone = ManyPermutations([lengths[which]]).entries(
            np.array([0]), np.array([numbers[place]]), keys[place : place + 1]
        )
        assert alone.tolist() == [together[place]]
        assert 0 <= together[place] < lengths[which]


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
def test_all_short_permutations_are_equally_likely(length: int) -> None:
    found = short_permutations(length, keys_of(KEYS))
    codes = found @ length ** np.arange(length)
    every = np.array(list(itertools.permutations(range(length)))) @ length ** np.arange(length)
    counts = np.array([(codes == code).sum() for code in every])
    assert counts.sum() == KEYS
    assert len(every) == math.factorial(length)
    assert abs(chi_square(counts)) < SIGMAS


def test_many_permutations_are_the_same_on_every_build() -> None:
    keys = np.array([1, 2**63], np.uint64)
    many = ManyPermutations([10**9, 2**62])
    assert many.entries(np.array([0, 1]), np.array([5, 5]), keys).tolist() == FIRST_OF_MANY
    assert short_permutations(6, keys).tolist() == FIRST_SHORT
