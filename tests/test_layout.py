"""The layout of a batch: exact, and nothing that does not fit gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.pictures import picture
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

from threadloader.inference import infer
from threadloader.numpy_collate import numpy_collate

if TYPE_CHECKING:
    from threadloader.layout import Layout

LARGE = Branch("tuple", PLAIN)  # a tree of every leaf at once
plain_trees = trees(PLAIN, DIRECT_KINDS)


def _known(sample: Any) -> Layout:
    layout = infer(sample)
    assert layout is not None
    return layout


def _memory(layout: Layout, rows: int) -> memoryview[Any]:
    # Filled with something, so that a row that nobody wrote shows.
    return memoryview(np.full(layout.nbytes(rows), 0xAB, np.uint8))


def _batch(layout: Layout, samples: list[Any], tickets: list[tuple[int, int]]) -> Any:
    memory = _memory(layout, len(samples))
    fields = layout.fields(memory, len(samples))
    for start, stop in tickets:
        assert layout.write(samples[start:stop], fields, start)
    root = np.frombuffer(memory, np.uint8)
    return layout.batch(root, fields, len(samples), lambda array: array)


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
    fields = layout.fields(_memory(layout, rows), rows)
    layout.write(samples, fields, 0)
    assert [picture(layout.read(fields, row)) for row in range(rows)] == list(map(picture, samples))


@given(tree=plain_trees, data=st.data())
def test_a_sample_fits_exactly_if_its_own_layout_is_the_same(
    tree: Branch | Leaf, data: st.DataObject
) -> None:
    layout = _known(tree(0))
    other = data.draw(near_misses(tree, (*PLAIN, *ODD)))
    fields = layout.fields(_memory(layout, 2), 2)
    assert layout.write([tree(0), other(1)], fields, 0) == (infer(other(1)) == layout)


@pytest.mark.parametrize("leaf", PLAIN, ids=lambda leaf: leaf.name)
def test_a_leaf_takes_no_other_leaf(leaf: Leaf) -> None:
    layout = _known(leaf(0))
    fields = layout.fields(_memory(layout, 2), 2)
    taken = [other for other in PLAIN + ODD if layout.write([leaf(0), other(1)], fields, 0)]
    assert taken == [other for other in PLAIN + ODD if infer(other(1)) == layout]


@given(tree=plain_trees, data=st.data())
def test_layouts_are_equal_exactly_if_samples_differ_in_values_alone(
    tree: Branch | Leaf, data: st.DataObject
) -> None:
    other = data.draw(near_misses(tree, PLAIN))
    assert (infer(tree(0)) == infer(other(0))) == (_skeleton(tree(0)) == _skeleton(other(0)))


def _skeleton(sample: Any) -> Any:
    """All of a sample but its values."""
    if isinstance(sample, dict):
        return type(sample), [(key, _skeleton(part)) for key, part in sample.items()]
    if isinstance(sample, (list, tuple)):
        return type(sample), [_skeleton(part) for part in sample]
    return type(sample), getattr(sample, "dtype", None), getattr(sample, "shape", None)


@pytest.mark.parametrize("leaf", ODD, ids=lambda leaf: leaf.name)
def test_a_sample_with_an_exotic_part_has_no_layout(leaf: Leaf) -> None:
    assert infer({"a": [leaf(0)], "b": 1}) is None


EXOTIC: dict[str, Any] = {
    "byte-swapped array": np.array([1], np.dtype(np.int32).newbyteorder()),
    "masked array": np.ma.masked_equal([1, 2], 1),
    "array of dates": np.array([1], "M8[D]"),
    "array of long doubles": np.array([1], np.longdouble),
    "structured array": np.array([(1, 2)], "i4, f8"),
    "array without elements": np.zeros((2, 0, 3)),
    "NumPy's str": np.str_("s"),
    "NumPy's uint64": np.uint64(1),
    "NumPy's long double": np.longdouble(1),
    "range": range(3),
    "set": {1, 2},
    "object": object(),
    "bytearray": bytearray(b"ab"),
    "subclass of int": type("Int", (int,), {})(1),
    "subclass of str": type("Text", (str,), {})("s"),
    "subclass of dict": type("Dict", (dict,), {})(a=1),
    "subclass of list": type("List", (list,), {})([1]),
    "subclass of tuple": type("Tuple", (tuple,), {})((1,)),
}


@pytest.mark.parametrize("case", EXOTIC)
def test_what_default_collate_treats_in_a_way_of_its_own_has_no_layout(case: str) -> None:
    assert infer(EXOTIC[case]) is None
    assert infer([0, {"key": (EXOTIC[case],)}]) is None


@pytest.mark.parametrize(("numbers", "has_layout"), [(64, True), (65, False), (100_000, False)])
def test_a_sample_of_very_many_parts_has_no_layout(numbers: int, has_layout: bool) -> None:
    assert (infer([0] * numbers) is not None) == has_layout


def test_parts_are_counted_over_all_containers() -> None:
    assert infer([[0] * 32, [0] * 32]) is not None
    assert infer([[0] * 32, [0] * 33]) is None


def test_an_int_beyond_64_bits_does_not_fit() -> None:
    layout = _known(0)
    fields = layout.fields(_memory(layout, 2), 2)
    assert layout.write([2**63 - 1, -(2**63)], fields, 0)
    assert not layout.write([0, 2**63], fields, 0)


def test_a_batch_of_text_takes_no_memory() -> None:
    assert _known(("a", {"b": b"c"}, [])).nbytes(1000) == 0


def test_the_bytes_of_a_batch_grow_with_its_rows() -> None:
    layout = _known((np.zeros(16), 1))
    assert layout.nbytes(64) == 64 * (16 * 8 + 8)


@given(tree=plain_trees, rows=st.integers(1, 5))
def test_every_part_of_a_batch_starts_at_a_cache_line(tree: Branch | Leaf, rows: int) -> None:
    layout = _known(tree(0))
    aligned = np.empty(layout.nbytes(rows) + 64, np.uint8)
    start = -aligned.ctypes.data % 64
    memory = memoryview(aligned[start : start + layout.nbytes(rows)])
    for field in layout.fields(memory, rows):
        assert isinstance(field, list) or field.ctypes.data % 64 == 0


def test_writing_rows_leaves_all_others_alone() -> None:
    samples = [LARGE(number) for number in range(4)]
    layout = _known(samples[0])
    fields = layout.fields(_memory(layout, 4), 4)
    layout.write(samples, fields, 0)
    layout.write([LARGE(9)], fields, 2)
    kept = [picture(layout.read(fields, row)) for row in (0, 1, 3)]
    assert kept == [picture(samples[row]) for row in (0, 1, 3)]


def test_a_batch_consists_of_views_of_its_root() -> None:
    layout = _known({"a": np.zeros(2), "b": 1})
    memory = _memory(layout, 3)
    fields = layout.fields(memory, 3)
    layout.write([{"a": np.zeros(2), "b": 1}] * 3, fields, 0)
    root = np.frombuffer(memory, np.uint8)
    batch = layout.batch(root, fields, 3, lambda array: array)
    assert np.shares_memory(batch["a"], root)
    assert np.shares_memory(batch["b"], root)
    assert not np.shares_memory(batch["a"], batch["b"])


def test_a_sample_that_was_read_is_a_copy() -> None:
    layout = _known(np.zeros(2))
    fields = layout.fields(_memory(layout, 1), 1)
    layout.write([np.zeros(2)], fields, 0)
    sample = layout.read(fields, 0)
    layout.write([np.ones(2)], fields, 0)
    assert sample.tolist() == [0, 0]
