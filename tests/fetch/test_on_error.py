"""Samples that fail are left out of their batch, the same ones whatever loads them."""

from __future__ import annotations

import errno
import gc
import threading
import warnings
import weakref
from collections import namedtuple
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.pictures import picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.copies import make as make_copying
from support.fake_device import FakeDevice
from support.patience import PATIENCE, PAUSE
from support.resuming import after, state_after
from support.streams import Hiccups, join_workers, make, outcomes

from threadloader import ClosedError, SampleError, ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    Spawn = Callable[..., Future[Any]]

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

SIZE = 12
ROWS = 3

pytestmark = pytest.mark.filterwarnings("ignore:a sample was left out")

each_crew = pytest.mark.parametrize(
    "crew",
    [{"threads": 0}, {"threads": 1}, {"threads": 3}, {"threads": 2, "persistent_workers": True}],
    ids=["inline", "1", "3", "persistent"],
)
Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024  # what users have


class Faulty:
    """Sample ``i`` is ``i``; some raise."""

    def __init__(
        self,
        bad: Any = (),
        size: int = SIZE,
        make_error: Callable[[int], BaseException] = LookupError,
    ) -> None:
        self.bad = frozenset(bad)
        self.size = size
        self.make_error = make_error

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.make_error(index)
        return self.sample(index)

    def sample(self, index: int) -> Any:
        return index


class Whole(Faulty):
    """The same, and whole batches."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


def skipping(dataset: Any, batch_size: int | None = ROWS, **arguments: Any) -> ThreadLoader[Any]:
    return make(dataset, batch_size, **({"on_error": "skip"} | arguments))


def survivors(bad: Any, *, size: int = SIZE, rows: int = ROWS, drop_last: bool = False) -> Any:
    """Return the batches that are to come: of those without an error nothing is missing."""
    planned = [list(range(start, min(size, start + rows))) for start in range(0, size, rows)]
    if drop_last:
        planned = [batch for batch in planned if len(batch) == rows]
    left = [[index for index in batch if index not in bad] for batch in planned]
    return [batch for batch in left if batch]


def run(spawn: Spawn, loader: ThreadLoader[Any]) -> list[Any]:
    """Return what each next() of an epoch gives; the loader's threads end."""
    with loader:
        told: list[Any] = spawn(outcomes, loader).result(PATIENCE)
    return told


def texts(told: list[Any]) -> list[Any]:
    """Return outcomes that can be compared."""
    return [repr(each) if isinstance(each, BaseException) else each for each in told]


@each_crew
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
    bad: set[int], crew: dict[str, Any], spawn: Spawn
) -> None:
    with skipping(Faulty(bad), **crew) as loader:
        for epoch in (1, 2):
            assert spawn(outcomes, loader).result(PATIENCE) == survivors(bad)
            told = loader.statistics()
            assert [each.index for each in told.skipped] == sorted(bad) * epoch
            assert told.skipped_count == len(bad) * epoch


class Nested(Faulty):
    def sample(self, index: int) -> Any:
        return {
            "array": np.full((2, 3), index, np.float32),
            "pair": Pair(index, [np.int16(index), bool(index % 2)]),
            "name": str(index),
            "zero-d": np.array(index, np.complex64),
            "bytes": (bytes([index]), 1j * index if index < 0 else 0.5 * index),
        }


