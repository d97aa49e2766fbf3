"""Batches that are gathered from arrays equal those that are collated from the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gathering import Hooked, assert_alike, make, numbers
from support.patience import PATIENCE

from threadloader.datasets import ArrayDataset

if TYPE_CHECKING:
    from support.patience import Spawn

    from threadloader import ThreadLoader


each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])


@each_number_of_threads
@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 50])
def test_no_sample_is_asked_for_one_by_one(
    batch_size: int, shuffle: Any, threads: int, spawn: Spawn
) -> None:
    """But the first, whose structure is the batch's; once a batch has told of its layout."""
    dataset = Hooked(numbers())
    with make(dataset, batch_size, shuffle=shuffle, threads=threads) as loader:
        spawn(list, loader).result(PATIENCE)
        dataset.asked.clear()
        batches = spawn(list, loader).result(PATIENCE)
    assert set(dataset.asked) <= {0}
    assert sorted(np.concatenate(batches)[:, 0].tolist()) == dataset.array[:, 0].tolist()


def variants(array: Any) -> dict[str, Any]:
    """Return arrays of equal rows that lie differently in memory."""
    raw = bytearray(array.nbytes + 1)
    odd = np.frombuffer(raw, np.uint8, offset=1)[: array.nbytes].view(array.dtype)
    odd = odd.reshape(array.shape)
    odd[...] = array
    wide = np.repeat(array, 2, axis=0)[::2]
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "C": np.ascontiguousarray(array),
        "Fortran": np.asfortranarray(array),
        "strided": wide,
        "reversed": np.ascontiguousarray(array[::-1])[::-1],
        "unaligned": odd,
        "read-only": frozen,
        "byte-swapped": array.astype(array.dtype.newbyteorder()),
        "broadcast": np.broadcast_to(array[:1], array.shape),
    }


DTYPES = (*"?bBhHiIlLqQefdgFDGO", "M8[s]", "m8[ms]", "U3", "S3", "V4")


def filled(dtype: str, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape))
    values = np.arange(size) % 2 if dtype == "?" else np.arange(size) % 100
    if dtype == "V4":
        return values.astype(np.int32).view("V4").reshape(shape)
    return values.astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (7, 2), (7, 1, 3)], ids=str)
def test_any_dtype_and_memory(dtype: str, shape: tuple[int, ...], spawn: Spawn) -> None:
    """What has no equal of torch's gives the same array, or the same error."""
    array = filled(dtype, shape)
    for variant in [array] if dtype in ("O", "V4") else variants(array).values():
        assert_alike(spawn, variant)
        assert_alike(spawn, ArrayDataset(variant, array))


@pytest.mark.parametrize("kind", ["npy", "1-D", "odd offset", "copy on write", "slice"])
@each_number_of_threads
def test_memory_maps(kind: str, threads: int, tmp_path: Any, spawn: Spawn) -> None:
    rows = numbers(40, 5).astype(np.float32)
    if kind == "odd offset":
        path = tmp_path / "rows.bin"
        path.write_bytes(b"xyz" + rows.tobytes())
        array: Any = np.memmap(path, np.float32, "r", offset=3, shape=rows.shape)
        assert not array.flags.aligned
    else:
        rows = rows[:, 0] if kind == "1-D" else rows
        np.save(tmp_path / "rows.npy", rows)
        array = np.load(tmp_path / "rows.npy", mmap_mode="c" if "copy" in kind else "r")
        array = array[3:33] if kind == "slice" else array
    assert type(array) is np.memmap
    for shuffle in (False, True):

        def build(dataset: Any, shuffle: bool = shuffle) -> ThreadLoader[Any]:
            return make(dataset, 7, shuffle=shuffle, threads=threads, seed=3)

        assert_alike(spawn, array, build)
        assert_alike(spawn, ArrayDataset({"x": array, "y": rows[: len(array)]}), build)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_arrays_in_any_structure_and_order(data: st.DataObject, spawn: Spawn) -> None:
    size = data.draw(st.integers(1, 20), "size")

    def array() -> Any:
        shape = (size, *data.draw(st.lists(st.integers(0, 3), max_size=2)))
        made = filled(data.draw(st.sampled_from("?bHiqefdFDg")), shape)
        return variants(made)[data.draw(st.sampled_from(sorted(variants(made))))]

    structure = data.draw(st.sampled_from(["bare", "one", "two", "dict"]), "structure")
    if structure == "bare":
        dataset: Any = array()
    elif structure == "dict":
        dataset = ArrayDataset({"b": array(), "a": array(), 3: array()})
    else:
        dataset = ArrayDataset(*[array() for _ in range(1 + (structure == "two"))])
    arguments = {
        "batch_size": data.draw(st.sampled_from([1, 2, 3, 7, 20, 100, None])),
        "shuffle": data.draw(st.sampled_from([False, True, "keyed"])),
        "threads": data.draw(st.sampled_from([0, 1, 3])),
        "collate_fn": data.draw(st.sampled_from([None, None, list])),
    }
    if arguments["batch_size"] is not None:
        arguments["drop_last"] = data.draw(st.booleans())
    seed = data.draw(st.sampled_from([None, 4]))

    def build(dataset: Any) -> ThreadLoader[Any]:
        given = {"seed": 4} if seed else {"generator": np.random.default_rng(7)}
        return make(dataset, **arguments, **given)

    assert_alike(spawn, dataset, build)


