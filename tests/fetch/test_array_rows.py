"""Batches that are gathered from arrays equal those that are collated from the same samples."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.pictures import outcomes, picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_device import FakeDevice
from support.patience import PATIENCE
from support.resuming import after, state_after

from threadloader import ThreadLoader, get_worker_info
from threadloader._order.samplers import (
    BatchSampler,
    KeyedSampler,
    RandomSampler,
    SequentialSampler,
)
from threadloader.datasets import ArrayDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    Spawn = Callable[..., Future[Any]]


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


# What is gathered --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("inner", [list, np.array, tuple, lambda indices: iter([indices])])
def test_indices_of_users_samplers_are_gathered_too(inner: Any, spawn: Spawn) -> None:
    dataset = Hooked(numbers())
    sampler = [3, 0, 10, 3, 7]
    batch_sampler = [inner(sampler)] if inner in (list, np.array, tuple) else [sampler]
    with make(dataset, 1, batch_sampler=batch_sampler) as loader:
        (batch,) = spawn(list, loader).result(PATIENCE)
    np.testing.assert_array_equal(batch, dataset.array[sampler])
    assert set(dataset.asked) <= {0}


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


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.zeros(0),
        np.zeros((5, 0)),
        np.zeros((5, 2, 0), np.int8),
        np.zeros((5, 0, 2), np.float16),
        np.zeros(1),
    ],
    ids=lambda array: str(array.shape),
)
@each_number_of_threads
def test_empty_arrays_and_empty_rows(array: Any, threads: int, spawn: Spawn) -> None:
    assert_alike(spawn, array, lambda dataset: make(dataset, 2, threads=threads))
    assert_alike(spawn, ArrayDataset({"a": array}), lambda dataset: make(dataset, 2))


def test_a_scalar_has_no_rows_with_or_without_gathering(spawn: Spawn) -> None:
    for scalar in (np.array(3), np.float64(3)):
        assert_alike(spawn, scalar, lambda dataset: make(dataset, 1, batch_sampler=[[0], [0, 1]]))


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


# Wrong rows --------------------------------------------------------------------------------------

SIZE = 9
ODD_INDICES = st.sampled_from(
    [True, False, np.bool_(1), 1.0, "1", None, (1,), 10**6, 2**40, -(2**40)]
)


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 2**64, 10**30])
def test_an_index_beyond_64_bits_is_the_error_it_is_without_gathering(
    bad: int, spawn: Spawn
) -> None:
    assert_alike(
        spawn, np.arange(SIZE), lambda dataset: make(dataset, 1, batch_sampler=[[0, bad], [1]])
    )


@pytest.mark.filterwarnings("ignore:a sample was left out")
@pytest.mark.parametrize("bad", [SIZE, -SIZE - 1, 2**63, -(2**64)])
def test_an_index_out_of_range_can_be_left_out(bad: int, spawn: Spawn) -> None:
    batches = [[0, 1], [2, bad], [4, -1]]
    with make(np.arange(SIZE), 1, batch_sampler=batches, on_error="skip") as loader:
        lists = spawn(lambda: [batch.tolist() for batch in loader]).result(PATIENCE)
    assert lists == [[0, 1], [2], [4, SIZE - 1]]
    assert [each.index for each in loader.statistics().skipped] == [bad]


@each_number_of_threads
@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, KeyedSampler])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_known_sampler_of_a_longer_dataset_is_out_of_range_in_its_place(
    drop_last: bool, kind: Any, threads: int, spawn: Spawn
) -> None:
    def build(dataset: Any) -> ThreadLoader[Any]:
        sampler = kind(range(SIZE + 6))
        if kind is not SequentialSampler:
            sampler.generator = np.random.default_rng(1)
        return make(dataset, 4, sampler=sampler, drop_last=drop_last, threads=threads)

    (first, _) = assert_alike(spawn, numbers(SIZE), build)
    assert any(outcome[0] is IndexError for outcome in first)


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
        [np.arange(6).reshape(2, 3), "12", {3, 4}, {5: 6}, iter([1, 2]), 3],
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


@pytest.mark.parametrize("sampler", [[3, -1, 0, 40, 2], np.array([1, 8, 8, 8]), [True, False, 1]])
@pytest.mark.parametrize("batch_size", [None, 1, 2, 3])
def test_what_samplers_give(batch_size: Any, sampler: Any, spawn: Spawn) -> None:
    for dataset in (numbers(SIZE), ArrayDataset({"a": np.arange(SIZE)})):
        assert_alike(spawn, dataset, lambda dataset: make(dataset, batch_size, sampler=sampler))


@pytest.mark.parametrize(
    "batch",
    [[np.uint8(3), -1], [np.int32(0), 8, np.uint8(7)], [np.uint8(8)] * 40, [np.int8(-9)] * 20],
    ids=["negative after unsigned", "mixed", "sum beyond uint8", "sum beyond int8"],
)
def test_narrow_numbers_are_indices_too(batch: Any, spawn: Spawn) -> None:
    """Adding them up, to compare samplers, must neither raise nor warn."""
    for dataset in (np.arange(SIZE), Plain(np.arange(SIZE))):
        with make(dataset, 1, batch_sampler=[batch]) as loader:
            (told,) = spawn(list, loader).result(PATIENCE)
        assert told.tolist() == [int(index) % SIZE for index in batch]


def test_a_batch_sampler_that_fills_one_list_again_and_again_is_read_in_time(spawn: Spawn) -> None:
    class Reusing:
        def __iter__(self) -> Iterator[list[int]]:
            batch = [0, 0]
            for start in range(0, 8, 2):
                batch[:] = [start, start + 1]
                yield batch

    assert_alike(
        spawn, numbers(SIZE), lambda dataset: make(dataset, 1, batch_sampler=Reusing(), threads=2)
    )


@pytest.mark.parametrize("size", [8, 1023, 1025, 2050])
@pytest.mark.parametrize("batch_size", [8, 1000, 3000])
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


@each_number_of_threads
@pytest.mark.parametrize("shuffle", [True, "keyed"])
def test_the_random_state_afterwards_is_the_same(shuffle: Any, threads: int, spawn: Spawn) -> None:
    def run(dataset: Any) -> Any:
        np.random.seed(11)  # noqa: NPY002
        with make(dataset, shuffle=shuffle, threads=threads) as loader:
            told = outcomes(loader), outcomes(loader)
        return told, np.random.random()  # noqa: NPY002

    array = numbers()
    assert spawn(run, array).result(PATIENCE)[1] == spawn(run, Plain(array)).result(PATIENCE)[1]


# Resuming ----------------------------------------------------------------------------------------


@each_number_of_threads
@pytest.mark.parametrize("order", ["sequential", "shuffled", "keyed", "generator", "user"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_it_goes_on_in_the_middle(drop_last: bool, order: str, threads: int, spawn: Spawn) -> None:
    size = 19

    def build(threads: int) -> ThreadLoader[Any]:
        arguments: dict[str, Any] = {"seed": 5}
        if order == "generator":
            arguments = {"shuffle": True, "generator": np.random.default_rng(2)}
        elif order == "user":
            arguments["sampler"] = [(7 * index) % size for index in range(size)]
        elif order != "sequential":
            arguments["shuffle"] = "keyed" if order == "keyed" else True
        return make(np.arange(size), 4, threads=threads, drop_last=drop_last, **arguments)

    def lists(epochs: list[Any]) -> Any:
        return [[batch.tolist() for batch in epoch] for epoch in epochs]

    with build(2) as loader:
        first, second = lists([spawn(list, loader).result(PATIENCE) for _ in range(2)])
    for done in range(len(first) + 1):
        state = spawn(state_after, build(1), done).result(PATIENCE)
        rest = lists(spawn(after, build(threads), state, 2).result(PATIENCE))
        assert rest == [first[done:], second]


# What the user changes ---------------------------------------------------------------------------

each_way_to_share = pytest.mark.parametrize(
    "crew",
    [
        {"threads": 0},
        {"threads": 2},
        {"threads": 2, "dataset_copy": "shared"},
        {"threads": 2, "dataset_copy": "shared", "persistent_workers": True},
    ],
    ids=["inline", "copies", "shared", "persistent"],
)


@each_way_to_share
def test_rows_that_are_written_between_epochs_are_seen(crew: dict[str, Any], spawn: Spawn) -> None:
    dataset = ArrayDataset(numbers())
    with make(dataset, **crew) as loader:
        for add in (0, 100):
            dataset._arrays[0][...] += add  # noqa: SLF001  # the array that the user has, too
            batches = spawn(list, loader).result(PATIENCE)
            np.testing.assert_array_equal(np.concatenate(batches), numbers() + add)


@each_way_to_share
@pytest.mark.parametrize(
    "other",
    [numbers() + 100, numbers().astype(np.float64), numbers(11, 5), numbers(11, 1)[:, 0]],
    ids=["values", "dtype", "width", "dimensions"],
)
def test_an_array_that_is_replaced_between_epochs_is_seen(
    other: Any, crew: dict[str, Any], spawn: Spawn
) -> None:
    dataset = Hooked(numbers())
    with make(dataset, **crew) as loader:
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


def test_a_plain_dataset_may_become_an_array(spawn: Spawn) -> None:
    array = numbers()
    with make(Plain(array), dataset_copy=lambda _: array, threads=2, shuffle=True) as loader:
        batches = np.concatenate(spawn(list, loader).result(PATIENCE))
    assert sorted(batches[:, 0].tolist()) == array[:, 0].tolist()


def test_workers_may_have_arrays_of_different_dtypes(spawn: Spawn) -> None:
    lock, dtypes = Lock(), iter([np.int32, np.float32, np.int32])

    def copy(dataset: Any) -> Any:
        with lock:
            return dataset.astype(next(dtypes))

    with make(numbers(400), dataset_copy=copy, threads=3) as loader:
        batches = spawn(list, loader).result(PATIENCE)
    np.testing.assert_array_equal(np.concatenate(batches), numbers(400))


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


def test_masked_arrays_take_the_ordinary_path(spawn: Spawn) -> None:
    assert_alike(spawn, np.ma.masked_array(np.arange(6.0), [0, 1, 0, 0, 1, 0]))


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


@each_number_of_threads
def test_a_collate_function_is_given_rows(threads: int, spawn: Spawn) -> None:
    given: list[Any] = []

    def collate(samples: Any) -> Any:
        given.append(picture(samples))
        return len(samples)

    dataset = ArrayDataset({"a": numbers(), "b": np.arange(11, dtype=np.float16)})

    def run(dataset: Any) -> Any:
        given.clear()
        with make(dataset, shuffle=True, seed=2, threads=threads, collate_fn=collate) as loader:
            lengths = spawn(list, loader).result(PATIENCE)
        return lengths, sorted(given, key=str)

    assert run(dataset) == run(Plain(dataset))


@each_number_of_threads
@pytest.mark.parametrize("shuffle", [False, "keyed"])
def test_batches_reach_a_device(shuffle: Any, threads: int, spawn: Spawn) -> None:
    device = FakeDevice()
    dataset = ArrayDataset(numbers(24), np.arange(24))
    with make(dataset, 5, shuffle=shuffle, device=device, threads=threads) as loader:
        for _ in range(2):
            batches = spawn(lambda: [[np.array(x) for x in b] for b in loader]).result(PATIENCE)
            rows = np.concatenate([batch[0] for batch in batches])
            order = np.concatenate([batch[1] for batch in batches])
            np.testing.assert_array_equal(rows, numbers(24)[order])
            assert sorted(order.tolist()) == list(range(24))
    assert device.broken == []


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


# ArrayDataset itself -----------------------------------------------------------------------------


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
        (({},), ValueError, "at least one"),
        ((np.zeros(3), np.zeros(4)), ValueError, r"\[3, 4\]"),
        (({"a": np.zeros(3), "b": np.zeros(4)},), ValueError, r"\[3, 4\]"),
        ((np.array(3),), TypeError, "array 0"),
        ((np.zeros(3), 5), TypeError, "array 1"),
        ((np.zeros(3), {"a": np.zeros(3)}), TypeError, "array 1"),
        ((None,), TypeError, "array 0"),
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


@pytest.mark.parametrize("index", [11, -12])
def test_an_index_out_of_range_of_the_dataset_is_an_index_error(index: int) -> None:
    for dataset in (ArrayDataset(numbers()), ArrayDataset({"a": numbers()})):
        with pytest.raises(IndexError, match=str(index)):
            dataset[index]


def test_an_array_dataset_tells_what_it_is() -> None:
    rows, labels = np.zeros((3, 2, 4), np.float32), np.zeros(3, np.uint8)
    assert repr(ArrayDataset(rows)) == "ArrayDataset(float32 (3, 2, 4))"
    assert repr(ArrayDataset({"x": rows, "y": labels})) == (
        "ArrayDataset('x': float32 (3, 2, 4), 'y': uint8 (3,))"
    )
