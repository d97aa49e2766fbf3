"""Permutations with random access: bijections, without a pattern, in constant memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.acting import Acting

from threadloader import ThreadLoader
from threadloader._order.permutation import KeyedPermutation

LARGE = 70_001  # beyond the table, and far from a power of two: many numbers are mapped again
HUGE = 10**9
# Of a chi-square statistic: more than 5 standard deviations above its mean for hundreds of
# degrees of freedom, with fixed seeds, so that the tests never fail by chance.
SIGMAS = 5.0


def chi_square(counts: np.ndarray) -> float:
    """Return how many standard deviations counts are off an even distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


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


@pytest.mark.parametrize("length", [1000, LARGE])
def test_each_place_gets_every_part_of_the_data_equally_often(length: int) -> None:
    counts = np.zeros((16, 16), int)  # place, sixteenth of the data
    for seed in range(500):
        values = KeyedPermutation(length, seed).span(length // 2, length // 2 + 16)
        counts[np.arange(16), values * 16 // length] += 1
    assert abs(chi_square(counts)) < SIGMAS


@pytest.mark.parametrize("threads", [0, 2])
def test_a_billion_samples_are_shuffled_in_a_megabyte(threads: int) -> None:
    """More than a thousand take: a thread by itself has memory of the interpreter's."""

    def first_of(length: int) -> tuple[Any, int]:
        loader = ThreadLoader(
            Acting(length), 256, shuffle="keyed", threads=threads, seed=5, output="numpy"
        )
        tracemalloc.start()
        try:
            iterator = iter(loader)
            first = next(iterator)
            iterator.close()
            return first, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    _, few = first_of(1024)
    first, many = first_of(HUGE)
    assert many < few + (1 << 20)
    assert len(set(first.tolist())) == 256
    assert first.max() > HUGE // 2
