"""Whose turn it is: exact shares, wherever one looks, and turns that are numbered as they come."""

from __future__ import annotations

import math
import pickle
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadloader.datasets._mixture.pattern import BLOCK, Pattern
from threadloader.datasets._mixture.plan import Mixing, Plan
from threadloader.datasets._mixture.source_order import SourceOrder
from threadloader.datasets._mixture.stopping import end_of
from threadloader.datasets._mixture.weights import by_weight, shares, whole_weights

FAR = 10**12

weights_of_sources = st.lists(
    st.one_of(st.integers(0, 1000), st.floats(1e-6, 1e6, allow_nan=False)), min_size=1, max_size=12
).filter(any)


def turns(pattern: Pattern, start: int, stop: int) -> list[tuple[int, int]]:
    """Return source and turn of some positions."""
    found: list[tuple[int, int]] = []
    while start < stop:
        block = pattern.block(start)
        part = slice(start - block.first, stop - block.first)
        found += zip(block.sources[part].tolist(), block.turns[part].tolist(), strict=True)
        start = block.stop
    return found


def most_off(sources: int) -> float:
    """Return by how much a share may be off."""
    return 1 + math.log(max(1, sources)) / 2


@given(weights=weights_of_sources, position=st.integers(0, FAR))
def test_shares_never_drift(weights: list[float], position: int) -> None:
    whole = whole_weights(weights)
    counts = shares(position, whole, by_weight(whole))
    assert sum(counts) == position
    assert Pattern(0, whole, epoch=position or None).counts(position) == counts
    total = sum(map(Fraction, weights))
    for count, weight in zip(counts, weights, strict=True):
        exact = position * Fraction(weight) / total
        assert abs(count - exact) < most_off(len(weights))
        assert weight or not count


@given(weights=weights_of_sources, length=st.integers(0, FAR))
def test_one_more_turn_goes_to_one_source(weights: list[float], length: int) -> None:
    whole = whole_weights(weights)
    order = by_weight(whole)
    before, after = shares(length, whole, order), shares(length + 1, whole, order)
    added = [late - early for early, late in zip(before, after, strict=True)]
    assert sorted(added) == [0] * (len(whole) - 1) + [1]


@given(weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=9).filter(any))
def test_whole_weights_are_met_exactly_at_their_sum(weights: list[int]) -> None:
    whole = whole_weights(weights)
    order = by_weight(whole)
    assert shares(sum(weights), whole, order) == weights


@given(
    weights=weights_of_sources,
    start=st.integers(0, FAR),
    key=st.integers(0, 2**64 - 1),
    changes=st.lists(st.tuples(st.integers(1, 3000), weights_of_sources), max_size=3),
)
def test_the_first_positions_take_the_first_turns_of_each_source(
    weights: list[float], start: int, key: int, changes: list[tuple[int, list[float]]]
) -> None:
    pattern = Pattern(key, whole_weights(weights))
    at = start
    for gap, changed in changes:
        at += gap
        padded = (changed * len(weights))[: len(weights)]
        pattern.add(at, whole_weights(padded if any(padded) else weights))
    expected = pattern.counts(start)
    for source, turn in turns(pattern, start, at + 600):
        assert turn == expected[source]
        expected[source] += 1
    assert pattern.counts(at + 600) == expected


@given(
    key=st.integers(0, 2**64 - 1),
    position=st.integers(0, FAR),
    rows=st.integers(1, 5000),
    change=st.integers(0, 3000),
    epoch=st.one_of(st.none(), st.integers(1, 3000)),
)
def test_many_blocks_at_once_are_those_one_by_one(
    key: int, position: int, rows: int, change: int, epoch: int | None
) -> None:
    patterns = [Pattern(key, whole_weights([5, 3, 0.5]), epoch=epoch) for _ in range(2)]
    if change:
        for pattern in patterns:
            pattern.add(position + change, (1, 1, 1))
    at, stop = position, position + rows
    many: list[tuple[int, int]] = []
    while at < stop:
        block = patterns[0].blocks(at, stop - at)
        part = slice(at - block.first, stop - block.first)
        many += zip(block.sources[part].tolist(), block.turns[part].tolist(), strict=True)
        at = block.stop
    assert many == turns(patterns[1], position, stop)


