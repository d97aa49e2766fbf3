"""Batches that are gathered from arrays equal those that are collated from the same samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE, Spawn
from support.pictures import outcomes

from threadloader import ThreadLoader, get_worker_info
from threadloader._order.samplers import (
    BatchSampler,
    KeyedSampler,
    RandomSampler,
    SequentialSampler,
)
from threadloader.datasets import ArrayDataset

each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])


class Plain:
    """The same samples, of a class that nothing is known of."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]


class Hooked:
    """Rows of an array; notes which samples were asked for one by one."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        return self.array[index]

    def gathered_arrays(self) -> Any:
        return [self.array]


def make(dataset: Any, batch_size: Any = 4, **arguments: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, batch_size, **({"threads": 0, "output": "numpy"} | arguments))


def story(loader: ThreadLoader[Any]) -> list[Any]:
    with loader:
        return [outcomes(loader) for _ in range(2)]


def assert_alike(
    spawn: Spawn, dataset: Any, build: Callable[[Any], ThreadLoader[Any]] = make
) -> list[Any]:
    """Compare a dataset's batches with those of samples that are collated one by one."""
    expected: list[Any] = spawn(story, build(Plain(dataset))).result(PATIENCE)
    assert spawn(story, build(dataset)).result(PATIENCE) == expected
    return expected


def numbers(size: int = 11, width: int = 3) -> Any:
    return np.arange(size * width, dtype=np.int32).reshape(size, width)


@each_number_of_threads
@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
@pytest.mark.parametrize("batch_size", [4, 50])
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


def filled(dtype: str, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape))
    values = np.arange(size) % 2 if dtype == "?" else np.arange(size) % 100
    return values.astype(dtype).reshape(shape)


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


class Switched(Hooked):
    """Arrays, until samples are to be drawn."""

    augmented = False

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) + (random.randrange(9) if self.augmented else 0)

    def gathered_arrays(self) -> Any:
        return None if self.augmented else super().gathered_arrays()


@each_number_of_threads
def test_arrays_that_a_method_hands_out_may_become_samples_that_draw(
    threads: int, spawn: Spawn
) -> None:
    def load() -> bool:
        dataset = Switched(numbers())
        iterator = iter(make(dataset, threads=threads, prefetch=1, seed=1, dataset_copy="shared"))
        next(iterator)
        dataset.augmented, before = True, random.getstate()
        assert len(list(iterator)) == 2
        return random.getstate() == before

    assert spawn(load).result(PATIENCE)


# Subclasses --------------------------------------------------------------------------------------


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
    names = {name: each for name, each in vars(Hooked).items() if name != "__dict__"}
    kind = type("Liar", (), names | {"gathered_arrays": hook})
    assert_alike(spawn, kind(numbers()))


