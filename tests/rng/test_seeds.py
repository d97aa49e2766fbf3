"""`seed=` decides every batch of every epoch, and leaves the consumer's random state alone."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE
from support.streams import each_output

from threadloader import ThreadLoader
from threadloader._rng.streams import sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

legacy = np.random  # its old functions are what is tested
HAS_TORCH = importlib.util.find_spec("torch") is not None
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])


class EpochDraws:
    """Sample ``i`` is ``i`` and what it draws."""

    def __init__(self, size: int = 20) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return [index, random.random(), float(legacy.rand()), sample_seed()]


class Reads:
    """Iterable, and draws too."""

    def __iter__(self) -> Iterator[Any]:
        return ([row, random.random()] for row in range(10))


def as_given(samples: list[Any]) -> list[Any]:
    return samples


def draw(_: Any) -> list[float]:
    return [random.random(), float(legacy.rand())]


def make(threads: int = 2, dataset: Any = None, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": 3, "seed": 7, "output": "numpy", "collate_fn": as_given}
    dataset = EpochDraws() if dataset is None else dataset
    return ThreadLoader(dataset, threads=threads, **(defaults | arguments))


def epochs(loader: ThreadLoader[Any], number: int = 3) -> list[Any]:
    with loader:
        return [list(loader) for _ in range(number)]


def seeded_globally(seed: int) -> None:
    """Seed what decides order and streams where there is no ``seed=``."""
    if HAS_TORCH:
        import torch  # noqa: PLC0415  # optional

        torch.manual_seed(seed)
    else:
        legacy.seed(seed)


def states() -> list[Any]:
    """Return the consumer's random state, all of it."""
    kind, words, *rest = legacy.get_state()
    told = [random.getstate(), kind, words.tolist(), rest]
    if HAS_TORCH:
        import torch  # noqa: PLC0415  # optional

        told.append(torch.get_rng_state().tolist())
    return told


@contextmanager
def nothing_of_the_consumer_changes() -> Iterator[None]:
    before = states()
    yield
    assert states() == before


@pytest.mark.parametrize("shuffle", [False, True])
def test_all_epochs_are_the_same_for_all_numbers_of_threads(shuffle: bool, spawn: Spawn) -> None:
    expected = epochs(make(0, shuffle=shuffle))
    assert expected[0] != expected[1] != expected[2] != expected[0]
    for threads in (1, 2, 7, 32):
        got = spawn(epochs, make(threads, shuffle=shuffle)).result(PATIENCE)
        assert got == expected
    for threads in (1, 3):
        loader = make(threads, shuffle=shuffle, persistent_workers=True)
        assert spawn(epochs, loader).result(PATIENCE) == expected


@each_number_of_threads
def test_epochs_differ_in_order_and_in_what_samples_draw(threads: int, spawn: Spawn) -> None:
    told = spawn(epochs, make(threads, shuffle=True)).result(PATIENCE)
    rows = [[row for batch in epoch for row in batch] for epoch in told]
    assert len({str([row[0] for row in epoch]) for epoch in rows}) == 3
    assert all(sorted(row[0] for row in epoch) == list(range(20)) for epoch in rows)
    assert len({row[-1] for epoch in rows for row in epoch}) == 60


