"""`ArrayDataset`: rows, tuples or dicts of them; what are no arrays is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from support.pictures import picture

from threadloader import ThreadLoader
from threadloader.datasets import ArrayDataset


def test_samples_are_rows_tuples_or_dicts() -> None:
    one, two = np.arange(33).reshape(11, 3), np.arange(11)
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


@pytest.mark.parametrize("threads", [0, 2])
def test_rows_of_a_file_of_tokens_are_views_that_overlap(tmp_path: Path, threads: int) -> None:
    np.arange(1, 1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    tokens = np.memmap(tmp_path / "train.bin", np.uint16, "r")
    rows = sliding_window_view(tokens, 33)[::32]
    assert np.shares_memory(rows, tokens)
    dataset = ArrayDataset(rows)
    assert np.shares_memory(dataset[5], tokens)
    loader = ThreadLoader(dataset, 8, shuffle=True, seed=1, threads=threads, output="numpy")
    found = np.concatenate(list(loader))
    assert found.dtype == np.uint16
    starts = sorted(found[:, 0].tolist())
    assert starts == [1 + 32 * row for row in range(31)]
    np.testing.assert_array_equal(found, found[:, :1] + np.arange(33))
