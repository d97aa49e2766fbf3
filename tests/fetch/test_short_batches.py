"""Batches without the samples that fail are as they would be of the others alone."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faulty import SIZE, Copied, Faulty, Whole, run, skipping, survivors, texts
from support.patience import PATIENCE
from support.resuming import after, state_after
from support.streams import make, outcomes
from support.workers import each_kind_of_workers, join_workers

if TYPE_CHECKING:
    from support.patience import Spawn

    from threadloader import ThreadLoader

pytestmark = [
    pytest.mark.usefixtures("slots_for_all_leaves"),
    pytest.mark.filterwarnings("ignore:a sample was left out"),
]

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024  # what users have


@each_kind_of_workers
@pytest.mark.parametrize(
    "bad",
    [
        *({0}, {2}, {1, 2}, {0, 1, 2}, {3, 4, 5}, {9, 10, 11}, {11}, {0, 4, 8}, {2, 3}),
        set(range(SIZE)),
        set(range(SIZE - 1)),
    ],
    ids=str,
)
def test_a_batch_is_made_of_the_samples_that_do_not_fail(
    bad: set[int], workers: dict[str, Any], spawn: Spawn
) -> None:
    with skipping(Faulty(bad), **workers) as loader:
        for epoch in (1, 2):
            assert spawn(outcomes, loader).result(PATIENCE) == survivors(bad)
            told = loader.statistics()
            assert [each.index for each in told.skipped] == sorted(bad) * epoch
            assert told.skipped_count == len(bad) * epoch


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_workers_give_the_same_batches_and_list_the_same_samples(
    data: st.DataObject, spawn: Spawn
) -> None:
    size = data.draw(st.integers(1, 30), "size")
    bad = data.draw(st.sets(st.integers(0, size - 1)), "bad")
    rows = data.draw(st.integers(1, 8), "rows")
    drop_last = data.draw(st.booleans(), "drop_last")
    in_order = data.draw(st.booleans(), "in_order")
    kind = data.draw(st.sampled_from([Faulty, Whole]), "kind")
    collate_fn = data.draw(st.sampled_from([None, list]), "collate_fn")
    threads = data.draw(st.sampled_from([0, 1, 2, 4]), "threads")
    loader = skipping(
        kind(bad, size),
        rows,
        drop_last=drop_last,
        in_order=in_order,
        collate_fn=collate_fn,
        threads=threads,
        max_skipped=None,
    )
    told = run(spawn, loader)
    expected = survivors(bad, size=size, rows=rows, drop_last=drop_last)
    last = size // rows * rows if drop_last else size
    listed = [each.index for each in loader.statistics().skipped]
    if in_order:
        assert told == expected
        assert listed == sorted(index for index in bad if index < last)
    assert sorted(told) == expected
    assert sorted(listed) == sorted(index for index in bad if index < last)


@each_kind_of_workers
def test_a_batch_of_one_sample_is_left_out_with_it(workers: dict[str, Any], spawn: Spawn) -> None:
    told = run(spawn, skipping(Faulty({0, 3, SIZE - 1}), None, **workers))
    assert told == [index for index in range(SIZE) if index not in {0, 3, SIZE - 1}]


@each_kind_of_workers
def test_a_collate_function_is_given_what_is_left_and_is_not_called_for_nothing(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    given: list[Any] = []

    def collate(samples: Any) -> Any:
        given.append(samples)
        return samples

    bad = {0, 4, 6, 7, 8}
    assert run(spawn, skipping(Faulty(bad), collate_fn=collate, **workers)) == survivors(bad)
    assert sorted(given) == survivors(bad)
    assert {type(samples) for samples in given} == {list}


def test_an_error_of_the_collate_function_is_never_skipped(spawn: Spawn) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 4 in samples:
            raise OSError("collate")
        return samples

    told = run(spawn, skipping(Faulty({0}), collate_fn=collate))
    assert texts(told) == [[1, 2], "OSError('collate')", [6, 7, 8], [9, 10, 11]]


# Whole batches -----------------------------------------------------------------------------------


class NoSingles:
    """Has whole batches and no way to one sample."""

    def __len__(self) -> int:
        return SIZE

    def __getitems__(self, indices: Any) -> list[Any]:
        if 4 in indices:
            raise LookupError(4)
        return list(indices)


def test_a_whole_batch_that_cannot_be_fetched_singly_is_raised(spawn: Spawn) -> None:
    told = run(spawn, skipping(NoSingles()))
    assert texts(told) == [[0, 1, 2], "LookupError(4)", [6, 7, 8], [9, 10, 11]]


# Random numbers ----------------------------------------------------------------------------------


class Drawing(Faulty):
    """Draws before it fails."""

    def __getitem__(self, index: int) -> Any:
        drawn = np.random.default_rng(np.random.randint(1 << 31)).random()  # noqa: NPY002
        super().__getitem__(index)
        return index, drawn


class WholeDrawing(Drawing):
    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Drawing, WholeDrawing])
def test_random_numbers_next_to_failures_depend_on_no_threads(kind: Any, spawn: Spawn) -> None:
    def drawn(threads: int) -> Any:
        with skipping(kind({1, 3, 8}), seed=5, threads=threads, collate_fn=list) as loader:
            return spawn(list, loader).result(PATIENCE)

    assert drawn(0) == drawn(1) == drawn(4)


# Going on in the middle --------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [False, "keyed"])
@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_after_a_state_come_the_same_batches_without_the_same_samples(
    batches: int, shuffle: Any, threads: int, spawn: Spawn
) -> None:
    def build(threads: int) -> ThreadLoader[Any]:
        # In the given order one whole batch is lost.
        return skipping(Faulty({0, 3, 4, 5, 8}, 20), 2, shuffle=shuffle, seed=3, threads=threads)

    def lists(epochs: list[Any]) -> Any:
        return [[batch.tolist() for batch in epoch] for epoch in epochs]

    with build(2) as loader:
        first, second = lists([spawn(list, loader).result(PATIENCE) for _ in range(2)])
        whole = loader.statistics().skipped
    state = spawn(state_after, build(2), batches).result(PATIENCE)
    loader = build(threads)
    assert lists(spawn(after, loader, state, 2).result(PATIENCE)) == [first[batches:], second]
    rest = loader.statistics().skipped
    assert whole[len(whole) - len(rest) :] == rest


# Rows that do not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("odd", [9, 10, 11])
def test_a_ragged_row_next_to_skipped_ones_is_named_rightly(
    odd: int, threads: int, spawn: Spawn
) -> None:
    class Odd(Faulty):
        def sample(self, index: int) -> Any:
            return np.zeros(2 if index == odd else 3)

    told = run(spawn, skipping(Odd({8}), 4, threads=threads))
    assert isinstance(told[2], Exception)
    assert told[2].__notes__[-1].endswith(f", batch 2, index {odd}")


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_sample_left_out_of_a_batch_that_fails_all_the_same_is_listed(
    threads: int, spawn: Spawn
) -> None:
    class Odd(Faulty):
        def sample(self, index: int) -> Any:
            return np.zeros(2 if index == 5 else 3)

    loader = skipping(Odd({4}), threads=threads)
    told = run(spawn, loader)
    assert [type(each) for each in told] == [list, RuntimeError, list, list]
    assert [each.index for each in loader.statistics().skipped] == [4]


# Devices, and what is kept -----------------------------------------------------------------------


class TrackedError(LookupError):
    """An error that can be referred to weakly."""


@each_kind_of_workers
@pytest.mark.parametrize("answer", ["skip", "function"])
def test_nothing_keeps_an_error_that_was_skipped(
    answer: str, workers: dict[str, Any], spawn: Spawn
) -> None:
    errors: list[weakref.ref[Any]] = []

    def make_error(index: int) -> BaseException:
        error = TrackedError(index)
        errors.append(weakref.ref(error))
        return error

    on_error = "skip" if answer == "skip" else lambda *_: "skip"
    loader = make(Copied({1, 4, 6, 7, 8}, make_error=make_error), on_error=on_error, **workers)

    def loop() -> None:
        for _ in loader:
            pass

    with loader:
        spawn(loop).result(PATIENCE)
    join_workers()
    gc.collect()
    assert len(errors) == 5
    assert [error() for error in errors] == [None] * 5


def test_failures_of_two_threads_at_once_are_both_left_out(spawn: Spawn) -> None:
    """The first row of a batch waits in one thread for the fourth, in the other."""
    barrier = Barrier(2)

    class Together(Faulty):
        def __getitem__(self, index: int) -> Any:
            if index in {0, 3}:
                barrier.wait(PATIENCE)
            return super().__getitem__(index)

    loader = skipping(Together({0, 3, 5}), 8, threads=2, dataset_copy="shared")
    assert run(spawn, loader) == survivors({0, 3, 5}, rows=8)