# The rest of a loader ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_batches_are_split_over_threads(order: str, threads: int, spawn: Spawn) -> None:
    array = np.asarray(np.arange(2000 * 1000, dtype=np.int32).reshape(2000, 1000), order=order)
    with make(array, 800, shuffle=True, threads=threads, prefetch=1) as loader:
        for _ in range(3):
            batches = spawn(list, loader).result(PATIENCE)
            for batch in batches:
                np.testing.assert_array_equal(batch, array[batch[:, 0] // 1000])
            firsts = np.concatenate([batch[:, 0] for batch in batches])
            assert len(np.unique(firsts)) == 2000
        totals = loader.statistics().totals
    assert totals.samples == 6000
    assert totals.tickets > totals.batches


# Wrong rows --------------------------------------------------------------------------------------

SIZE = 9
ODD_INDICES = st.sampled_from(
    [True, False, np.bool_(1), 1.0, "1", None, (1,), 10**6, 2**40, -(2**40)]
)


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_is_the_indexs_own_or_the_index_is_an_error(
    data: st.DataObject, spawn: Spawn
) -> None:
    """A gather that clips would give the first or last row instead."""
    near = st.integers(-2 * SIZE, 2 * SIZE)
    kinds = st.sampled_from([int, np.int64])
    index = st.builds(lambda kind, value: kind(value), kinds, near)
    indices = data.draw(st.lists(st.lists(st.one_of(index, index, ODD_INDICES)), max_size=5))
    array = numbers(SIZE)[:, : data.draw(st.sampled_from([1, 3]))]
    dataset = array if data.draw(st.booleans()) else ArrayDataset(array[:, 0], array)
    threads = data.draw(st.sampled_from([0, 2]))
    kind = data.draw(st.sampled_from([list, tuple]))
    batches = [kind(batch) for batch in indices]

    def build(dataset: Any) -> ThreadLoader[Any]:
        return make(dataset, 1, batch_sampler=batches, threads=threads)

    (first, _) = assert_alike(spawn, dataset, build)
    assert len(first) == len(batches)


@pytest.mark.parametrize("bad", [SIZE, -SIZE - 1, 10**6, 2**62, -(2**62)])
@each_number_of_threads
def test_an_index_out_of_range_fails_its_batch_alone_and_is_named(
    bad: int, threads: int, spawn: Spawn
) -> None:
    def run(loader: ThreadLoader[Any]) -> None:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with pytest.raises(IndexError, match=str(bad)) as caught:
            next(iterator)
        assert caught.value.__notes__[0].endswith(f"batch 1, index {bad}")
        assert next(iterator).tolist() == [4, SIZE - 1]
        assert next(iterator, None) is None

    batches = [[0, 1], [2, bad], [4, -1]]
    with make(np.arange(SIZE), 1, batch_sampler=batches, threads=threads) as loader:
        spawn(run, loader).result(PATIENCE)


@pytest.mark.filterwarnings("ignore:a sample was left out")
def test_indices_that_are_told_are_plain_numbers(spawn: Spawn) -> None:
    """As they are without gathering: they go into logs and JSON."""
    asked: list[Any] = []

    def on_error(_: Exception, index: Any) -> str:
        asked.append(index)
        return "skip"

    sampler = RandomSampler(range(SIZE + 3), np.random.default_rng(1))
    with make(np.arange(SIZE), 4, sampler=sampler, on_error=on_error) as loader:
        spawn(list, loader).result(PATIENCE)
    assert {type(index) for index in asked} == {int}
    assert {type(each.index) for each in loader.statistics().skipped} == {int}


# Samplers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batches",
    [
        [[0, -1, -9], [3, 3, 3]],
        [np.array([4, 0, 8]), np.array([-1, 2]), np.array([], int)],
        [(np.int64(1), 2), [True, False], [np.bool_(1), 0]],
        [range(3), range(8, 3, -2), range(5, 12), range(-3, 0), range(0)],
        [[slice(0, 2), 1], [0, slice(0, 2)], [[0, 1], [2, 3]], [None], ["a"], [1.0], [(0, 0)]],
        [np.arange(4, dtype=np.uint8), np.arange(4, dtype=np.int16), np.arange(4.0)],
        [[np.uint8(3), -1], [np.int32(0), 8, np.uint8(7)], [np.uint8(8)] * 40, [np.int8(-9)] * 20],
        [np.arange(6).reshape(2, 3), "12", {3, 4}, {5: 6}, iter([1, 2]), 3],
        [[0, 2**63], [-(2**63) - 1, 1], [2**64], [10**30]],
        [],
        [[]],
    ],
    ids=lambda batches: str(batches)[:40],
)
@each_number_of_threads
def test_what_batch_samplers_give(batches: Any, threads: int, spawn: Spawn) -> None:
    class Once:
        def __iter__(self) -> Iterator[Any]:
            return (iter([1, 2]) if hasattr(b, "__next__") else b for b in batches)

    def build(dataset: Any) -> ThreadLoader[Any]:
        return make(dataset, 1, batch_sampler=Once(), threads=threads)

    assert_alike(spawn, numbers(SIZE), build)
    assert_alike(spawn, ArrayDataset(np.arange(SIZE), numbers(SIZE)), build)


@pytest.mark.parametrize("size", [1023, 1025, 2050])
@pytest.mark.parametrize("batch_size", [8, 1000])
@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, KeyedSampler])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_index_comes_once_around_the_spans_of_a_known_sampler(
    drop_last: bool, kind: Any, batch_size: int, size: int
) -> None:
    def seeded() -> Any:
        sampler = kind(range(size))
        if kind is not SequentialSampler:
            sampler.generator = np.random.default_rng(3)
        return sampler

    sampler = BatchSampler(seeded(), batch_size, drop_last)
    expected = list(sampler)
    loader = make(np.arange(size), 1, batch_sampler=BatchSampler(seeded(), batch_size, drop_last))
    assert [batch.tolist() for batch in loader] == expected


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