# Subclasses --------------------------------------------------------------------------------------


class Doubled(ArrayDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) * 2


class Inheriting(ArrayDataset):
    """Overrides nothing, but is a class that nobody knows."""


class DoubledArray(np.ndarray):
    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self).__getitem__(index) * 2


class InheritedHook(Hooked):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) * 2


@each_number_of_threads
@pytest.mark.parametrize(
    ("dataset", "factor"),
    [
        (Doubled(numbers()), 2),
        (Inheriting(numbers()), 1),
        (numbers().view(DoubledArray), 2),
        (InheritedHook(numbers()), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_subclass_has_its_own_getitem(
    dataset: Any, factor: int, threads: int, spawn: Spawn
) -> None:
    with make(dataset, threads=threads, shuffle=True) as loader:
        batches = np.concatenate(spawn(list, loader).result(PATIENCE))
    assert sorted(batches[:, 0].tolist()) == (numbers()[:, 0] * factor).tolist()


@pytest.mark.parametrize(
    "hook",
    [
        lambda _: [],
        lambda self: [self.array[:3]],
        lambda self: [self.array, self.array],
        lambda self: [self.array.astype(np.float64)],
        lambda self: [self.array[:, :1]],
        lambda _: ["text"],
        lambda self: self.missing,
    ],
    ids=["none", "shorter", "two", "other dtype", "other shape", "no array", "raises"],
)
def test_arrays_that_do_not_fit_the_samples_are_not_gathered(hook: Any, spawn: Spawn) -> None:
    kind = type("Liar", (), dict(vars(Hooked)) | {"gathered_arrays": hook})
    assert_alike(spawn, kind(numbers()))


# The rest of a loader ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_batches_are_split_over_threads(order: str, threads: int, spawn: Spawn) -> None:
    array = np.asarray(np.arange(2000 * 2000, dtype=np.int32).reshape(2000, 2000), order=order)
    with make(array, 800, shuffle=True, threads=threads, prefetch=1) as loader:
        for _ in range(3):
            batches = spawn(list, loader).result(PATIENCE)
            for batch in batches:
                np.testing.assert_array_equal(batch, array[batch[:, 0] // 2000])
            firsts = np.concatenate([batch[:, 0] for batch in batches])
            assert len(np.unique(firsts)) == 2000
        totals = loader.statistics().totals
    assert totals.samples == 6000
    assert totals.tickets > totals.batches


def test_a_batch_that_is_kept_stays_and_a_changed_one_changes_no_array(spawn: Spawn) -> None:
    array = numbers()
    array.flags.writeable = False
    with make(array, threads=2, prefetch=1) as loader:
        kept = [batch for _ in range(3) for batch in spawn(list, loader).result(PATIENCE)]
    np.testing.assert_array_equal(np.concatenate(kept), np.concatenate([array] * 3))
    for batch in kept:
        assert batch.flags.writeable
        batch[...] = -1
    np.testing.assert_array_equal(array, numbers())
