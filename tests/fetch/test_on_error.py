"""``on_error=``: which errors leave a sample out, what its batch is then, and what is told."""

from __future__ import annotations

import errno
import gc
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.acting import Acting
from support.copies import make as make_copying
from support.fake_device import FakeDevice
from support.faulty import SIZE, Copied, Faulty, Whole, run, skipping, survivors, texts
from support.patience import PATIENCE, Spawn
from support.resuming import state_after
from support.shared import SharedList
from support.streams import make, outcomes
from support.workers import each_kind_of_workers, join_workers

from threadloader import DataError, ThreadLoader

pytestmark = [
    pytest.mark.usefixtures("slots_for_all_leaves"),
    pytest.mark.filterwarnings("ignore:a sample was left out"),
]


class InterruptedOnce(Whole):
    """Its whole batches are interrupted; one by one its samples are well."""

    def __getitems__(self, indices: Any) -> list[Any]:
        if 4 in indices:
            raise self.make_error(4)
        return super().__getitems__(indices)


@each_kind_of_workers
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("kind", [Faulty, InterruptedOnce])
def test_what_is_to_end_a_program_is_never_skipped(
    kind: Any, error: type[BaseException], workers: dict[str, Any], spawn: Spawn
) -> None:
    asked: list[Any] = []

    def on_error(error: Exception, index: Any) -> str:
        asked.append((error, index))
        return "skip"

    for answer in ("skip", on_error):
        with skipping(kind({4}, make_error=error), on_error=answer, **workers) as loader:
            future = spawn(outcomes, loader)
            assert isinstance(future.exception(PATIENCE), error)
    assert asked == []


@each_kind_of_workers
@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("PIL"),
        MemoryError(),
        OSError(errno.EMFILE, "too many open files"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_ails_the_process_and_not_the_sample_is_skipped_by_a_function_alone(
    error: Exception, workers: dict[str, Any], spawn: Spawn
) -> None:
    def dataset() -> Faulty:
        return Faulty({4}, make_error=lambda _: error)

    told = run(spawn, skipping(dataset(), **workers))
    assert texts(told) == [[0, 1, 2], repr(error), [6, 7, 8], [9, 10, 11]]
    told = run(spawn, skipping(dataset(), on_error=lambda *_: "skip", **workers))
    assert told == survivors({4})
    missing = FileNotFoundError(errno.ENOENT, "no such file")
    told = run(spawn, skipping(Faulty({4}, make_error=lambda _: missing), **workers))
    assert told == survivors({4})


@each_kind_of_workers
def test_a_function_decides_by_error_and_index(workers: dict[str, Any], spawn: Spawn) -> None:
    asked: list[Any] = []

    def on_error(error: Exception, index: int) -> str:
        asked.append((type(error), index))
        return "raise" if index == 7 else "skip"

    told = run(spawn, make(Faulty({1, 7, 10}), on_error=on_error, **workers))
    assert isinstance(told[2], LookupError)
    assert told[2].__notes__[0].endswith("batch 2, index 7")
    assert [each for each in told if isinstance(each, list)] == [[0, 2], [3, 4, 5], [9, 11]]
    assert sorted(asked, key=lambda each: each[1]) == [(LookupError, i) for i in (1, 7, 10)]


@each_kind_of_workers
@pytest.mark.parametrize("answer", [None, True, "Skip", "ignore", 0, b"skip", ZeroDivisionError(4)])
def test_an_answer_that_is_none_is_an_error_that_says_so(
    answer: Any, workers: dict[str, Any], spawn: Spawn
) -> None:
    def on_error(error: Exception, _: int) -> Any:
        if isinstance(answer, Exception):
            raise answer from error
        return answer

    told = run(spawn, make(Faulty({4}), on_error=on_error, **workers))
    if isinstance(answer, Exception):
        assert told[1] is answer
        assert isinstance(told[1].__cause__, LookupError)
    else:
        assert isinstance(told[1], TypeError)
        assert "'raise' or 'skip'" in str(told[1])
        assert repr(answer) in str(told[1])
    assert told[:1] + told[2:] == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]


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
    given: list[Any] = SharedList()

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


# Rows that do not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("odd", [9, 10, 11])
def test_a_ragged_row_next_to_a_skipped_one_is_named_rightly_and_that_one_listed(
    odd: int, threads: int, spawn: Spawn
) -> None:
    class Odd(Faulty):
        def sample(self, index: int) -> Any:
            return np.zeros(2 if index == odd else 3)

    loader = skipping(Odd({8}), 4, threads=threads)
    told = run(spawn, loader)
    assert [type(each) for each in told] == [list, list, RuntimeError]
    assert [each.index for each in loader.statistics().skipped] == [8]
    assert told[2].__notes__[-1].endswith(f", batch 2, index {odd}")


# Devices, and what is kept -----------------------------------------------------------------------


class TrackedError(LookupError):
    """An error that can be referred to weakly."""


@each_kind_of_workers
@pytest.mark.parametrize("answer", ["skip", "function"])
def test_nothing_keeps_an_error_that_was_skipped(
    answer: str, workers: dict[str, Any], spawn: Spawn
) -> None:
    errors: list[weakref.ref[Any]] = SharedList()

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
        for error in (each for each in told if isinstance(each, LookupError)):
            place, limit = error.__notes__
            assert place.endswith(f"index {error.args[0]}")
            assert f"max_skipped={most}" in limit


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
    assert [type(each) is LookupError for each in told] == [False, False, True, False]
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


def test_an_error_of_ours_that_is_skipped_is_told_without_its_link() -> None:
    def fail(_: int) -> None:
        raise DataError("broken", "a.tar")

    with skipping(Acting(2, fail), 2, threads=0) as loader:
        with pytest.warns(UserWarning, match=r"DataError: a.tar: broken; statistics\(\)"):
            list(loader)
        (told, _) = loader.statistics().skipped
    assert told.error == "DataError: a.tar: broken"


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


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_a_transform_that_fails_leaves_its_row_out_by_its_place(threads: int, spawn: Spawn) -> None:
    """A function is asked with the index that is listed: how many samples were read before."""
    asked: list[int] = []

    def on_error(_: Exception, index: int) -> str:
        asked.append(index)
        return "skip"

    def transform(row: int) -> int:
        if row in {0, 4, 6, 7, 8}:
            raise ValueError(row)
        return -row

    loader = make(iter(range(12)), on_error=on_error, threads=threads, transform=transform)
    assert run(spawn, loader) == [[-1, -2], [-3, -5], [-9, -10, -11]]
    assert sorted(asked) == sorted(each.index for each in loader.statistics().skipped)
    assert sorted(asked) == [0, 4, 6, 7, 8]