class Views(Faulty):
    """Rows of a read-only memory-map: another type than arrays."""

    def __init__(self, bad: Any, path: Any) -> None:
        super().__init__(bad)
        np.save(path, np.arange(SIZE * 4.0).reshape(SIZE, 4))
        self.rows = np.load(path, mmap_mode="r")

    def sample(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("kind", ["nested", "memory-map"])
def test_a_short_batch_equals_one_that_was_never_longer(
    kind: str, threads: int, tmp_path: Any, spawn: Spawn
) -> None:
    bad = {0, 4, 8, 9, 10, 11}
    dataset = Nested(bad) if kind == "nested" else Views(bad, tmp_path / "rows.npy")

    def pictures(loader: ThreadLoader[Any]) -> list[Any]:
        with loader:
            return [picture(batch) for _ in range(2) for batch in loader]

    expected = spawn(
        pictures,
        ThreadLoader(dataset, batch_sampler=survivors(bad), threads=threads, output="numpy"),
    ).result(PATIENCE)
    assert spawn(pictures, skipping(dataset, threads=threads)).result(PATIENCE) == expected


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_crew_gives_the_same_batches_and_lists_the_same_samples(
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


@each_crew
def test_a_batch_of_one_sample_is_left_out_with_it(crew: dict[str, Any], spawn: Spawn) -> None:
    told = run(spawn, skipping(Faulty({0, 3, SIZE - 1}), None, **crew))
    assert told == [index for index in range(SIZE) if index not in {0, 3, SIZE - 1}]


@each_crew
def test_a_collate_function_is_given_what_is_left_and_is_not_called_for_nothing(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    given: list[Any] = []

    def collate(samples: Any) -> Any:
        given.append(samples)
        return samples

    bad = {0, 4, 6, 7, 8}
    assert run(spawn, skipping(Faulty(bad), collate_fn=collate, **crew)) == survivors(bad)
    assert sorted(given) == survivors(bad)
    assert {type(samples) for samples in given} == {list}


def test_an_error_of_the_collate_function_is_never_skipped(spawn: Spawn) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 4 in samples:
            raise OSError("collate")
        return samples

    told = run(spawn, skipping(Faulty({0}), collate_fn=collate))
    assert texts(told) == [[1, 2], "OSError('collate')", [6, 7, 8], [9, 10, 11]]


# Which error is skipped --------------------------------------------------------------------------


@each_crew
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("kind", [Faulty, Whole])
def test_what_is_to_end_a_program_is_never_skipped(
    kind: Any, error: type[BaseException], crew: dict[str, Any], spawn: Spawn
) -> None:
    asked: list[Any] = []

    def on_error(error: Exception, index: Any) -> str:
        asked.append((error, index))
        return "skip"

    for answer in ("skip", on_error):
        with skipping(kind({4}, make_error=error), on_error=answer, **crew) as loader:
            future = spawn(outcomes, loader)
            assert isinstance(future.exception(PATIENCE), error)
    assert asked == []


@each_crew
@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("PIL"),
        MemoryError(),
        OSError(errno.EMFILE, "too many open files"),
    ],
    ids=str,
)
def test_what_ails_the_process_and_not_the_sample_is_skipped_by_a_function_alone(
    error: Exception, crew: dict[str, Any], spawn: Spawn
) -> None:
    def dataset() -> Faulty:
        return Faulty({4}, make_error=lambda _: error)

    told = run(spawn, skipping(dataset(), **crew))
    assert texts(told) == [[0, 1, 2], repr(error), [6, 7, 8], [9, 10, 11]]
    told = run(spawn, skipping(dataset(), on_error=lambda *_: "skip", **crew))
    assert told == [[0, 1, 2], [3, 5], [6, 7, 8], [9, 10, 11]]


@each_crew
def test_a_file_that_is_missing_ails_its_sample_alone(crew: dict[str, Any], spawn: Spawn) -> None:
    missing = FileNotFoundError(errno.ENOENT, "no such file")
    told = run(spawn, skipping(Faulty({4}, make_error=lambda _: missing), **crew))
    assert told == [[0, 1, 2], [3, 5], [6, 7, 8], [9, 10, 11]]


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


@each_crew
def test_a_sample_that_raises_stop_iteration_is_skipped_as_a_sample_error(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    loader = skipping(Faulty({4}, make_error=StopIteration), **crew)
    assert run(spawn, loader) == survivors({4})
    (skipped,) = loader.statistics().skipped
    assert skipped.error.startswith("SampleError: ")


def test_a_raised_stop_iteration_does_not_end_the_epoch(spawn: Spawn) -> None:
    loader = make(Faulty({4}, make_error=StopIteration), on_error=lambda *_: "raise")
    told = run(spawn, loader)
    assert isinstance(told.pop(1), SampleError)
    assert told == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]


@each_crew
def test_a_function_decides_by_error_and_index(crew: dict[str, Any], spawn: Spawn) -> None:
    asked: list[Any] = []

    def on_error(error: Exception, index: int) -> str:
        asked.append((type(error), index))
        return "raise" if index == 7 else "skip"

    told = run(spawn, make(Faulty({1, 7, 10}), on_error=on_error, **crew))
    assert isinstance(told[2], LookupError)
    assert told[2].__notes__[0].endswith("batch 2, index 7")
    assert [each for each in told if isinstance(each, list)] == [[0, 2], [3, 4, 5], [9, 11]]
    assert sorted(asked, key=lambda each: each[1]) == [(LookupError, i) for i in (1, 7, 10)]


@each_crew
@pytest.mark.parametrize("answer", [None, True, "Skip", "ignore", 0, b"skip"])
def test_an_answer_that_is_none_is_an_error_that_says_so(
    answer: Any, crew: dict[str, Any], spawn: Spawn
) -> None:
    told = run(spawn, make(Faulty({4}), on_error=lambda *_: answer, **crew))
    assert isinstance(told[1], TypeError)
    assert "'raise' or 'skip'" in str(told[1])
    assert repr(answer) in str(told[1])
    assert told[:1] + told[2:] == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]


