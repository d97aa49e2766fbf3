"""`ArrayDataset`: rows, tuples or dicts of them; what are no arrays is refused."""

from __future__ import annotations

import numpy as np
from support.gathering import numbers
from support.pictures import picture

from threadloader.datasets import ArrayDataset


def test_samples_are_rows_tuples_or_dicts() -> None:
    one, two = numbers(), np.arange(11)
    assert ArrayDataset(one)[3].tolist() == [9, 10, 11]
    assert picture(ArrayDataset(one, two)[3]) == picture((one[3], two[3]))
    assert picture(ArrayDataset({"b": one, "a": two})[-1]) == picture({"b": one[-1], "a": two[-1]})
    assert len(ArrayDataset(one, two)) == 11


def test_an_array_dataset_tells_what_it_is() -> None:
    rows, labels = np.zeros((3, 2, 4), np.float32), np.zeros(3, np.uint8)
    assert repr(ArrayDataset(rows)) == "ArrayDataset(float32 (3, 2, 4))"
    assert repr(ArrayDataset({"x": rows, "y": labels})) == (
        "ArrayDataset('x': float32 (3, 2, 4), 'y': uint8 (3,))"
    )
