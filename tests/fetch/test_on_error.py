"""``on_error=``: which errors leave a sample out, and which reach the consumer."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest
from support.faulty import Faulty, Whole, run, skipping, survivors, texts
from support.patience import PATIENCE
from support.streams import make, outcomes
from support.workers import each_kind_of_workers

if TYPE_CHECKING:
    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:a sample was left out")


@each_kind_of_workers
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("kind", [Faulty, Whole])
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


class InterruptedOnce(Whole):
    """Its whole batches are interrupted; one by one its samples are well."""

    def __getitems__(self, indices: Any) -> list[Any]:
        if 4 in indices:
            raise self.make_error(4)
        return super().__getitems__(indices)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_getitems_is_not_lost_on_the_way_to_single_samples(
    error: type[BaseException], threads: int, spawn: Spawn
) -> None:
    with skipping(InterruptedOnce(make_error=error), threads=threads) as loader:
        assert isinstance(spawn(outcomes, loader).exception(PATIENCE), error)


@each_kind_of_workers
def test_a_sample_that_raises_stop_iteration_is_skipped_as_a_sample_error(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    loader = skipping(Faulty({4}, make_error=StopIteration), **workers)
    assert run(spawn, loader) == survivors({4})
    (skipped,) = loader.statistics().skipped
    assert skipped.error.startswith("SampleError: ")


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
@pytest.mark.parametrize("answer", [None, True, "Skip", "ignore", 0, b"skip"])
def test_an_answer_that_is_none_is_an_error_that_says_so(
    answer: Any, workers: dict[str, Any], spawn: Spawn
) -> None:
    told = run(spawn, make(Faulty({4}), on_error=lambda *_: answer, **workers))
    assert isinstance(told[1], TypeError)
    assert "'raise' or 'skip'" in str(told[1])
    assert repr(answer) in str(told[1])
    assert told[:1] + told[2:] == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]


@each_kind_of_workers
def test_a_function_that_raises_is_what_the_consumer_gets(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    def on_error(error: Exception, index: int) -> str:
        raise ZeroDivisionError(index) from error

    told = run(spawn, make(Faulty({4, 7}), on_error=on_error, **workers))
    assert texts(told) == [
        [0, 1, 2],
        "ZeroDivisionError(4)",
        "ZeroDivisionError(7)",
        [9, 10, 11],
    ]
    assert isinstance(told[1].__cause__, LookupError)


def test_an_interrupt_in_the_function_reaches_the_consumer(spawn: Spawn) -> None:
    def on_error(*_: Any) -> str:
        raise KeyboardInterrupt

    with make(Faulty({4}), on_error=on_error) as loader:
        assert isinstance(spawn(outcomes, loader).exception(PATIENCE), KeyboardInterrupt)


class MuteError(Exception):
    """Has neither text nor notes."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def add_note(self, _: str, /) -> None:
        raise RuntimeError("no notes")


@each_kind_of_workers
def test_an_error_without_a_text_is_skipped_too(workers: dict[str, Any], spawn: Spawn) -> None:
    loader = skipping(Faulty({4}, make_error=lambda _: MuteError()), **workers)
    assert texts(run(spawn, loader)) == survivors({4})
    assert [each.index for each in loader.statistics().skipped] == [4]