def test_seeds_differ_in_order_and_in_what_samples_draw(spawn: Spawn) -> None:
    seeds = [0, 1, 2, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    told = [spawn(epochs, make(2, seed=seed, shuffle=True)).result(PATIENCE) for seed in seeds]
    first = [[row for batch in epoch[0] for row in batch] for epoch in told]
    assert len({str([row[0] for row in rows]) for rows in first}) == len(seeds)
    drawn = [row[-1] for loader in told for epoch in loader for batch in epoch for row in batch]
    assert len(set(drawn)) == len(drawn)


@settings(max_examples=30)
@given(
    seed=st.integers(0, (1 << 64) - 1),
    size=st.integers(1, 30),
    threads=st.integers(1, 5),
    shuffle=st.booleans(),
)
def test_two_loaders_with_one_seed_give_the_same(
    seed: int, size: int, threads: int, shuffle: bool
) -> None:
    def told(threads: int) -> list[Any]:
        loader = make(threads, EpochDraws(size), seed=seed, shuffle=shuffle)
        return epochs(loader, 2)

    random.seed(sample_seed())
    seeded_globally(sample_seed() >> 32)
    assert told(threads) == told(0)


@each_number_of_threads
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"shuffle": True},
        {"batch_size": None, "collate_fn": draw},
        {"dataset": range(20), "shuffle": True, "collate_fn": draw},
        {"dataset": Reads(), "transform": draw},
        {"persistent_workers": True, "shuffle": True},
    ],
)
def test_with_a_seed_nothing_of_the_consumer_changes(
    arguments: dict[str, Any], threads: int, spawn: Spawn
) -> None:
    if threads == 0:
        arguments = {name: arguments[name] for name in arguments if name != "persistent_workers"}
    with nothing_of_the_consumer_changes():
        spawn(epochs, make(threads, **arguments)).result(PATIENCE)


@each_number_of_threads
def test_breaking_off_changes_nothing_of_the_consumer(threads: int, spawn: Spawn) -> None:
    loader = make(threads, shuffle=True)

    def leave() -> None:
        for _ in loader:
            break
        loader.close()

    with nothing_of_the_consumer_changes():
        spawn(leave).result(PATIENCE)


@each_number_of_threads
def test_an_epoch_that_was_broken_off_counts(threads: int, spawn: Spawn) -> None:
    def told() -> list[Any]:
        with make(threads, shuffle=True) as loader:
            next(iter(loader))
            return [list(loader), list(loader)]

    assert spawn(told).result(PATIENCE) == epochs(make(0, shuffle=True))[1:]


@each_number_of_threads
def test_an_iterable_and_its_transform_follow_the_seed(threads: int, spawn: Spawn) -> None:
    def told(threads: int, seed: int) -> list[Any]:
        def transform(row: Any) -> Any:
            return row, draw(row)

        return epochs(make(threads, Reads(), seed=seed, transform=transform))

    expected = told(0, 1)
    assert expected[0] != expected[1]
    assert spawn(told, threads, 1).result(PATIENCE) == expected
    assert spawn(told, threads, 2).result(PATIENCE) != expected


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@each_number_of_threads
def test_a_copy_goes_on_where_the_loader_was(
    copied: Callable[[Any], Any], threads: int, spawn: Spawn
) -> None:
    expected = epochs(make(0, shuffle=True))
    loader = make(threads, shuffle=True)
    assert spawn(epochs, copied(loader)).result(PATIENCE) == expected
    assert spawn(list, loader).result(PATIENCE) == expected[0]
    twin = copied(loader)
    assert spawn(list, twin).result(PATIENCE) == expected[1]
    assert spawn(list, loader).result(PATIENCE) == expected[1]
    assert spawn(list, twin).result(PATIENCE) == expected[2]


def test_a_seed_excludes_a_generator() -> None:
    with pytest.raises(ValueError, match="seed and generator"):
        make(seed=1, generator=np.random.default_rng(0))


@pytest.mark.parametrize("seed", [-1, -(1 << 70)])
def test_a_negative_seed_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        make(seed=seed)


@pytest.mark.parametrize("seed", [1.0, "1", [1], np.array([1, 2]), object()])
def test_a_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with pytest.raises(TypeError, match="seed"):
        make(seed=seed)


@each_output
def test_collated_batches_follow_the_seed(output: str, spawn: Spawn) -> None:
    if output == "torch" and not HAS_TORCH:
        pytest.skip("no torch")

    def told(threads: int) -> list[Any]:
        loader = make(threads, output=output, collate_fn=None, shuffle=True)
        return [np.asarray(column).tolist() for batch in loader for column in batch]

    expected = told(0)
    for threads in (1, 3):
        assert spawn(told, threads).result(PATIENCE) == expected


