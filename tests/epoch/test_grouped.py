"""Small batches that are made several at once are those that are made one by one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE
from support.resuming import as_json
from support.streams import lists

from threadloader import ClosedError, ThreadLoader
from threadloader._layout.layout import Layout
from threadloader._order.samplers import BatchSampler
from threadloader.datasets import ArrayDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

ROWS = np.arange(4001 * 3).reshape(4001, 3)


def make(threads: int = 2, dataset: Any = None, **options: Any) -> ThreadLoader[Any]:
    dataset = ArrayDataset(ROWS) if dataset is None else dataset
    return ThreadLoader(dataset, 8, threads=threads, output="numpy", seed=3, **options)


@pytest.mark.parametrize("shuffle", [False, True, "keyed"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [None, 2, 9, 40])
def test_they_are_those_of_the_calling_thread(
    shuffle: Any, drop_last: bool, prefetch: int | None, spawn: Spawn
) -> None:
    options = {"shuffle": shuffle, "drop_last": drop_last, "prefetch": prefetch}
    with make(0, **options) as alone, make(3, **options) as together:
        expected = spawn(lists, alone).result(PATIENCE)
        assert spawn(lists, together).result(PATIENCE) == expected
        assert len(expected) == len(together)


def test_they_take_fewer_tickets_and_count_as_batches(spawn: Spawn) -> None:
    with make(shuffle=True) as loader:
        assert len(spawn(list, loader).result(PATIENCE)) == 501
        totals = loader.statistics().totals
    assert (totals.batches, totals.samples) == (501, 4001)
    assert totals.tickets < 100


@pytest.mark.parametrize("taken", [1, 2, 7, 18, 19, 20, 33, 100, 500])
def test_a_state_may_be_taken_between_any_two(taken: int, spawn: Spawn) -> None:
    def run() -> None:
        with make(shuffle=True) as loader:
            expected = lists(loader)
        with make(shuffle=True) as loader:
            iterator = iter(loader)
            first = lists(next(iterator) for _ in range(taken))
            state = as_json(loader.state_dict())
        assert state["lanes"] == [{"batches": taken}]
        with make(1, shuffle=True) as loader:
            loader.load_state_dict(state)
            assert first + lists(loader) == expected

    spawn(run).result(PATIENCE)


def test_a_kept_batch_is_never_written_again(spawn: Spawn) -> None:
    with make(shuffle=True) as loader:
        kept = spawn(lambda: list(loader)[5::17]).result(PATIENCE)
        copies = [batch.copy() for batch in kept]
        spawn(list, loader).result(PATIENCE)
    for batch, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(batch, copy)


def test_one_that_is_written_to_leaves_the_others_alone(spawn: Spawn) -> None:
    def run() -> list[Any]:
        seen = []
        for batch in make():
            seen.append(batch.tolist())
            batch[...] = -1
        return seen

    assert spawn(run).result(PATIENCE) == lists(make(0))


class Endless:
    """Samples in order; the one that is asked for beyond the end is in the middle."""

    def __init__(self, size: int, wrong: int) -> None:
        self.indices = list(range(size))
        self.indices[wrong] = 10**6

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class Rows:
    """Rows of an array, which end before its length says so."""

    def __len__(self) -> int:
        return 900

    def __getitem__(self, index: int) -> Any:
        return ROWS[:700][index]

    def gathered_arrays(self) -> list[Any]:
        return [ROWS[:700]]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_is_that_of_one_batch_and_in_its_place(threads: int, spawn: Spawn) -> None:
    def outcomes() -> list[Any]:
        with make(threads, Rows()) as loader:
            iterator, told = iter(loader), []
            while True:
                try:
                    told.append(next(iterator)[0, 0])
                except StopIteration:
                    return told
                except IndexError as error:
                    told.append(error.__notes__)

    told = spawn(outcomes).result(PATIENCE)
    assert told[:87] == [row * 24 for row in range(87)]
    notes = [note.partition(", ")[2] for (note,) in told[87:]]
    assert len(notes) == 113 - 87
    assert notes[:2] == ["batch 87, index 700", "batch 88, index 704"]


def test_a_batch_that_can_not_be_made_is_the_only_one_that_is_missing(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, batch = itertools.count(1), Layout.batch

    def failing(layout: Layout, parts: list[Any]) -> Any:
        if next(calls) in (5, 20, 21):
            raise MemoryError
        return batch(layout, parts)

    monkeypatch.setattr(Layout, "batch", failing)

    def run() -> list[Any]:
        with make() as loader:
            iterator, told = iter(loader), []
            while True:
                try:
                    told.append(next(iterator)[0, 0])
                except StopIteration:
                    return told
                except MemoryError:
                    told.append(None)

    told = spawn(run).result(PATIENCE)
    assert [number for number, row in enumerate(told) if row is None] == [4, 19, 20]
    assert [row for row in told if row is not None] == [
        row * 24 for row in range(501) if row not in (4, 19, 20)
    ]


def test_without_threads_a_batch_is_made_when_it_is_wanted(spawn: Spawn) -> None:
    def run() -> list[int]:
        rows = np.zeros((400, 2), np.int64)
        seen = []
        for number, batch in enumerate(make(0, ArrayDataset(rows))):
            seen.append(int(batch[0, 0]))
            rows[...] = number + 1
        return seen

    assert spawn(run).result(PATIENCE) == list(range(50))


@pytest.mark.parametrize("taken", [1, 3, 20])
def test_closing_ends_them_too(taken: int, spawn: Spawn) -> None:
    def run() -> None:
        loader = make()
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        loader.close()
        with pytest.raises(ClosedError):
            next(iterator)
        assert loader.statistics().slots.leased == 0

    spawn(run).result(PATIENCE)


def test_samplers_of_the_users_are_drawn_one_batch_at_a_time(spawn: Spawn) -> None:
    sampler = BatchSampler(Endless(400, 90), 8, drop_last=False)
    options: Any = {"threads": 2, "output": "numpy", "on_error": "skip"}
    with ThreadLoader(ROWS, batch_sampler=sampler, **options) as loader:
        with pytest.warns(UserWarning, match="left out"):
            batches = spawn(lists, loader).result(PATIENCE)
        assert [len(batch) for batch in batches] == [8] * 11 + [7] + [8] * 38
        assert loader.statistics().skipped[0].index == 10**6
