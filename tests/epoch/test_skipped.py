"""Samples that are left out: how many may be, and what is told of them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from support.copies import make as make_copying
from support.fake_device import FakeDevice
from support.faulty import Copied, Faulty, run, skipping, survivors, texts
from support.patience import PATIENCE
from support.resuming import state_after
from support.streams import outcomes
from support.workers import each_kind_of_workers

if TYPE_CHECKING:
    from support.patience import Spawn

    from threadloader import ThreadLoader

pytestmark = pytest.mark.filterwarnings("ignore:a sample was left out")


# How many ----------------------------------------------------------------------------------------


@each_kind_of_workers
@pytest.mark.parametrize("most", [0, 1, 3, 4, 5, None])
def test_one_sample_too_many_is_raised_in_the_place_of_its_batch(
    most: int | None, workers: dict[str, Any], spawn: Spawn
) -> None:
    bad = [1, 4, 5, 6, 10]
    for _ in range(3):  # whichever thread is first
        told = run(spawn, skipping(Faulty(bad), max_skipped=most, **workers))
        allowed = len(bad) if most is None else most
        expected: list[Any] = []
        for batch in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]):
            failed = [index for index in batch if index in bad]
            over = failed[allowed:]
            allowed = max(0, allowed - len(failed))
            if over:
                expected.append(f"LookupError({over[0]})")
            else:
                expected.append([index for index in batch if index not in bad])
        assert texts(told) == expected


def test_the_error_says_what_was_exceeded_and_keeps_its_own_note(spawn: Spawn) -> None:
    told = run(spawn, skipping(Faulty({4, 7}), max_skipped=1))
    place, limit = told[2].__notes__
    assert place.endswith("batch 2, index 7")
    assert "max_skipped=1" in limit


def test_each_epoch_may_skip_as_many(spawn: Spawn) -> None:
    with skipping(Faulty({4, 7}), max_skipped=2) as loader:
        assert [spawn(outcomes, loader).result(PATIENCE) for _ in range(3)] == [
            survivors({4, 7})
        ] * 3
        assert loader.statistics().skipped_count == 6


@pytest.mark.parametrize("threads", [0, 2])
def test_max_skipped_counts_the_whole_epoch_also_where_it_was_interrupted(
    threads: int, spawn: Spawn
) -> None:
    def build() -> ThreadLoader[Any]:
        return skipping(Faulty({0, 3, 6}), threads=threads, max_skipped=2)

    assert texts(run(spawn, build())) == [[1, 2], [4, 5], "LookupError(6)", [9, 10, 11]]
    state = spawn(state_after, build(), 2).result(PATIENCE)
    loader = build()
    loader.load_state_dict(state)
    assert texts(run(spawn, loader)) == ["LookupError(6)", [9, 10, 11]]


@each_kind_of_workers
def test_one_too_many_on_a_device_is_raised_in_its_place(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice()
    with make_copying(Copied({4, 7}), device, on_error="skip", max_skipped=1, **workers) as loader:
        told = spawn(outcomes, loader).result(PATIENCE)
    assert [type(each) for each in told] == [list, list, LookupError, list]
    assert device.broken == []


# What is told ------------------------------------------------------------------------------------


def test_statistics_list_batch_index_and_error(spawn: Spawn) -> None:
    sampler = [5, 0, 3, 2, 1, 4]
    loader = skipping(Faulty({0, 2, 4}, 6), sampler=sampler)
    run(spawn, loader)
    told = [(each.batch, each.index, each.error) for each in loader.statistics().skipped]
    assert told == [
        (0, 0, "LookupError: 0"),
        (1, 2, "LookupError: 2"),
        (1, 4, "LookupError: 4"),
    ]


def test_statistics_keep_the_latest_thousand_and_count_all(spawn: Spawn) -> None:
    loader = skipping(Faulty(range(1200), 1300), 50, max_skipped=None)
    run(spawn, loader)
    told = loader.statistics()
    assert told.skipped_count == 1200
    assert [each.index for each in told.skipped] == list(range(200, 1200))


@pytest.mark.filterwarnings("always:a sample was left out")
@pytest.mark.parametrize("threads", [0, 2])
def test_there_is_one_warning_an_epoch_and_it_points_at_the_loop(threads: int) -> None:
    def loop(loader: ThreadLoader[Any]) -> None:
        for _ in loader:
            pass

    with skipping(Faulty({4, 5, 7}), threads=threads) as loader:
        for _ in range(2):
            with pytest.warns(UserWarning, match="a sample was left out") as caught:
                loop(loader)
            (warning,) = caught
            assert "batch 1" in str(warning.message)
            assert warning.filename == __file__
            assert warning.lineno == loop.__code__.co_firstlineno + 1


@pytest.mark.parametrize("threads", [0, 2])
def test_a_warning_that_is_made_an_error_loses_no_batch(threads: int) -> None:
    with skipping(Faulty({4}), threads=threads) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        told = outcomes(loader)
    assert [each for each in told if isinstance(each, list)] == survivors({4})


def test_without_failures_there_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with skipping(Faulty()) as loader:
            assert outcomes(loader) == survivors(())
