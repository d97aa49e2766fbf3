"""A fresh loader that loads a state delivers the rest of the epoch bit for bit: map-style data."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.acting import Acting, Gated
from support.orders import Counted
from support.patience import PATIENCE, Spawn
from support.process_random import random_states, seeded_globally
from support.resuming import after, as_json, check_each_state, state_after

from threadloader import ThreadLoader, sample_rng

legacy = np.random  # its old functions are what is tested
each_number_of_threads = pytest.mark.parametrize("threads", [0, 3])


class Augmented:
    """Sample ``i`` is ``i`` and what it draws; keeps the indices that it was asked for."""

    def __init__(self, size: int = 10) -> None:
        self.size = size
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        drawn = [random.random(), float(legacy.rand()), float(sample_rng().random())]
        return [int(index), *drawn]


def failing(error: type[BaseException]) -> Acting:
    """Return samples that are their indices, but one is an error."""

    def fail(index: int) -> None:
        if index == 4:
            raise error(index)

    return Acting(10, fail)


def as_given(samples: Any) -> Any:
    return samples


def collated_at_random(samples: Any) -> Any:
    return [*samples, random.random()]


def make(source: str = "seed", threads: int = 2, **arguments: Any) -> ThreadLoader[Any]:
    sources: dict[str, dict[str, Any]] = {
        "seed": {"seed": 7},
        "generator": {"generator": np.random.default_rng(7)},
        "process": {},
    }
    defaults: dict[str, Any] = {
        "batch_size": 3,
        "output": "numpy",
        "collate_fn": as_given,
        "shuffle": True,
    }
    if "dataset" not in arguments:
        arguments["dataset"] = Augmented()
    return ThreadLoader(threads=threads, **{**defaults, **sources[source], **arguments})


def check(source: str, saving: int, resuming: int, arguments: dict[str, Any]) -> None:
    def seeded(seed: int, threads: int) -> ThreadLoader[Any]:
        seeded_globally(seed)
        return make(source, threads, **arguments)

    # The process decides a whole epoch only while it is going on.
    decided = (lambda state: int(state["begun"])) if source == "process" else None
    check_each_state(lambda: seeded(1, saving), lambda: seeded(2, resuming), decided)


@pytest.mark.parametrize(
    ("source", "saving", "resuming", "arguments"),
    [
        *(
            (source, *threads, {"shuffle": shuffle})
            for source in ("seed", "generator", "process")
            for shuffle in (False, True, "keyed")
            for threads in ((0, 7), (3, 0))
        ),
        *(
            ("seed", 2, 3, arguments)
            for arguments in (
                {"batch_size": None},
                {"drop_last": True},
                {"drop_last": True, "shuffle": "keyed"},
                {"batch_size": 10},
                {"dataset": range(0), "shuffle": False},
                {"prefetch": 1},
                {"in_order": False, "dataset": range(3)},
            )
        ),
        *(
            (source, *threads, arguments)
            for source in ("seed", "process")
            for threads, arguments in (
                ((1, 3), {"prefetch": 16, "collate_fn": collated_at_random}),
                ((3, 1), {"persistent_workers": True}),
            )
        ),
    ],
)
def test_from_every_state_the_rest_and_all_later_epochs_are_the_same(
    source: str, saving: int, resuming: int, arguments: dict[str, Any], spawn: Spawn
) -> None:
    spawn(check, source, saving, resuming, arguments).result(PATIENCE)


@each_number_of_threads
@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
def test_a_resumed_epoch_draws_nothing_from_the_process(
    shuffle: Any, threads: int, spawn: Spawn
) -> None:
    state = spawn(state_after, make("process", threads, shuffle=shuffle), 2).result(PATIENCE)
    before = random_states()
    spawn(after, make("process", threads, shuffle=shuffle), state, 1).result(PATIENCE)
    assert random_states() == before


@each_number_of_threads
@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
def test_no_sample_is_read_again(shuffle: Any, threads: int, spawn: Spawn) -> None:
    def make_with(data: Augmented) -> ThreadLoader[Any]:
        return make(threads=threads, shuffle=shuffle, dataset=data, dataset_copy="shared")

    delivered = [row[0] for batch in make(threads=0, shuffle=shuffle) for row in batch][:6]
    state = spawn(state_after, make_with(Augmented()), 2).result(PATIENCE)
    data = Augmented()
    spawn(after, make_with(data), state, 1).result(PATIENCE)
    assert sorted(delivered + data.asked) == list(range(10))


@pytest.mark.parametrize("shuffle", [False, "keyed"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_far_into_a_long_epoch_nothing_is_counted_off(
    shuffle: Any, batch_size: int | None, spawn: Spawn
) -> None:
    def first_two(state: Any) -> list[Any]:
        with make(dataset=range(10**12), batch_size=batch_size, shuffle=shuffle) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            return [next(iterator), next(iterator), loader.state_dict()["lanes"]]

    loader = make(dataset=range(10**12), batch_size=batch_size, shuffle=shuffle)
    state = spawn(state_after, loader, 1).result(PATIENCE)
    state["lanes"] = [{"batches": 10**8}]
    one, two, lanes = spawn(first_two, state).result(PATIENCE)
    assert lanes == [{"batches": 10**8 + 2}]
    state["lanes"] = [{"batches": 10**8 + 1}]
    assert spawn(first_two, state).result(PATIENCE)[0] == two
    if not shuffle:
        assert np.min(one) == 10**8 * (batch_size or 1)


@each_number_of_threads
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_sampler_of_the_user_s_is_drawn_once_for_each_index(
    batch_size: int | None, threads: int, spawn: Spawn
) -> None:
    def make_with(sampler: Counted) -> ThreadLoader[Any]:
        return make(threads=threads, shuffle=None, sampler=sampler, batch_size=batch_size)

    order = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = list(make_with(Counted(order)))
    state = spawn(state_after, make_with(Counted(order)), 2).result(PATIENCE)
    sampler = Counted(order)
    assert spawn(after, make_with(sampler), state, 1).result(PATIENCE) == [expected[2:]]
    assert sampler.drawn == len(order)


@each_number_of_threads
def test_a_dataset_s_state_is_asked_for_only_with_the_loader_s(threads: int) -> None:
    class Stateful(Augmented):
        states = 0  # each of which may be a copy of all data

        def state_dict(self) -> dict[str, int]:
            Stateful.states += 1
            return {"size": self.size}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.size = state["size"]

    with ThreadLoader(Stateful(), 2, threads=threads, output="numpy") as loader:
        for _ in range(2):
            list(loader)
        assert Stateful.states == 0
        assert loader.state_dict()["dataset"] == {"size": 10}
    assert Stateful.states == 1


def test_out_of_order_every_sample_comes_once_over_many_states(spawn: Spawn) -> None:
    got: list[int] = []
    state: Any = {}
    arguments: dict[str, Any] = {"threads": 4, "in_order": False, "prefetch": 4, "batch_size": 1}
    for held in ({0}, {0, 5}, {0, 7}, set()):  # what is late, and not delivered before
        data = Gated(12, *held)
        with make(dataset=data, dataset_copy="shared", shuffle=False, **arguments) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            for _ in range(2 if held else 12 - len(got)):
                got += spawn(next, iterator).result(PATIENCE)
            state = as_json(loader.state_dict())
            assert ("ahead" in state["lanes"][0]) is bool(held)
            data.gate.set()
    assert sorted(got) == list(range(12))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_that_timed_out_is_not_delivered(threads: int, spawn: Spawn) -> None:
    arguments: dict[str, Any] = {"threads": threads, "shuffle": False, "dataset_copy": "shared"}
    data = Gated(9, 4)
    with make(dataset=data, timeout=0.05, **arguments) as loader:
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match="timed out"):
            spawn(list, iterator).result(PATIENCE)
        state = as_json(loader.state_dict())
        data.gate.set()
    rest = spawn(after, make(dataset=Gated(9), **arguments), state, 1).result(PATIENCE)
    # On a busy machine the first batch may have been late, too.
    assert rest[0] in ([[3, 4, 5], [6, 7, 8]], [[0, 1, 2], [3, 4, 5], [6, 7, 8]])


@each_number_of_threads
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_batch_that_failed_counts_once_the_consumer_goes_on(
    goes_on: bool, threads: int, spawn: Spawn
) -> None:
    def fail_and_save() -> Any:
        with make(threads=threads, dataset=failing(LookupError), shuffle=False) as loader:
            iterator = iter(loader)
            assert next(iterator) == [0, 1, 2]
            with pytest.raises(LookupError):
                next(iterator)
            if goes_on:
                assert next(iterator) == [6, 7, 8]
            return as_json(loader.state_dict())

    state = spawn(fail_and_save).result(PATIENCE)
    whole = make(threads=threads, dataset=Acting(10), shuffle=False)
    rest = [[9]] if goes_on else [[3, 4, 5], [6, 7, 8], [9]]
    assert spawn(after, whole, state, 1).result(PATIENCE) == [rest]