@each_number_of_threads
def test_without_a_seed_the_global_one_decides_order_and_streams(
    threads: int, spawn: Spawn
) -> None:
    def told(threads: int, seed: int) -> list[Any]:
        seeded_globally(seed)
        random.seed(sample_seed())  # has no say in it
        return epochs(make(threads, shuffle=True, seed=None))

    expected = told(0, 1)
    assert expected[0] != expected[1]
    assert spawn(told, threads, 1).result(PATIENCE) == expected
    assert spawn(told, threads, 2).result(PATIENCE) != expected


@each_number_of_threads
def test_a_numpy_generator_decides_order_and_streams(threads: int, spawn: Spawn) -> None:
    def told(threads: int, seed: int) -> list[Any]:
        generator = np.random.default_rng(seed)
        with nothing_of_the_consumer_changes():
            return epochs(make(threads, shuffle=True, seed=None, generator=generator))

    expected = told(0, 1)
    assert spawn(told, threads, 1).result(PATIENCE) == expected
    assert spawn(told, threads, 2).result(PATIENCE) != expected


@each_number_of_threads
def test_without_a_seed_python_random_is_never_touched(threads: int, spawn: Spawn) -> None:
    before = random.getstate()
    spawn(epochs, make(threads, shuffle=True, seed=None)).result(PATIENCE)
    assert random.getstate() == before


def test_without_a_seed_persistent_workers_begin_as_others_do(spawn: Spawn) -> None:
    def told(threads: int, **arguments: Any) -> list[Any]:
        seeded_globally(4)
        return epochs(make(threads, shuffle=True, seed=None, **arguments))

    expected = told(0)
    kept = spawn(lambda: told(1, persistent_workers=True)).result(PATIENCE)
    assert kept[0] == expected[0]
    assert spawn(lambda: told(3, persistent_workers=True)).result(PATIENCE) == kept
    assert len({row[-1] for epoch in kept for batch in epoch for row in batch}) == 60


@each_number_of_threads
def test_two_iterators_at_once_are_two_epochs(threads: int, spawn: Spawn) -> None:
    expected = epochs(make(0, shuffle=True), 2)

    def told() -> list[Any]:
        with make(threads, shuffle=True) as loader:
            first, second = [], []
            for one, two in zip(loader, loader, strict=True):
                first.append(one)
                second.append(two)
            return [first, second]

    assert spawn(told).result(PATIENCE) == expected


def test_random_and_numpy_draw_different_numbers_in_a_sample() -> None:
    drawn = list(make(0, range(50), batch_size=None, collate_fn=draw))
    assert all(one != other for one, other in drawn)


@pytest.mark.parametrize("seed", [1 << 64, (1 << 70) + 5])
def test_a_seed_of_more_than_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=str(seed)):
        make(seed=seed)


def test_a_seed_may_be_numpy_s() -> None:
    loader = make(seed=np.int64(3), shuffle=True)
    assert epochs(loader, 1) == epochs(make(seed=3, shuffle=True), 1)


def test_a_loader_of_anothers_sampler_and_seed_gives_the_same_order() -> None:
    loader = make(shuffle=True)
    twin = make(sampler=loader.sampler)  # what Lightning makes of it
    assert epochs(twin) == epochs(make(shuffle=True))


def test_a_shallow_copy_counts_its_own_epochs() -> None:
    loader = make(shuffle=True)
    twin = copy.copy(loader)
    assert epochs(loader) == epochs(twin)


def test_what_was_replaced_before_an_epoch_stays_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epochs(make(0))

    def half() -> float:
        return 0.5

    monkeypatch.setattr(random, "random", half)
    monkeypatch.setattr(legacy, "rand", half)
    epochs(make(0))
    assert random.random is legacy.rand is half


def test_batches_and_single_samples_have_one_order() -> None:  # without torch
    one = list(make(0, range(20), batch_size=None, collate_fn=None, shuffle=True))
    many = [int(row) for batch in make(0, range(20), shuffle=True) for row in batch]
    assert [int(row) for row in one] == many
