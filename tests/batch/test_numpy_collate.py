"""NumPy batches: torch's structure and errors, with arrays for tensors."""

from __future__ import annotations

import importlib.util
from collections import UserDict, UserList, defaultdict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from conformance.containers import Point
from conformance.samples import BEYOND, ODD, PLAIN, samples, trees
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import picture
from support.resuming import plain

from threadloader import ThreadLoader

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def collated(samples: list[Any]) -> Any:
    """Return the batch of samples, none of which tells of a layout before."""
    (batch,) = ThreadLoader(samples, len(samples), threads=0, output="numpy")
    return batch


def _as_arrays(batch: Any) -> Any:
    """Return a batch of torch's with arrays for its tensors."""
    if hasattr(batch, "numpy"):
        return batch.numpy()
    if isinstance(batch, dict):
        twin = batch.copy()
        twin.update({key: _as_arrays(part) for key, part in batch.items()})
        return twin
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_as_arrays, batch))
    return list(map(_as_arrays, batch)) if isinstance(batch, list) else batch


def _default_collate(samples: list[Any]) -> Any:
    from torch.utils.data import default_collate  # noqa: PLC0415  # torch is optional

    return _as_arrays(default_collate(samples))


@needs_torch
@given(tree=trees(PLAIN), rows=st.integers(1, 4))
def test_a_batch_is_that_of_default_collate(tree: Any, rows: int) -> None:
    batch = [tree(number) for number in range(rows)]
    assert picture(collated(batch)) == picture(_default_collate(batch))


def _values(batch: Any) -> Any:
    """Return all but the dtypes: of a float and an int torch makes float32, NumPy float64."""
    if isinstance(batch, np.ndarray):
        return repr(batch.astype(complex).tolist())
    if isinstance(batch, dict):
        return type(batch), [(key, _values(part)) for key, part in batch.items()]
    if isinstance(batch, (list, tuple)):
        return type(batch), list(map(_values, batch))
    return batch


@needs_torch
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy:UserWarning")
@given(batch=samples((*PLAIN, *ODD, BEYOND), min_size=1))
def test_what_default_collate_takes_is_taken(batch: list[Any]) -> None:
    try:
        expected = _default_collate(batch)
    except Exception:  # noqa: BLE001  # whatever torch raises
        return
    assert _values(collated(batch)) == _values(expected)


@pytest.mark.parametrize(
    ("batch", "dtype"),
    [
        ([1, True], np.int64),
        ([True, False], np.bool_),
        ([1.5, 2], np.float64),
        ([0.5, 2**64], np.float64),
        ([np.float32(1)], np.float32),
        ([np.uint64(2**63)], np.uint64),
        ([np.datetime64(day, "D") for day in (1, 2)], np.dtype("M8[D]")),
        ([np.timedelta64(1, "s")], np.dtype("m8[s]")),
    ],
    ids=str,
)
def test_numbers_become_one_array(batch: list[Any], dtype: type) -> None:
    got = collated(batch)
    assert got.dtype == dtype
    assert got.tolist() == batch


# Of those that are not in `trees`.
CONTAINERS: dict[str, tuple[list[Any], Any]] = {
    "defaultdict": ([defaultdict(int, a=1), {"a": 2}], defaultdict(int, a=[1, 2])),
    "UserDict": ([UserDict(a=1), {"a": 2}], UserDict(a=[1, 2])),
    "mapping proxy": ([MappingProxyType({"a": 1}), {"a": 2}], MappingProxyType({"a": [1, 2]})),
    "UserList": ([UserList([1]), UserList([2])], UserList([[1, 2]])),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_a_container_is_collated_part_by_part(case: str) -> None:
    batch, expected = CONTAINERS[case]
    got = collated(batch)
    assert type(got) is type(expected)
    if hasattr(got, "keys"):
        assert list(got) == list(expected)
        got, expected = got.values(), expected.values()
    assert [plain(part) for part in got] == list(expected)


UNSUPPORTED = "must contain tensors, numpy arrays, numbers, dicts or lists; found"


@pytest.mark.parametrize(
    "odd",
    [None, 1j, {1}, object(), np.array([None]), np.array(["a"]), np.array([b"a"])],
    ids=["None", "complex", "set", "object", "array of objects", "of str", "of bytes"],
)
def test_what_cannot_be_collated_is_a_type_error_that_names_it(odd: Any) -> None:
    found = getattr(odd, "dtype", type(odd))
    with pytest.raises(TypeError, match=UNSUPPORTED) as caught:
        collated([{"a": (odd,)}] * 2)
    assert str(caught.value).endswith(str(found))


@pytest.mark.parametrize(
    "batch",
    [
        [1, "a"],
        [1, None],
        [1.5, "2.5"],
        [2**64, 1],
        [np.float32(1), "a"],
        [np.array([1]), np.array(["a"])],
        [np.array([1]), None],
    ],
    ids=str,
)
def test_a_batch_of_numbers_never_turns_into_one_of_objects_or_strings(batch: list[Any]) -> None:
    # NumPy would: np.array([1, "a"]) is an array of str, np.array([1.5, None], float) has a NaN.
    with pytest.raises((TypeError, ValueError, OverflowError, RuntimeError)):
        collated(batch)


@needs_torch
def test_a_single_sample_keeps_its_structure_with_arrays_for_tensors() -> None:
    torch = pytest.importorskip("torch")

    sample = {"a": (torch.ones(2), [Point(torch.tensor(1), "s")]), "b": None}
    (converted,) = ThreadLoader([sample], None, threads=0, output="numpy")
    expected = {"a": (np.ones(2, np.float32), [Point(np.array(1), "s")]), "b": None}
    assert picture(converted) == picture(expected)


def test_masked_arrays_keep_their_masks() -> None:
    rows = np.ma.masked_array(np.arange(6.0).reshape(3, 2), mask=[[0, 1], [0, 0], [1, 1]])
    samples = [{"a": row} for row in (*np.ones((3, 2)), *rows)]  # after a batch of plain ones
    *_, batch = ThreadLoader(samples, 3, threads=0, output="numpy")
    got = batch["a"]
    assert type(got) is np.ma.MaskedArray
    assert np.array_equal(got.mask, rows.mask)
    assert np.array_equal(got.filled(-1), rows.filled(-1))


@needs_torch
@pytest.mark.parametrize("threads", [0, 1, 4])
def test_tensors_of_mixed_dtypes_are_promoted_as_by_torch_in_each_batch(threads: int) -> None:
    torch = pytest.importorskip("torch")

    mixed = [torch.tensor(index if index % 4 == 3 else 1.0) for index in range(16)]
    loader: Any = ThreadLoader(mixed, 4, threads=threads, output="numpy")
    batches = list(loader)
    assert {batch.dtype for batch in batches} == {np.dtype(np.float32)}
    assert [batch[3] for batch in batches] == [3.0, 7.0, 11.0, 15.0]