@given(
    weights=st.lists(st.integers(1, 50), min_size=2, max_size=5),
    epochs=st.integers(0, 20),
    times=st.integers(1, 9),
)
def test_the_shares_of_an_epoch_are_exact(weights: list[int], epochs: int, times: int) -> None:
    length = times * sum(weights)
    pattern = Pattern(1, whole_weights(weights), epoch=length)
    of_epoch = [source for source, _ in turns(pattern, epochs * length, (epochs + 1) * length)]
    assert [of_epoch.count(source) for source in range(len(weights))] == [
        times * weight for weight in weights
    ]


def test_what_comes_before_a_change_stays_as_it_was() -> None:
    before, after = Pattern(7, (3, 1)), Pattern(7, (3, 1))
    after.add(1000, (0, 1))
    assert turns(after, 0, 1000) == turns(before, 0, 1000)
    assert {source for source, _ in turns(after, 1000, 2000)} == {1}


def test_neighbours_are_as_likely_of_one_source_as_any_others() -> None:
    sources = [source for source, _ in turns(Pattern(3, (1, 1)), 0, 100 * BLOCK)]
    same = sum(one == other for one, other in pairwise(sources))
    # Of two that are drawn without replacement from a block's 128 and 128.
    expected = 127 / 255 * len(sources)
    assert abs(same - expected) < 5 * math.sqrt(len(sources)) / 2


@pytest.mark.parametrize("stop", ["first", "all", "once"])
@given(
    sources=st.lists(
        st.tuples(st.integers(1, 2000), st.sampled_from([0, 0.01, 0.3, 1, 2.5, 40])),
        min_size=1,
        max_size=6,
    ).filter(lambda pairs: any(weight for _, weight in pairs))
)
def test_the_length_is_where_a_walk_would_end(stop: str, sources: list[tuple[int, float]]) -> None:
    lengths, weights = [length for length, _ in sources], [weight for _, weight in sources]
    whole = whole_weights(weights)
    length, planned = end_of(stop, whole, lengths)  # type: ignore[arg-type]
    pattern = Pattern(1, whole, planned, length)
    weighted = [source for source, weight in enumerate(weights) if weight]
    counts = pattern.counts(length)
    if stop == "once":
        assert [counts[source] for source in weighted] == [lengths[source] for source in weighted]
        assert length == sum(counts)
    elif stop == "first":
        assert all(counts[source] <= lengths[source] for source in weighted)
        after = shares(length + 1, whole, by_weight(whole))
        assert any(after[source] > lengths[source] for source in weighted)
    else:
        assert all(counts[source] >= lengths[source] for source in weighted)
        before = shares(length - 1, whole, by_weight(whole))
        assert any(before[source] < lengths[source] for source in weighted)


@given(
    length=st.sampled_from([1, 2, 7, 100, 1024, 1025, 4099]),
    first=st.integers(0, 10**9),
    epoch=st.integers(0, 5),
)
def test_each_pass_has_every_index_once(length: int, first: int, epoch: int) -> None:
    order = SourceOrder(["a", "b"], [5, length], 3, epoch, shuffle=True)
    passes = [first * length + np.arange(length), (first + 1) * length + np.arange(length)]
    orders = [order.indices(np.ones(length, np.int64), numbers).tolist() for numbers in passes]
    for indices in orders:
        assert sorted(indices) == list(range(length))
    assert length < 100 or orders[0] != orders[1]


def test_an_order_does_not_depend_on_the_other_sources_nor_on_what_was_asked_before() -> None:
    rng = random.Random(1)
    lengths = {"a": 300, "b": 5000, "c": 7}
    one = SourceOrder(list(lengths), list(lengths.values()), 3, 0, shuffle=True)
    for _ in range(50):
        name = rng.choice("abc")
        numbers = rng.randrange(10**6) + np.arange(rng.randrange(1, 50))
        other = SourceOrder(["z", name], [2000, lengths[name]], 3, 0, shuffle=True)
        which = np.full(len(numbers), "abc".index(name))
        expected = other.indices(np.ones(len(numbers), np.int64), numbers).tolist()
        assert one.indices(which, numbers).tolist() == expected


def test_a_plan_is_pickled_without_what_it_keeps() -> None:
    mixing = Mixing(("a", "b"), (10**6, 100), (0.3, 0.7), 5, "repeat", 10**7, shuffle=True)
    plan = Plan(mixing, 3, ((5000, (1.0, 1.0)),))
    plan.span(0, 4096)
    pickled = pickle.dumps(plan)
    assert len(pickled) < 500
    assert pickle.loads(pickled).span(10**6, 50) == plan.span(10**6, 50)
