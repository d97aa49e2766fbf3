"""Arrays that the user changes or replaces are gathered from as they are then."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.gathering import Hooked, Plain, assert_alike, make, numbers
from support.patience import PATIENCE

from threadloader import ThreadLoader, get_worker_info
from threadloader.datasets import ArrayDataset

if TYPE_CHECKING:
    from support.patience import Spawn


each_way_to_share = pytest.mark.parametrize(
    "workers",
    [
        {"threads": 0},
        {"threads": 2},
        {"threads": 2, "dataset_copy": "shared"},
        {"threads": 2, "dataset_copy": "shared", "persistent_workers": True},
    ],
    ids=["inline", "copies", "shared", "persistent"],
)


@each_way_to_share
@pytest.mark.parametrize(
    "other",
    [numbers() + 100, numbers().astype(np.float64), numbers(11, 5), numbers(11, 1)[:, 0]],
    ids=["values", "dtype", "width", "dimensions"],
)
def test_an_array_that_is_replaced_between_epochs_is_seen(
    other: Any, workers: dict[str, Any], spawn: Spawn
) -> None:
    dataset = Hooked(numbers())
    with make(dataset, **workers) as loader:
        for array in (dataset.array, other, numbers()):
            dataset.array = array
            batches = np.concatenate(spawn(list, loader).result(PATIENCE))
            assert batches.dtype == array.dtype
            np.testing.assert_array_equal(batches, array)


@pytest.mark.parametrize("how", ["auto", "shared", "deep"])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_worker_init_fn_makes_of_the_dataset_is_seen(
    persistent: bool, how: str, spawn: Spawn
) -> None:
    """As with worker processes, to which it is the place for that."""

    def change(_: int) -> None:
        dataset: Any = get_worker_info().dataset
        dataset.array = numbers() + 100

    arguments = {"worker_init_fn": change, "threads": 1, "persistent_workers": persistent}
    with make(Hooked(numbers()), dataset_copy=how, **arguments) as loader:
        for _ in range(2):
            batches = np.concatenate(spawn(list, loader).result(PATIENCE))
            np.testing.assert_array_equal(batches, numbers() + 100)


@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
@pytest.mark.parametrize(
    "change",
    [
        list,
        Plain,
        lambda array: array + 100,
        lambda array: array.astype(np.float32),
        lambda array: array[:5],
        lambda array: np.concatenate([array, array]),
        lambda array: ArrayDataset(array, array),
        lambda array: dict(enumerate(array)),
    ],
    ids=["list", "plain", "values", "dtype", "fewer", "more", "ArrayDataset", "dict"],
)
def test_what_dataset_copy_returns_is_loaded(change: Any, shuffle: Any, spawn: Spawn) -> None:
    def build(dataset: Any) -> ThreadLoader[Any]:
        def copy(dataset: Any) -> Any:
            return change(dataset.dataset if type(dataset) is Plain else dataset)

        return make(dataset, dataset_copy=copy, threads=2, shuffle=shuffle, seed=1)

    assert_alike(spawn, numbers(), build)


def test_workers_may_have_arrays_of_different_dtypes(spawn: Spawn) -> None:
    lock, dtypes = Lock(), iter([np.int32, np.float32, np.int32])

    def copy(dataset: Any) -> Any:
        with lock:
            return dataset.astype(next(dtypes))

    with make(numbers(400), dataset_copy=copy, threads=3) as loader:
        batches = spawn(list, loader).result(PATIENCE)
    np.testing.assert_array_equal(np.concatenate(batches), numbers(400))
