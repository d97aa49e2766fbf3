"""The planner, the size of tickets, and the samplers that stand in for torch's."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._order.planner import Planner
from threadloader._order.samplers import BatchSampler, RandomSampler, SequentialSampler
from threadloader._order.tickets import PlannedBatch, Ticket, TicketCutter, TicketSize
from threadloader._order.user_pass import UserPass
from threadloader._resume.position import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

MICROSECOND = 1e-6
MILLISECOND = 1e-3


def _planned(sampler: Iterable[Any], *, batched: bool = True) -> list[PlannedBatch]:
    planner = Planner(UserPass(sampler), Lane(), batched=batched)
    batches = []
    while (batch := planner.draw()) is not None:
        batches.append(batch)
    return batches


def _content(batch: PlannedBatch | None) -> tuple[object, ...]:
    """Sequence, indices, drawn and position: all but the check of the indices so far."""
    assert batch is not None
    return batch[:4]


def _batch(rows: int) -> PlannedBatch:
    return PlannedBatch(0, range(rows), None)


def _tickets(cutter: TicketCutter) -> list[Ticket]:
    tickets = []
    while (ticket := cutter.cut()) is not None:
        tickets.append(ticket)
    return tickets


def _sizes(rows: int, pace: TicketSize, threads: int, *, whole: bool = False) -> list[int]:
    cutter = TicketCutter(_batch(rows), pace, lambda: 1 / threads, one_ticket=whole)
    return [ticket.stop - ticket.start for ticket in _tickets(cutter)]


def _pace(seconds: float, rows: int = 10_000) -> TicketSize:
    """A pace that has seen many samples of ``seconds`` each."""
    pace = TicketSize()
    pace.measured(rows, rows * seconds)
    return pace


# Planner


def test_batches_are_numbered_in_the_samplers_order() -> None:
    batches = _planned([[4, 5], [6], []])
    assert [(batch.sequence, list(batch.indices)) for batch in batches] == [
        (0, [4, 5]),
        (1, [6]),
        (2, []),
    ]


@pytest.mark.parametrize(
    "kind",
    [list, tuple, iter, np.array, dict.fromkeys, lambda batch: (index for index in batch)],
    ids=["list", "tuple", "iterator", "array", "dict", "generator"],
)
def test_any_iterable_of_indices_is_a_batch(kind: Any) -> None:
    [batch] = _planned([kind([3, 1, 2])])
    assert list(batch.indices) == [3, 1, 2]
    assert len(batch.indices) == 3


def test_a_tensor_of_indices_is_a_batch() -> None:
    torch = pytest.importorskip("torch")
    [batch] = _planned([torch.tensor([3, 1, 2])])
    assert [int(index) for index in batch.indices] == [3, 1, 2]


@pytest.mark.parametrize("index", [7, "key", (1, 2), [3, 4], None])
def test_without_batches_each_index_is_a_sample_as_it_is(index: Any) -> None:
    [batch] = _planned([index], batched=False)
    assert len(batch.indices) == 1
    assert batch.indices[0] == index


def test_what_the_sampler_drew_is_kept_for_getitems() -> None:
    given = [np.array([1, 2]), [3], (4, 5)]
    drawn = [batch.drawn for batch in _planned(given)]
    assert list(map(type, drawn)) == list(map(type, given))
    assert list(map(list, drawn)) == list(map(list, given))


def test_getitems_of_a_batch_that_is_an_iterator_gets_all_its_indices() -> None:
    class Whole:
        def __getitem__(self, index: int) -> int:
            return index

        def __getitems__(self, indices: Iterable[int]) -> list[int]:
            return [self[index] for index in indices]

    batches = [[3, 1], [2]]
    with ThreadLoader(Whole(), batch_sampler=map(iter, batches), threads=1) as loader:
        assert [batch.tolist() for batch in loader] == batches


def _reusing_its_list() -> Iterator[list[int]]:
    batch = []
    for index in range(4):
        batch.append(index)
        if len(batch) == 2:
            yield batch
            batch.clear()


def test_a_batch_does_not_change_when_the_sampler_reuses_its_list() -> None:
    assert [list(batch.indices) for batch in _planned(_reusing_its_list())] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_sampler_may_reuse_its_list(spawn: Callable[..., Future[Any]], threads: int) -> None:
    loader = ThreadLoader(range(4), batch_sampler=_reusing_its_list(), threads=threads)
    batches = spawn(iter, loader).result(PATIENCE)
    try:
        loaded = [spawn(next, batches).result(PATIENCE).tolist() for _ in range(2)]
    finally:
        batches.close()
    assert loaded == [[0, 1], [2, 3]]


def test_a_sampler_that_ends_stays_ended() -> None:
    planner = Planner(UserPass([[1]]), Lane(), batched=True)
    assert planner.draw() is not None
    assert [planner.draw(), planner.draw()] == [None, None]


def test_no_batch_is_drawn_before_it_is_asked_for() -> None:
    drawn = []

    def sampler() -> Iterator[list[int]]:
        for index in range(5):
            drawn.append(index)
            yield [index]

    planner = Planner(UserPass(sampler()), Lane(), batched=True)
    assert not drawn
    planner.draw()
    assert drawn == [0]


def test_an_error_of_the_sampler_is_raised_as_it_is() -> None:
    error = LookupError("no more")

    def sampler() -> Iterator[list[int]]:
        yield [1]
        raise error

    planner = Planner(UserPass(sampler()), Lane(), batched=True)
    planner.draw()
    with pytest.raises(LookupError) as caught:
        planner.draw()
    assert caught.value is error


def test_a_sampler_that_goes_on_after_an_error_loses_no_number() -> None:
    class Hiccup:
        def __init__(self) -> None:
            self.calls = 0

        def __iter__(self) -> Hiccup:
            return self

        def __next__(self) -> list[int]:
            self.calls += 1
            if self.calls == 2:
                raise OSError
            return [self.calls]

    planner = Planner(UserPass(Hiccup()), Lane(), batched=True)
    assert _content(planner.draw()) == (0, [1], [1], 0)
    with pytest.raises(OSError):  # noqa: PT011  # it has no message
        planner.draw()
    assert _content(planner.draw()) == (1, [3], [3], 1)


def test_a_batch_that_is_no_iterable_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        Planner(UserPass([5]), Lane(), batched=True).draw()


# TicketSize and TicketCutter


@given(
    rows=st.integers(0, 300),
    threads=st.integers(1, 40),
    whole=st.booleans(),
    measured=st.lists(st.tuples(st.integers(0, 300), st.floats(0, 2))),
)
def test_tickets_partition_the_rows_in_order_whatever_is_measured(
    rows: int, threads: int, whole: bool, measured: list[tuple[int, float]]
) -> None:
    pace, batch = TicketSize(), _batch(rows)
    cutter = TicketCutter(batch, pace, lambda: 1 / threads, one_ticket=whole)
    tickets = []
    while (ticket := cutter.cut()) is not None:
        tickets.append(ticket)
        if measured:
            pace.measured(*measured.pop())
    assert [row for ticket in tickets for row in range(ticket.start, ticket.stop)] == list(
        range(rows)
    )
    assert all(ticket.batch is batch for ticket in tickets)
    assert all(ticket.stop > ticket.start for ticket in tickets) or rows == 0


def test_an_empty_batch_has_one_empty_ticket() -> None:
    for whole in (False, True):
        assert _sizes(0, TicketSize(), 4, whole=whole) == [0]


def test_a_cutter_that_ends_stays_ended() -> None:
    cutter = TicketCutter(_batch(2), TicketSize(), lambda: 0.25, one_ticket=True)
    _tickets(cutter)
    assert [cutter.cut(), cutter.cut()] == [None, None]


@pytest.mark.parametrize("seconds", [MICROSECOND, MILLISECOND, 1.0])
def test_a_whole_batch_is_one_ticket_whatever_its_samples_take(seconds: float) -> None:
    assert _sizes(100, _pace(seconds), 4, whole=True) == [100]


def test_the_first_tickets_have_one_row() -> None:
    assert _sizes(8, TicketSize(), 4) == [1] * 8


def test_samples_of_microseconds_make_one_ticket_of_a_batch() -> None:
    assert _sizes(256, _pace(2 * MICROSECOND), 2) == [256]


@pytest.mark.parametrize("seconds", [MILLISECOND, 1.5 * MILLISECOND, 1.0])
def test_samples_of_milliseconds_make_tickets_of_one_row(seconds: float) -> None:
    assert _sizes(64, _pace(seconds), 2) == [1] * 64


def test_a_ticket_is_about_a_millisecond_of_work() -> None:
    assert _sizes(64, _pace(0.1 * MILLISECOND), 2)[:-1] == [10] * 6


@given(
    rows=st.integers(1, 1000),
    threads=st.integers(1, 64),
    seconds=st.floats(MICROSECOND, 1.0),
)
def test_where_a_batch_is_worth_sharing_no_ticket_exceeds_a_fair_share(
    rows: int, threads: int, seconds: float
) -> None:
    if rows * seconds <= MILLISECOND:
        assert _sizes(rows, _pace(seconds), threads) == [rows]
    else:
        assert max(_sizes(rows, _pace(seconds), threads)) <= -(-rows // threads)


@pytest.mark.parametrize(("batches", "sizes"), [(1, [1] * 16), (4, [4] * 4), (32, [10, 6])])
def test_threads_share_all_batches_that_are_open(batches: int, sizes: list[int]) -> None:
    # 16 rows of 0.1 ms, 16 threads: shared alone, a batch is cut into tickets of one row.
    cutter = TicketCutter(
        _batch(16), _pace(0.1 * MILLISECOND), lambda: batches / 16, one_ticket=False
    )
    assert [ticket.stop - ticket.start for ticket in _tickets(cutter)] == sizes


@given(measured=st.lists(st.tuples(st.integers(1, 20), st.floats(0, 1)), max_size=10))
def test_tickets_grow_no_faster_than_the_evidence(measured: list[tuple[int, float]]) -> None:
    pace, seen = TicketSize(), 0
    for rows, seconds in measured:
        assert 1 <= pace.rows(10_000, lambda: 0.5) <= max(1, seen)
        pace.measured(rows, seconds)
        seen += rows


def test_a_ticket_without_rows_is_no_evidence() -> None:
    pace = TicketSize()
    pace.measured(0, 1.0)
    assert pace.rows(100, lambda: 1.0) == 1
    pace.measured(10, 10 * MICROSECOND)
    assert pace.rows(100, lambda: 1.0) == 10


def test_one_slow_sample_alone_changes_little() -> None:
    pace = _pace(MICROSECOND)
    pace.measured(1, 10 * MICROSECOND)
    assert _sizes(256, pace, 2) == [256]


def test_one_sample_that_was_far_too_slow_is_forgotten() -> None:
    pace = _pace(MICROSECOND)
    pace.measured(1, 10 * MILLISECOND)
    assert len(_sizes(256, pace, 2)) > 1
    for _ in range(30):
        pace.measured(10, 10 * MICROSECOND)
    assert _sizes(256, pace, 2) == [256]


def test_samples_that_became_slow_make_small_tickets_soon() -> None:
    pace = _pace(MICROSECOND)
    for _ in range(3):
        pace.measured(100, 100 * 5 * MILLISECOND)
    assert _sizes(4, pace, 2) == [1] * 4


def test_what_was_cut_of_a_batch_does_not_bind_the_rest_of_it() -> None:
    pace = TicketSize()
    cutter = TicketCutter(_batch(100), pace, lambda: 0.5, one_ticket=False)
    first = cutter.cut()
    pace.measured(200, 200 * MICROSECOND)
    second = cutter.cut()
    assert first is not None
    assert second is not None
    assert (first.start, first.stop, second.start, second.stop) == (0, 1, 1, 100)


@given(
    rows=st.integers(0, 300),
    threads=st.integers(1, 16),
    whole=st.booleans(),
    seconds=st.floats(0, 0.01),
)
def test_the_tickets_left_are_foretold_where_the_pace_does_not_change(
    rows: int, threads: int, whole: bool, seconds: float
) -> None:
    cutter = TicketCutter(_batch(rows), _pace(seconds), lambda: 1 / threads, one_ticket=whole)
    foretold = cutter.left()
    tickets = 0
    while cutter.cut() is not None:
        tickets += 1
        assert cutter.left() == max(1, foretold - tickets)
    assert tickets == foretold


# Samplers


def test_a_sequential_sampler_counts_the_dataset() -> None:
    sampler = SequentialSampler("abc")
    assert list(sampler) == list(sampler) == [0, 1, 2]
    assert len(sampler) == 3


def test_a_sampler_follows_a_dataset_that_grows() -> None:
    dataset = ["a"]
    samplers = [SequentialSampler(dataset), RandomSampler(dataset)]
    dataset.append("b")
    assert [sorted(sampler) for sampler in samplers] == [[0, 1], [0, 1]]
    assert [len(sampler) for sampler in samplers] == [2, 2]


@given(size=st.integers(0, 50), seed=st.integers(0, 2**32 - 1))
def test_a_random_sampler_draws_every_index_once(size: int, seed: int) -> None:
    order = list(RandomSampler(range(size), np.random.default_rng(seed)))
    assert sorted(order) == list(range(size))
    assert all(type(index) is int for index in order)


def test_each_epoch_has_an_order_of_its_own() -> None:
    sampler = RandomSampler(range(100), np.random.default_rng(0))
    assert list(sampler) != list(sampler)


def test_numpys_seed_decides_the_order() -> None:
    orders = []
    for _ in range(2):
        np.random.seed(3)  # noqa: NPY002  # what users of NumPy's global state call
        orders.append(list(RandomSampler(range(100))))
    assert orders[0] == orders[1]


def test_the_generator_decides_the_order_and_the_global_state_is_left_alone() -> None:
    state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    first, second = (list(RandomSampler(range(100), np.random.default_rng(3))) for _ in "ab")
    assert first == second
    assert all(map(np.array_equal, np.random.get_state(), state))  # noqa: NPY002
    assert random.getstate() == python_state


@given(size=st.integers(0, 40), batch_size=st.integers(1, 12), drop_last=st.booleans())
def test_batches_are_the_sampler_cut_into_equal_parts(
    size: int, batch_size: int, drop_last: bool
) -> None:
    sampler = BatchSampler(range(size), batch_size, drop_last)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    kept = size - size % batch_size if drop_last else size
    assert [index for batch in batches for index in batch] == list(range(kept))


@given(size=st.integers(0, 40), batch_size=st.integers(1, 12), drop_last=st.booleans())
def test_our_samplers_have_the_structure_of_torchs(
    size: int, batch_size: int, drop_last: bool
) -> None:
    data = pytest.importorskip("torch.utils.data")
    ours = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last)
    torchs = data.BatchSampler(data.SequentialSampler(range(size)), batch_size, drop_last)
    assert list(ours) == list(torchs)
    assert len(ours) == len(torchs)
    assert type(next(iter(ours), [])) is list


def test_each_batch_is_a_list_of_its_own() -> None:
    batches = list(BatchSampler(range(4), 2, drop_last=False))
    batches[0].clear()
    assert batches[1] == [2, 3]


def test_a_batch_sampler_over_a_sampler_without_length_has_none_either() -> None:
    batches = BatchSampler(iter([1, 2]), 2, drop_last=False)
    with pytest.raises(TypeError, match="no len"):
        len(batches)
