"""The layout of a batch: exact, and nothing that does not fit gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.samples import (
    DIRECT_KINDS,
    ODD,
    PLAIN,
    Branch,
    Leaf,
    near_misses,
    tickets_of,
    trees,
)
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import picture

from threadloader._batch.numpy_collate import numpy_collate
from threadloader._layout import infer

if TYPE_CHECKING:
    from threadloader._layout import Layout

plain_trees = trees(PLAIN, DIRECT_KINDS)


def _known(sample: Any) -> Layout:
    layout = infer(sample)
    assert layout is not None
    return layout


def _fields(layout: Layout, rows: int) -> list[Any]:
    # Filled with something, so that a row that nobody wrote shows.
    return [
        [None] * rows
        if place is None
        else np.full(place.nbytes, 0xAB, np.uint8).view(place.dtype).reshape(place.flat)
        for place in layout.places(rows)
    ]


def _batch(layout: Layout, samples: list[Any], tickets: list[tuple[int, int]]) -> Any:
    fields = _fields(layout, len(samples))
    for start, stop in tickets:
        assert layout.write(samples[start:stop], fields, start)
    places = layout.places(len(samples))
    return layout.batch(
        [
            field if place is None else field.reshape(place.shape)
            for field, place in zip(fields, places, strict=True)
        ]
    )


@given(tree=plain_trees, rows=st.integers(1, 8), data=st.data())
def test_tickets_of_any_cut_and_order_make_the_collated_batch(
    tree: Branch | Leaf, rows: int, data: st.DataObject
) -> None:
    samples = [tree(number) for number in range(rows)]
    batch = _batch(_known(samples[0]), samples, data.draw(tickets_of(rows)))
    assert picture(batch) == picture(numpy_collate(samples))


@given(tree=plain_trees, rows=st.integers(1, 4))
def test_every_written_sample_can_be_read_back(tree: Branch | Leaf, rows: int) -> None:
    samples = [tree(number) for number in range(rows)]
    layout = _known(samples[0])
    fields = _fields(layout, rows)
    layout.write(samples, fields, 0)
    assert [picture(layout.read(fields, row)) for row in range(rows)] == list(map(picture, samples))


@given(tree=plain_trees, data=st.data())
def test_a_sample_fits_exactly_if_its_own_layout_is_the_same(
    tree: Branch | Leaf, data: st.DataObject
) -> None:
    layout = _known(tree(0))
    other = data.draw(near_misses(tree, (*PLAIN, *ODD)))
    fields = _fields(layout, 2)
    assert layout.write([tree(0), other(1)], fields, 0) == (infer(other(1)) == layout)


@pytest.mark.parametrize("leaf", ODD, ids=lambda leaf: leaf.name)
def test_a_sample_with_an_exotic_part_has_no_layout(leaf: Leaf) -> None:
    assert infer({"a": [leaf(0)], "b": 1}) is None


EXOTIC: dict[str, Any] = {
    "byte-swapped array": np.array([1], np.dtype(np.int32).newbyteorder()),
    "masked array": np.ma.masked_equal([1, 2], 1),
    "structured array": np.array([(1, 2)], "i4, f8"),
    "array without elements": np.zeros((2, 0, 3)),
    "NumPy's uint64": np.uint64(1),
    "object": object(),
    "subclass of int": type("Int", (int,), {})(1),
    "subclass of dict": type("Dict", (dict,), {})(a=1),
    "subclass of list": type("List", (list,), {})([1]),
}


@pytest.mark.parametrize("case", EXOTIC)
def test_what_default_collate_treats_in_a_way_of_its_own_has_no_layout(case: str) -> None:
    assert infer(EXOTIC[case]) is None
    assert infer([0, {"key": (EXOTIC[case],)}]) is None


@pytest.mark.parametrize(("numbers", "has_layout"), [(64, True), (65, False), (100_000, False)])
def test_a_sample_of_very_many_parts_has_no_layout(numbers: int, has_layout: bool) -> None:
    assert (infer([0] * numbers) is not None) == has_layout


def test_an_int_beyond_64_bits_does_not_fit() -> None:
    layout = _known(0)
    fields = _fields(layout, 2)
    assert layout.write([2**63 - 1, -(2**63)], fields, 0)
    assert not layout.write([0, 2**63], fields, 0)


@given(tree=plain_trees, data=st.data())
def test_a_look_at_a_sample_tells_whether_it_fits(tree: Branch | Leaf, data: st.DataObject) -> None:
    layout = _known(tree(0))
    other = data.draw(near_misses(tree, (*PLAIN, *ODD)))
    assert layout.fits(tree(1))
    # An int too large, say, is for `write` to refuse.
    assert layout.fits(other(1)) >= (infer(other(1)) == layout)
