"""Errors of the user's code: as they were raised, where they belong, and nothing else is lost."""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import pytest
from support.faulty import Faulty, Whole
from support.patience import PATIENCE, Spawn
from support.streams import OUTPUTS, outcomes

from threadloader import ClosedError, SampleError, ThreadLoader, ThreadLoaderError
from threadloader.errors import DataError, RemoteError

with_and_without_threads = pytest.mark.parametrize("threads", [0, 1, 3])


def failing(size: int, errors: Mapping[int, BaseException], kind: type[Faulty] = Faulty) -> Faulty:
    """Return samples that are their indices, but for those that raise."""
    return kind(errors, size, errors.__getitem__)


def fail_on(row: int, error: BaseException) -> Callable[[list[int]], list[int]]:
    def collate(samples: list[int]) -> list[int]:
        if row in samples:
            raise error
        return samples

    return collate


def only_error(seen: list[Any]) -> Exception:
    (error,) = (each for each in seen if isinstance(each, Exception))
    return error


def functions(error: BaseException) -> list[str]:
    """Name the functions in the traceback from `next` on, outermost first; ours with a ``*``."""
    names = [
        ("*" if "threadloader" in frame.f_globals["__name__"] else "") + frame.f_code.co_name
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return names[names.index("*__next__") :]


@with_and_without_threads
def test_the_same_object_arrives_with_the_users_frames_alone(threads: int, spawn: Spawn) -> None:
    raised = LookupError("no such file")
    loader: ThreadLoader[Any] = ThreadLoader(failing(4, {2: raised}), 2, threads=threads)
    error = only_error(spawn(outcomes, loader).result(PATIENCE))
    assert error is raised
    assert functions(error) == ["*__next__", "__getitem__"]
    assert (error.__cause__, error.__context__) == (None, None)
    pickled = pickle.dumps(error)
    assert b"threadloader" not in pickled
    assert pickle.loads(pickled).__notes__ == error.__notes__


@with_and_without_threads
def test_an_error_of_collate_fn_has_the_users_frames_alone(threads: int, spawn: Spawn) -> None:
    raised = ArithmeticError("does not add up")
    loader: ThreadLoader[Any] = ThreadLoader(
        range(6), 2, collate_fn=fail_on(2, raised), threads=threads
    )
    seen = spawn(outcomes, loader).result(PATIENCE)
    assert seen == [[0, 1], raised, [4, 5]]
    assert functions(raised) == ["*__next__", "collate"]


@pytest.mark.parametrize(
    ("threads", "place"),
    [(0, "in the calling thread"), (1, "in worker 0"), (3, "in worker [012]")],
)
def test_a_note_names_worker_batch_and_index(threads: int, place: str, spawn: Spawn) -> None:
    raised = ValueError("bad sample")
    raised.add_note("the user's own")
    order = [[6, 4], [1, 5], [0, 2]]
    loader: ThreadLoader[Any] = ThreadLoader(
        failing(7, {5: raised}), batch_sampler=order, threads=threads
    )
    spawn(outcomes, loader).result(PATIENCE)
    users, ours = raised.__notes__
    assert users == "the user's own"
    assert re.fullmatch(f"{place}, batch 1, index 5", ours)


def places_of(loader: ThreadLoader[Any]) -> list[tuple[str, ...]]:
    """Return the notes of each error just after it was raised, without the worker's number."""
    told: list[tuple[str, ...]] = []
    iterator = iter(loader)
    while True:
        try:
            next(iterator)
        except StopIteration:
            return told
        except ValueError as error:
            told.append(tuple(note.partition("batch ")[2] or note for note in error.__notes__))


@pytest.mark.parametrize("batch_size", [1, 2])
@with_and_without_threads
def test_an_error_that_is_raised_again_and_again_has_the_note_of_this_failure_alone(
    threads: int, batch_size: int, spawn: Spawn
) -> None:
    raised = ValueError("always the same object")
    raised.add_note("the user's own")
    errors = dict.fromkeys(range(0, 12, 2), raised)
    loader: ThreadLoader[Any] = ThreadLoader(failing(12, errors), batch_size, threads=threads)
    expected = [
        ("the user's own", f"{index // batch_size}, index {index}") for index in sorted(errors)
    ]
    for _ in range(3):
        assert spawn(places_of, loader).result(PATIENCE) == expected


@pytest.mark.parametrize("dataset", [failing(2, {1: ValueError()}, Whole), range(2)])
def test_a_note_on_an_error_of_a_whole_batch_names_no_index(dataset: Any, spawn: Spawn) -> None:
    """What ``__getitems__`` or ``collate_fn`` raises is the fault of no sample that we know."""
    loader: ThreadLoader[Any] = ThreadLoader(
        dataset, 2, collate_fn=fail_on(0, ValueError()), threads=1
    )
    error = only_error(spawn(outcomes, loader).result(PATIENCE))
    assert error.__notes__ == ["in worker 0, batch 0"]


@with_and_without_threads
@pytest.mark.parametrize("collates", [False, True])
def test_a_stop_iteration_does_not_end_the_epoch(
    collates: bool, threads: int, spawn: Spawn
) -> None:
    """As it does with torch: lost data should not look like the end of the data."""
    raised = StopIteration("of the user's own iterator")
    collate_fn = fail_on(2, raised) if collates else None
    dataset: Any = range(6) if collates else failing(6, {2: raised})
    loader: Any = ThreadLoader(dataset, 2, collate_fn=collate_fn, threads=threads)
    first, error, last = spawn(outcomes, loader).result(PATIENCE)
    assert (first, last) == ([0, 1], [4, 5])
    assert type(error) is SampleError
    assert error.__cause__ is raised
    assert isinstance(error, RuntimeError)
    assert isinstance(error, ThreadLoaderError)
    assert error.__notes__[0].endswith("batch 1" if collates else "batch 1, index 2")


@with_and_without_threads
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_ends_the_iterator_and_leaves_the_loader(
    kind: type[BaseException], threads: int, spawn: Spawn
) -> None:
    raised = kind()
    dataset = failing(4, {1: raised})
    loader: ThreadLoader[Any] = ThreadLoader(dataset, threads=threads)
    iterator = iter(loader)
    spawn(next, iterator).result(PATIENCE)
    assert spawn(next, iterator).exception(PATIENCE) is raised
    assert isinstance(spawn(next, iterator).exception(PATIENCE), ClosedError)
    dataset.bad = frozenset()
    assert spawn(outcomes, loader).result(PATIENCE) == [[0], [1], [2], [3]]


@with_and_without_threads
def test_an_error_on_starting_the_sampler_is_raised_by_iter(threads: int, spawn: Spawn) -> None:
    class Refusing:
        def __iter__(self) -> NoReturn:
            raise LookupError

    loader: ThreadLoader[Any] = ThreadLoader(range(3), batch_sampler=Refusing(), threads=threads)
    assert isinstance(spawn(iter, loader).exception(PATIENCE), LookupError)


SHORT, LONG = np.zeros(3), np.zeros(4)
ODD: dict[str, tuple[list[Any], int]] = {  # samples, and which of them the message is about
    "another dtype makes a batch": ([np.float32(SHORT), SHORT, LONG], 2),
    "the first part decides": ([(SHORT, [1]), (SHORT, [1, 2]), (LONG, [1])], 2),
    "the first is odd": ([LONG, SHORT, SHORT], 0),
    "all are odd": ([np.zeros(size) for size in (3, 4, 5)], 1),
    "numbers of two kinds make a batch": ([1, 2.5, 1, None], 3),
    "more keys make a batch": ([{"a": 1}, {"a": 1, "b": 2}, {"c": 1}], 2),
    "one alone": ([None], 0),
    "text": ([SHORT, SHORT, np.array(["a", "b"])], 2),
    "no dimension": ([SHORT, SHORT, np.zeros(())], 2),
    "a number": ([SHORT, SHORT, 1.0], 2),
    "a part of a part": ([{"a": (0, SHORT)}, {"a": (0, SHORT)}, {"a": (0, None)}], 2),
    "a list": ([[0] * 5, [0] * 5, [0] * 4], 2),
    "a long list, of no layout": ([[0] * 500, [0] * 500, [0] * 499], 2),
}


@with_and_without_threads
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("case", ODD)
def test_the_note_names_a_sample_that_the_message_is_about(
    case: str, output: Any, threads: int, spawn: Spawn
) -> None:
    samples, odd = ODD[case]
    for before in range(min(2, len(samples))):  # batches, from which a layout is learned
        usual = samples[not odd] if before else None
        dataset = [*[usual] * len(samples) * before, *samples]
        loader: Any = ThreadLoader(dataset, len(samples), threads=threads, output=output)
        error = spawn(outcomes, loader).result(PATIENCE)[-1]
        assert error.__notes__[-1].endswith(f"batch {before}, index {before * len(samples) + odd}")
        entries = re.findall(r"entry (\d+)", str(error))
        assert not entries or str(odd) in entries


ADVICE: dict[str, tuple[list[Any], str]] = {
    "images": ([np.zeros((4, 4, 3)), np.zeros((5, 4, 3))], r"ImageFolder does with size="),
    "shape": ([SHORT, LONG], "make them alike in the dataset, or give a collate_fn that pads"),
    "length": ([[1], [1, 2]], "make them alike in the dataset, or give a collate_fn that pads"),
    "keys": ([{"a": 1}, {"b": 1}], "the same keys"),
    "a set": ([{1}, {2}], "need a collate_fn"),
    "strings": ([np.array(["a"]), np.array(["b"])], "need a collate_fn"),
    "None": ([None, None], "__getitem__ return in all cases"),
    "None after an array": ([SHORT, None], "__getitem__ return in all cases"),
    "None after a number": ([1, None], "__getitem__ return in all cases"),
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("case", ADVICE)
def test_an_error_of_collating_says_what_to_do(case: str, output: Any, spawn: Spawn) -> None:
    samples, advice = ADVICE[case]
    loader: ThreadLoader[Any] = ThreadLoader(samples, 2, threads=1, output=output)
    error = only_error(spawn(outcomes, loader).result(PATIENCE))
    assert advice in error.__notes__[0]
    assert "batch 0" in error.__notes__[-1]


@pytest.mark.parametrize(
    "error",
    [
        DataError("cut off", "a.tar", member="b.jpg", offset=512),
        RemoteError("gone", "http://host/a.tar", offset=512),
    ],
    ids=repr,
)
def test_an_error_with_a_place_survives_pickling_with_it(error: DataError | RemoteError) -> None:
    error.add_note("in worker 3")
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
