"""Permutations of several lengths and keys in one call: bijections, and fair ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadloader._rng.permutation import ManyPermutations, mixed, short_permutations

# Of a chi-square statistic: more than 5 standard deviations above its mean, with fixed keys, so
# that the tests never fail by chance.
SIGMAS = 5.0
KEYS = 300_000
FIRST = [49169139, 66188895022869852]
FIRST_OF_SIX = [[4, 3, 0, 1, 5, 2], [4, 0, 5, 3, 2, 1]]


def keys_of(count: int) -> np.ndarray:
    return mixed(np.arange(1, count + 1, dtype=np.uint64))


def chi_square(counts: np.ndarray) -> float:
    """Return how many standard deviations counts are off an even distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("length", [1, 2, 5, 1000, 1024, 1025, 70_001, 1 << 17])
def test_every_number_comes_once(length: int) -> None:
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


@pytest.mark.parametrize("length", [1025, 3001])
@pytest.mark.parametrize("distance", [1, 7, 32, 55])
def test_a_number_and_its_distance_to_another_go_anywhere(length: int, distance: int) -> None:
    many, keys = ManyPermutations([length]), keys_of(KEYS)
    which, number = np.zeros(KEYS, np.int64), np.full(KEYS, length // 3)
    one = many.entries(which, number, keys)
    other = many.entries(which, number + distance, keys)
    assert chi_square(np.bincount(one, minlength=length)) < SIGMAS
    assert chi_square(np.bincount((other - one) % length, minlength=length)[1:]) < SIGMAS


def test_neighbours_are_pairs_of_any_two_parts_of_the_data() -> None:
    length = 1_000_003
    numbers = np.arange(length)
    entries = ManyPermutations([length]).entries(
        np.zeros(length, np.int64), numbers, np.full(length, 99, np.uint64)
    )
    bins = entries * 64 // length
    counts = np.zeros((64, 64), int)
    np.add.at(counts, (bins[:-1], bins[1:]), 1)
    assert abs(chi_square(counts)) < SIGMAS
    for lag in (1, 2, 1000, 1001):
        correlation = np.corrcoef(entries[:-lag], entries[lag:])[0, 1]
        assert abs(correlation) * length**0.5 < SIGMAS


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
def test_all_short_permutations_are_equally_likely(length: int) -> None:
    found = short_permutations(length, keys_of(KEYS))
    codes = found @ length ** np.arange(length)
    every = np.array(list(itertools.permutations(range(length)))) @ length ** np.arange(length)
    counts = np.array([(codes == code).sum() for code in every])
    assert counts.sum() == KEYS
    assert len(every) == math.factorial(length)
    assert abs(chi_square(counts)) < SIGMAS


def test_they_are_the_same_on_every_build() -> None:
    keys = np.array([1, 2**63], np.uint64)
    many = ManyPermutations([10**9, 2**62])
    assert many.entries(np.array([0, 1]), np.array([5, 5]), keys).tolist() == FIRST
    assert short_permutations(6, keys).tolist() == FIRST_OF_SIX
