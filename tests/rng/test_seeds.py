"""`seed=` decides every batch of every epoch, and leaves the consumer's random state alone."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.process_random import random_states, seeded_globally

from threadloader import ThreadLoader, sample_seed

legacy = np.random  # its old functions are what is tested
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])


class Reads:
    """Iterable, and draws too."""

    def __iter__(self) -> Iterator[Any]:
        return ([row, random.random()] for row in range(10))


def drawn(index: int) -> Any:
    return [index, random.random(), float(legacy.rand()), sample_seed()]


def draw(_: Any) -> list[float]:
    return [random.random(), float(legacy.rand())]


def make(threads: int = 2, dataset: Any = None, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": 3, "seed": 7, "output": "numpy", "collate_fn": list, "shuffle": True}
    dataset = Acting(20, sample=drawn) if dataset is None else dataset
    return ThreadLoader(dataset, threads=threads, **(defaults | arguments))


def epochs(loader: ThreadLoader[Any], number: int = 3) -> list[Any]:
    with loader:
        return [list(loader) for _ in range(number)]


def rows(told: list[Any]) -> list[Any]:
    """Return the samples of each epoch."""
    return [[row for batch in epoch for row in batch] for epoch in told]


@contextmanager
def nothing_of_the_consumer_changes() -> Iterator[None]:
    before = random_states()
    yield
    assert random_states() == before


def test_seeds_differ_in_order_and_in_what_samples_draw(spawn: Spawn) -> None:
    seeds = [0, 1, 2, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    told = [spawn(epochs, make(2, seed=seed)).result(PATIENCE) for seed in seeds]
    assert len({str([row[0] for row in rows(loader)[0]]) for loader in told}) == len(seeds)
    drawn = [row[-1] for loader in told for epoch in rows(loader) for row in epoch]
    assert len(set(drawn)) == len(drawn)
    assert epochs(make(seed=np.int64(2))) == told[2]


@each_number_of_threads
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": None, "collate_fn": draw},
        {"dataset": range(20), "collate_fn": draw},
        {"dataset": Reads(), "shuffle": None, "transform": draw},
        {"persistent_workers": True},
        {"seed": None, "generator": np.random.default_rng(3)},
    ],
)
@pytest.mark.parametrize("breaks", [False, True])
def test_with_a_seed_or_a_generator_nothing_of_the_consumer_changes(
    arguments: dict[str, Any], breaks: bool, threads: int, spawn: Spawn
) -> None:
    if threads == 0:
        arguments = {name: arguments[name] for name in arguments if name != "persistent_workers"}

    def leave() -> None:
        with make(threads, **arguments) as loader:
            for _ in loader:
                break

    with nothing_of_the_consumer_changes():
        if breaks:
            spawn(leave).result(PATIENCE)
        else:
            spawn(epochs, make(threads, **arguments)).result(PATIENCE)


@each_number_of_threads
def test_an_epoch_that_was_broken_off_counts_and_so_do_two_at_once(
    threads: int, spawn: Spawn
) -> None:
    expected = epochs(make(0))

    def told() -> list[Any]:
        with make(threads) as loader:
            next(iter(loader))
            return [list(both) for both in zip(*zip(loader, loader, strict=True), strict=True)]

    assert spawn(told).result(PATIENCE) == expected[1:]


def test_without_a_seed_persistent_workers_begin_as_others_do(spawn: Spawn) -> None:
    def told(threads: int, **arguments: Any) -> list[Any]:
        seeded_globally(4)
        return epochs(make(threads, seed=None, **arguments))

    expected = told(0)
    kept = spawn(lambda: told(1, persistent_workers=True)).result(PATIENCE)
    assert kept[0] == expected[0]
    assert spawn(lambda: told(3, persistent_workers=True)).result(PATIENCE) == kept
    assert len({row[-1] for epoch in rows(kept) for row in epoch}) == 60


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@each_number_of_threads
def test_a_copy_goes_on_where_the_loader_was(
    copied: Callable[[Any], Any], threads: int, spawn: Spawn
) -> None:
    expected = epochs(make(0))
    loader = make(threads)
    assert spawn(epochs, copied(loader)).result(PATIENCE) == expected
    assert spawn(list, loader).result(PATIENCE) == expected[0]
    twin = copied(loader)
    assert spawn(list, twin).result(PATIENCE) == expected[1]
    assert spawn(list, loader).result(PATIENCE) == expected[1]
    assert spawn(list, twin).result(PATIENCE) == expected[2]


def test_a_loader_of_anothers_sampler_and_seed_gives_the_same_order() -> None:
    twin = make(sampler=make().sampler, shuffle=None)  # what Lightning makes of it
    assert epochs(twin) == epochs(make())
