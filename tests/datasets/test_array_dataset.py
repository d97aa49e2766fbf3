"""`ArrayDataset`: rows, tuples or dicts of them; what are no arrays is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.gathering import numbers
from support.pictures import picture

from threadloader.datasets import ArrayDataset


def test_samples_are_rows_tuples_or_dicts() -> None:
    one, two = numbers(), np.arange(11)
    assert ArrayDataset(one)[3].tolist() == [9, 10, 11]
    assert picture(ArrayDataset(one, two)[3]) == picture((one[3], two[3]))
    assert picture(ArrayDataset({"b": one, "a": two})[-1]) == picture({"b": one[-1], "a": two[-1]})
    assert len(ArrayDataset(one, two)) == 11


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ((), ValueError, "at least one"),
        ((np.zeros(3), np.zeros(4)), ValueError, r"\[3, 4\]"),
        ((np.array(3),), TypeError, "array 0"),
        ((np.zeros(3), 5), TypeError, "array 1"),
        (({"a": None},), TypeError, "array 'a'"),
        (([1, 2, 3],), TypeError, "array 0 is a list .*np.asarray"),
    ],
    ids=str,
)
def test_what_are_no_arrays_of_one_length_is_refused(
    arrays: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ArrayDataset(*arrays)


def test_an_array_dataset_tells_what_it_is() -> None:
    rows, labels = np.zeros((3, 2, 4), np.float32), np.zeros(3, np.uint8)
    assert repr(ArrayDataset(rows)) == "ArrayDataset(float32 (3, 2, 4))"
    assert repr(ArrayDataset({"x": rows, "y": labels})) == (
        "ArrayDataset('x': float32 (3, 2, 4), 'y': uint8 (3,))"
    )