@each_crew
def test_a_function_that_raises_is_what_the_consumer_gets(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    def on_error(error: Exception, index: int) -> str:
        raise ZeroDivisionError(index) from error

    told = run(spawn, make(Faulty({4, 7}), on_error=on_error, **crew))
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


@each_crew
def test_an_error_without_a_text_is_skipped_too(crew: dict[str, Any], spawn: Spawn) -> None:
    loader = skipping(Faulty({4}, make_error=lambda _: MuteError()), **crew)
    assert texts(run(spawn, loader)) == survivors({4})
    assert [each.index for each in loader.statistics().skipped] == [4]


def test_an_error_that_takes_no_notes_is_raised_itself_when_it_is_one_too_many(
    spawn: Spawn,
) -> None:
    class NotelessError(Exception):
        def add_note(self, _: str, /) -> None:
            raise RuntimeError("no notes")

    loader = skipping(Faulty({4}, make_error=NotelessError), max_skipped=0)
    assert texts(run(spawn, loader))[1] == "NotelessError(4)"


# Whole batches -----------------------------------------------------------------------------------


@each_crew
@pytest.mark.parametrize("bad", [{0}, {5}, {3, 4, 5}, {1, 7}], ids=str)
def test_whole_batches_that_fail_are_fetched_one_by_one(
    bad: set[int], crew: dict[str, Any], spawn: Spawn
) -> None:
    loader = skipping(Whole(bad), **crew)
    assert run(spawn, loader) == survivors(bad)
    assert [each.index for each in loader.statistics().skipped] == sorted(bad)


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


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_sample_draws_the_same_whether_or_not_its_neighbour_fails(
    threads: int, spawn: Spawn
) -> None:
    def drawn(bad: set[int]) -> dict[int, float]:
        loader = skipping(Drawing(bad), seed=5, threads=threads, collate_fn=list)
        with loader:
            return dict(pair for batch in spawn(list, loader).result(PATIENCE) for pair in batch)

    alone, all_of_them = drawn({1, 3, 8}), drawn(set())
    assert alone.keys() == all_of_them.keys() - {1, 3, 8}
    assert alone == {index: all_of_them[index] for index in alone}


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


# Iterables ---------------------------------------------------------------------------------------


class Interrupted:
    """Its iterator is a class that goes on after an error."""

    def __init__(self, size: int, bad: set[int]) -> None:
        self.size = size
        self.bad = bad

    def __iter__(self) -> Hiccups:
        return Hiccups(self.size, self.bad)


class Generated(Interrupted):
    def __iter__(self) -> Iterator[int]:
        for row in range(self.size):
            if row in self.bad:
                raise LookupError(row)
            yield row


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("bad", [{0}, {1, 2}, {3}, {0, 1, 2, 3, 4}, {8}], ids=str)
def test_an_iterator_that_goes_on_is_read_past_its_errors(
    bad: set[int], threads: int, spawn: Spawn
) -> None:
    loader = skipping(Interrupted(10, bad), threads=threads)
    rows = [row for row in range(10) if row not in bad]
    expected = [rows[start : start + 3] for start in range(0, len(rows), 3)]
    assert run(spawn, loader) == expected
    assert loader.statistics().skipped_count == len(bad)


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(
    ("size", "bad", "drop_last"),
    [(6, {4, 5}, False), (7, {6}, False), (8, {6, 7}, True), (5, {3, 4}, True), (4, {0, 3}, False)],
    ids=str,
)
def test_errors_at_the_end_of_an_iterable_are_counted(
    size: int, bad: set[int], drop_last: bool, threads: int, spawn: Spawn
) -> None:
    loader = skipping(Interrupted(size, bad), threads=threads, drop_last=drop_last)
    run(spawn, loader)
    assert loader.statistics().skipped_count == len(bad)


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_of_nothing_but_errors_is_no_empty_epoch_if_none_may_be_skipped(
    threads: int, spawn: Spawn
) -> None:
    loader = skipping(Interrupted(5, set(range(5))), threads=threads, max_skipped=0)
    told = run(spawn, loader)
    assert told
    assert isinstance(told[0], LookupError)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_generator_raises_as_it_has_ended(threads: int, spawn: Spawn) -> None:
    told = run(spawn, skipping(Generated(10, {4}), threads=threads))
    assert texts(told) == [[0, 1, 2], "LookupError(4)"]


@pytest.mark.parametrize("threads", [0, 1])
def test_what_is_made_of_a_generator_raises_too(threads: int, spawn: Spawn) -> None:
    class Mapped(Generated):
        def __iter__(self) -> Iterator[int]:
            return map(int, super().__iter__())

    told = run(spawn, skipping(Mapped(10, {4}), threads=threads))
    assert texts(told) == [[0, 1, 2], "LookupError(4)"]


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_that_never_gives_a_sample_again_ends_in_an_error(
    threads: int, spawn: Spawn
) -> None:
    class Dead:
        def __iter__(self) -> Dead:
            return self

        def __next__(self) -> int:
            raise OSError("dead")

    def first(loader: ThreadLoader[Any]) -> Any:
        return next(iter(loader))

    with skipping(Dead(), threads=threads, max_skipped=None) as loader:
        assert isinstance(spawn(first, loader).exception(PATIENCE), OSError)


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_a_transform_that_fails_leaves_its_row_out(threads: int, spawn: Spawn) -> None:
    def transform(row: int) -> int:
        if row in {0, 4, 6, 7, 8}:
            raise ValueError(row)
        return -row

    loader = skipping(Interrupted(12, {2}), threads=threads, transform=transform)
    # Read are 0 1 3, 4 5 6, 7 8 9, 10 11; of these some can't be transformed.
    assert run(spawn, loader) == [[-1, -3], [-5], [-9], [-10, -11]]
    assert loader.statistics().skipped_count == 6


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_function_is_given_the_index_that_is_listed(threads: int, spawn: Spawn) -> None:
    """Of an iterable: how many samples were read before, where reading or the transform failed."""
    asked: list[int] = []

    def on_error(_: Exception, index: int) -> str:
        asked.append(index)
        return "skip"

    def transform(row: int) -> int:
        if row in {5, 9}:
            raise ValueError(row)
        return row

    loader = make(Interrupted(12, {2}), on_error=on_error, threads=threads, transform=transform)
    run(spawn, loader)
    assert sorted(asked) == sorted(each.index for each in loader.statistics().skipped)
    assert sorted(asked) == [2, 4, 8]


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_goes_on_from_a_state_with_the_same_samples_left_out(
    threads: int, spawn: Spawn
) -> None:
    def build() -> ThreadLoader[Any]:
        return skipping(Interrupted(20, {0, 4, 5, 9, 19}), threads=threads)

    def rest(batches: int) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = state_after(build(), batches)
            return [batch.tolist() for batch in after(build(), state)[0]]

    whole = spawn(rest, 0).result(PATIENCE)
    assert [row for batch in whole for row in batch] == [
        row for row in range(20) if row not in {0, 4, 5, 9, 19}
    ]
    for batches in range(1, len(whole)):
        assert spawn(rest, batches).result(PATIENCE) == whole[batches:]


# How many ----------------------------------------------------------------------------------------


@each_crew
@pytest.mark.parametrize("most", [0, 1, 3, 4, 5, None])
def test_one_sample_too_many_is_raised_in_the_place_of_its_batch(
    most: int | None, crew: dict[str, Any], spawn: Spawn
) -> None:
    bad = [1, 4, 5, 6, 10]
    for _ in range(3):  # whichever thread is first
        told = run(spawn, skipping(Faulty(bad), max_skipped=most, **crew))
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


def test_max_skipped_counts_what_an_iterable_could_not_read_too(spawn: Spawn) -> None:
    told = run(spawn, skipping(Interrupted(12, {1, 5, 6}), threads=1, max_skipped=2))
    assert [type(each) for each in told] == [list, LookupError, list]
    assert told[1].args == (6,)


@pytest.mark.parametrize("most", [-1, 1.5, "1", True, [3]])
def test_a_number_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_skipped"):
        skipping(Faulty(), max_skipped=most)


@pytest.mark.parametrize("on_error", [None, "ignore", "", 1, b"skip", ["skip"]])
def test_an_action_that_is_none_is_refused(on_error: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="on_error"):
        skipping(Faulty(), on_error=on_error)


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


def test_statistics_can_be_asked_for_while_samples_are_left_out(spawn: Spawn) -> None:
    """They are shared: a thread that logs them may ask at any moment."""
    over = Event()

    def watch(loader: ThreadLoader[Any]) -> int:
        seen = 0
        while not over.wait(PAUSE):
            seen = max(seen, len(loader.statistics().skipped))
        return seen

    with skipping(Faulty(range(0, 6000, 2), 6000), 8, threads=1, max_skipped=None) as loader:
        watching = spawn(watch, loader)
        told = spawn(list, loader)
        try:
            assert len(told.result(PATIENCE)) == 750
        finally:
            over.set()
        assert watching.result(PATIENCE) <= 1000


@each_crew
def test_samples_next_to_a_failure_are_counted_as_fetched(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    loader = skipping(Whole({1, 4, 7}), **crew)
    run(spawn, loader)
    assert loader.statistics().totals.samples >= SIZE - 3


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


@pytest.mark.parametrize("threads", [0, 1])
def test_ragged_rows_are_named_rightly_also_when_the_direct_path_is_given_up(
    threads: int, spawn: Spawn
) -> None:
    class Ragged(Faulty):
        def sample(self, index: int) -> Any:
            return np.zeros(3 if index % 4 == 2 else 2)

    told = run(spawn, skipping(Ragged(range(8, 40, 4), 40), 4, threads=threads))
    named = [int(error.__notes__[-1].rpartition(" ")[2]) for error in told]
    assert named == list(range(2, 40, 4))


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


@each_crew
def test_short_batches_reach_a_device_whole_and_empty_ones_not_at_all(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice()
    bad = {0, 4, 6, 7, 8, 23}
    with make_copying(Copied(bad, 24), device, on_error="skip", **crew) as loader:
        for _ in range(2):
            told = spawn(lambda: [np.asarray(batch).tolist() for batch in loader]).result(PATIENCE)
            assert told == [[[i] * 3 for i in batch] for batch in survivors(bad, size=24)]
    assert device.broken == []


class Copied(Faulty):
    def sample(self, index: int) -> Any:
        return np.full(3, index)


@each_crew
def test_one_too_many_on_a_device_is_raised_in_its_place(
    crew: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice()
    with make_copying(Copied({4, 7}), device, on_error="skip", max_skipped=1, **crew) as loader:
        told = spawn(outcomes, loader).result(PATIENCE)
    assert [type(each) for each in told] == [list, list, LookupError, list]
    assert device.broken == []


class TrackedError(LookupError):
    """An error that can be referred to weakly."""


@each_crew
@pytest.mark.parametrize("answer", ["skip", "function"])
def test_nothing_keeps_an_error_that_was_skipped(
    answer: str, crew: dict[str, Any], spawn: Spawn
) -> None:
    errors: list[weakref.ref[Any]] = []

    def make_error(index: int) -> BaseException:
        error = TrackedError(index)
        errors.append(weakref.ref(error))
        return error

    on_error = "skip" if answer == "skip" else lambda *_: "skip"
    loader = make(Copied({1, 4, 6, 7, 8}, make_error=make_error), on_error=on_error, **crew)

    def loop() -> None:
        for _ in loader:
            pass

    with loader:
        spawn(loop).result(PATIENCE)
    join_workers()
    gc.collect()
    assert len(errors) == 5
    assert [error() for error in errors] == [None] * 5


@each_crew
def test_short_and_empty_batches_hold_no_slot(crew: dict[str, Any], spawn: Spawn) -> None:
    def loop(loader: ThreadLoader[Any]) -> list[int]:
        made = []
        for _ in range(4):
            for batch in loader:
                assert len(batch)
            del batch
            made.append(loader.statistics().slots.made)
        return made

    with skipping(Copied({1, 4, 6, 7, 8}), prefetch=2, **crew) as loader:
        first, *later = spawn(loop, loader).result(PATIENCE)
    join_workers()
    slots = loader.statistics().slots
    assert slots.leased + slots.filling == 0
    assert set(later) <= {first, first + 1}


def test_a_batch_that_is_kept_stays_as_it_was(spawn: Spawn) -> None:
    with skipping(Copied({1, 4, 6, 7, 8}), prefetch=1) as loader:
        kept = [batch for _ in range(4) for batch in spawn(list, loader).result(PATIENCE)]
    expected = survivors({1, 4, 6, 7, 8}) * 4
    assert [batch[:, 0].tolist() for batch in kept] == expected


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


def test_closing_while_samples_fail_hangs_nobody(spawn: Spawn) -> None:
    entered, gate = Event(), Event()

    class Late(Faulty):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                entered.set()
                assert gate.wait(PATIENCE)
            return super().__getitem__(index)

    loader = skipping(Late({1, 4, 7}), threads=2, dataset_copy="shared")
    future = spawn(list, loader)
    assert entered.wait(PATIENCE)
    closing = spawn(loader.close)
    gate.set()
    closing.result(PATIENCE)
    assert future.exception(PATIENCE) is None or isinstance(future.exception(), ClosedError)
    assert not [t for t in threading.enumerate() if "-worker-" in t.name and t.is_alive()]


def test_both_settings_count_from_the_next_epoch(spawn: Spawn) -> None:
    with make(Faulty({4, 7}), persistent_workers=True) as loader:
        assert texts(spawn(outcomes, loader).result(PATIENCE))[1:3] == [
            "LookupError(4)",
            "LookupError(7)",
        ]
        loader.on_error = "skip"
        assert spawn(outcomes, loader).result(PATIENCE) == survivors({4, 7})
        loader.max_skipped = 1
        assert texts(spawn(outcomes, loader).result(PATIENCE))[2] == "LookupError(7)"
