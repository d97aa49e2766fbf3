"""Batches of sorted samples: as few as the limit allows, of about one cost, in whole groups."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from threadloader._order.sorted_batches import (
    batch_starts,
    group_bounds,
    make_even,
    middle_group,
)

sorted_lengths = st.lists(st.integers(1, 50), min_size=1, max_size=200).map(
    lambda lengths: sorted(map(float, lengths), reverse=True)
)


def costs_of(starts: list[int], lengths: list[float]) -> list[float]:
    ends = [*starts[1:], len(lengths)]
    return [(end - start) * lengths[start] for start, end in zip(starts, ends, strict=True)]


@given(sorted_lengths, st.integers(50, 300), st.none() | st.integers(1, 9))
def test_no_batch_has_room_for_the_sample_after_it(
    lengths: list[float], limit: int, most: int | None
) -> None:
    starts = batch_starts(lengths, limit, most)
    assert max(costs_of(starts, lengths)) <= limit
    for start, after in pairwise(starts):
        rows = after - start
        assert rows == most or (rows + 1) * lengths[start] > limit


@given(sorted_lengths, st.integers(50, 300), st.none() | st.integers(1, 9), st.data())
def test_batches_that_are_made_even_stay_as_many_and_none_costs_more(
    lengths: list[float], limit: int, most: int | None, data: st.DataObject
) -> None:
    starts = batch_starts(lengths, limit, most)
    before = list(starts)
    begin = data.draw(st.integers(0, len(starts)))
    stop = data.draw(st.integers(begin, len(starts)))
    make_even(starts, begin, stop, lengths, limit, most)
    assert starts[:begin] == before[:begin]
    assert starts[stop:] == before[stop:]
    assert starts == sorted(set(starts))
    assert len(starts) == len(before)
    if begin < stop:
        assert max(costs_of(starts, lengths)) <= max(costs_of(before, lengths))
        assert starts[begin] == before[begin]


def test_what_the_last_batch_lacks_is_shared_out_as_far_as_whole_samples_allow() -> None:
    lengths = [10.0] * 91
    starts = batch_starts(lengths, 100, None)
    assert costs_of(starts, lengths) == [*[100] * 9, 10]
    make_even(starts, 0, len(starts), lengths, 100, None)
    assert costs_of(starts, lengths) == [*[100] * 9, 10]  # a sample less in each is too little
    lengths = [1.0] * 910
    starts = batch_starts(lengths, 100, None)
    make_even(starts, 0, len(starts), lengths, 100, None)
    assert min(costs_of(starts, lengths)) >= 88


@given(st.integers(0, 200), st.integers(1, 12), st.integers(0, 11))
def test_all_groups_are_whole_but_for_the_two_in_the_middle(
    batches: int, size: int, before: int
) -> None:
    first = min(-(before % size) % size, batches)
    bounds = group_bounds(batches, first, size)
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, batches)
    middle = bounds.index(middle_group(batches, first, size))
    sizes = [after - bound for bound, after in pairwise(bounds)]
    assert sizes[middle] == first
    assert sizes[middle + 1] == (batches - first) % size
    assert {*sizes[:middle], *sizes[middle + 2 :]} <= {size}
