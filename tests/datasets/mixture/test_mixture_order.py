"""Whose turn it is: exact shares, wherever one looks; each sample of a source once in a pass."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadloader.datasets import Mixture

FAR = 10**12
BLOCK = 256  # positions, from one place where shares are exact to the next

weights_of_sources = st.lists(
    st.one_of(st.integers(0, 1000), st.floats(1e-6, 1e6, allow_nan=False)), min_size=1, max_size=12
).filter(any)


def mixture(weights: list[Any], samples: int | list[int] = 1000 * FAR, **options: Any) -> Any:
    lengths = [samples] * len(weights) if isinstance(samples, int) else samples
    pairs = zip(lengths, weights, strict=True)
    options = {"stop": "repeat", **options}
    return Mixture({str(n): (range(length), w) for n, (length, w) in enumerate(pairs)}, **options)


def found(mixed: Any, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the source and the index in it of some positions."""
    pairs = [mixed.source_of(position) for position in range(start, stop)]
    return [(int(name), index) for name, index in pairs]


@settings(max_examples=40)
@given(weights=weights_of_sources, position=st.integers(1, FAR))
def test_shares_never_drift(weights: list[Any], position: int) -> None:
    block = position * BLOCK
    ends = [
        (position, mixture(weights, length=position).counts()),
        (block, mixture(weights).counts(block)),
    ]
    total = sum(map(Fraction, weights))
    for end, counts in ends:
        assert sum(counts.values()) == end
        for count, weight in zip(counts.values(), weights, strict=True):
            assert abs(count - end * Fraction(weight) / total) < 1 + math.log(len(weights)) / 2
            assert weight or not count


@settings(max_examples=30)
@given(
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any),
    epoch=st.integers(0, 20),
)
def test_whole_weights_are_met_exactly_by_each_epoch_of_their_sum(
    weights: list[int], epoch: int
) -> None:
    mixed = mixture(weights, length=9 * sum(weights))
    mixed.set_epoch(epoch)
    sources = [source for source, _ in found(mixed, 0, len(mixed))]
    assert [sources.count(source) for source in range(len(weights))] == [9 * w for w in weights]


@settings(max_examples=40)
@given(
    weights=weights_of_sources,
    start=st.integers(0, FAR),
    changes=st.lists(st.tuples(st.integers(1, 300), weights_of_sources), max_size=3),
    length=st.one_of(st.none(), st.integers(1, 3000)),
)
def test_the_first_positions_have_the_first_samples_of_each_source(
    weights: list[Any],
    start: int,
    changes: list[tuple[int, list[Any]]],
    length: int | None,
) -> None:
    mixed = mixture(weights, shuffle=False, length=length)
    epoch, at = (0, start) if length is None else divmod(start, length)
    mixed.set_epoch(epoch)
    change = start
    for gap, changed in changes:
        change += gap
        padded = (changed * len(weights))[: len(weights)]
        told = padded if any(padded) else weights
        mixed.set_weights({str(n): weight for n, weight in enumerate(told)}, at=change)
    stop = min(len(mixed), at + 600)
    before = list(mixed.counts(at).values())
    next_ones: dict[int, int] = {}
    for source, index in found(mixed, at, stop):
        assert index == next_ones.setdefault(source, index)
        next_ones[source] += 1
        before[source] += 1
    assert list(mixed.counts(stop).values()) == before


@settings(max_examples=40)
@given(
    sources=st.lists(
        st.tuples(st.integers(1, 2000), st.sampled_from([0, 0.01, 0.3, 1, 2.5, 40])),
        min_size=1,
        max_size=6,
    ).filter(lambda pairs: any(weight for _, weight in pairs))
)
def test_the_length_is_where_a_walk_would_end(sources: list[tuple[int, Any]]) -> None:
    lengths, weights = [length for length, _ in sources], [weight for _, weight in sources]

    def walked(length: int) -> list[tuple[int, int]]:
        """Return the turns of each source that has a weight, and its samples."""
        counts = mixture(weights, lengths, length=length).counts().values()
        pairs = zip(counts, lengths, weights, strict=True)
        return [(count, samples) for count, samples, weight in pairs if weight]

    first = len(mixture(weights, lengths, stop="first"))
    assert not first or all(count <= samples for count, samples in walked(first))
    assert any(count > samples for count, samples in walked(first + 1))
    most = len(mixture(weights, lengths, stop="all"))
    assert all(count >= samples for count, samples in walked(most))
    assert most == 1 or any(count < samples for count, samples in walked(most - 1))
    once = mixture(weights, lengths, stop="once")
    expected = [samples if weight else 0 for samples, weight in sources]
    assert list(once.counts().values()) == expected
    assert len(once) == sum(expected)


@settings(max_examples=20)
@given(
    length=st.sampled_from([1, 2, 7, 1024, 1025]),
    first=st.integers(0, 10**9),
    epoch=st.integers(0, 5),
)
def test_each_pass_has_every_index_once(length: int, first: int, epoch: int) -> None:
    mixed = mixture([1], [length])
    mixed.set_epoch(epoch)
    passes = [
        [index for _, index in found(mixed, start * length, (start + 1) * length)]
        for start in (first, first + 1)
    ]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(length))
    assert length < 100 or passes[0] != passes[1]


@pytest.mark.parametrize("length", [7, 300, 5000])
def test_the_order_of_a_source_depends_on_no_other_one(length: int) -> None:
    alone = Mixture({"b": (range(length), 1)}, stop="repeat", seed=3)
    others = {"z": (range(2000), 0.3), "b": (range(length), 2), "a": (range(9), 1)}
    beside = Mixture(others, stop="repeat", seed=3)
    pairs = [beside.source_of(position) for position in range(3000)]
    indices = [index for name, index in pairs if name == "b"]
    assert indices == [alone.source_of(position)[1] for position in range(len(indices))]
