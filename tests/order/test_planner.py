"""What samplers may give, how batches are cut into tickets, and the samplers without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader
from threadloader._order.samplers import RandomSampler, SequentialSampler
from threadloader._order.tickets import PlannedBatch, TicketCutter, TicketSize

MICROSECOND = 1e-6
MILLISECOND = 1e-3
each_number_of_threads = pytest.mark.parametrize("threads", [0, 2])


def loaded(threads: int, batch_sampler: Any, dataset: Any = None) -> list[Any]:
    dataset = Acting(10, repr, lambda index: index) if dataset is None else dataset
    with ThreadLoader(
        dataset, batch_sampler=batch_sampler, threads=threads, collate_fn=list
    ) as loader:
        return list(loader)


def tensor(batch: list[int]) -> Any:
    return pytest.importorskip("torch").tensor(batch)


@each_number_of_threads
def test_without_batches_each_index_is_a_sample_as_it_is(threads: int, spawn: Spawn) -> None:
    given = [7, "key", (1, 2), [3, 4], None]
    with ThreadLoader(
        Acting(10, repr, lambda index: index),
        None,
        sampler=given,
        threads=threads,
        collate_fn=lambda sample: sample,
    ) as loader:
        assert spawn(list, loader).result(PATIENCE) == given


@each_number_of_threads
def test_a_sampler_may_reuse_its_list(threads: int, spawn: Spawn) -> None:
    def reusing() -> Iterator[list[int]]:
        batch: list[int] = []
        for index in range(4):
            batch.append(index)
            if len(batch) == 2:
                yield batch
                batch.clear()

    assert spawn(loaded, threads, reusing()).result(PATIENCE) == [[0, 1], [2, 3]]


# TicketSize and TicketCutter


def _cutter(rows: int, pace: TicketSize, share: float, *, whole: bool = False) -> TicketCutter:
    return TicketCutter(PlannedBatch(0, range(rows), None), pace, lambda: share, one_ticket=whole)


def _sizes(cutter: TicketCutter) -> list[int]:
    sizes = []
    while (ticket := cutter.cut()) is not None:
        sizes.append(ticket.stop - ticket.start)
    assert cutter.cut() is None
    return sizes


def _pace(seconds: float, rows: int = 10_000) -> TicketSize:
    """A pace that has seen many samples of ``seconds`` each."""
    pace = TicketSize()
    pace.measured(rows, rows * seconds)
    return pace


@pytest.mark.parametrize(
    ("rows", "seconds", "share", "sizes"),
    [
        (0, MICROSECOND, 1 / 4, [0]),
        (256, 2 * MICROSECOND, 1 / 2, [256]),
        (64, 0.1 * MILLISECOND, 1 / 2, [10] * 6 + [4]),  # about a millisecond of work
        (64, MILLISECOND, 1 / 2, [1] * 64),
        (64, 1.5 * MILLISECOND, 1 / 2, [1] * 64),
        (64, 1.0, 1 / 2, [1] * 64),
        (16, 0.1 * MILLISECOND, 1 / 16, [1] * 16),  # threads share all batches that are open
        (16, 0.1 * MILLISECOND, 4 / 16, [4] * 4),
        (16, 0.1 * MILLISECOND, 32 / 16, [10, 6]),
    ],
)
def test_tickets_are_small_where_samples_are_slow(
    rows: int, seconds: float, share: float, sizes: list[int]
) -> None:
    assert _sizes(_cutter(rows, _pace(seconds), share)) == sizes
    assert _sizes(_cutter(rows, _pace(seconds), share, whole=True)) == [rows]


def test_the_first_tickets_have_one_row_and_a_ticket_without_rows_is_no_evidence() -> None:
    pace = TicketSize()
    assert _sizes(_cutter(8, pace, 1 / 4)) == [1] * 8
    pace.measured(0, 1.0)
    assert pace.rows(100, lambda: 1.0) == 1
    pace.measured(10, 10 * MICROSECOND)
    assert pace.rows(100, lambda: 1.0) == 10


# Samplers


def test_a_sampler_follows_a_dataset_that_grows() -> None:
    dataset = ["a"]
    samplers = [SequentialSampler(dataset), RandomSampler(dataset)]
    dataset.append("b")
    assert [sorted(sampler) for sampler in samplers] == [[0, 1], [0, 1]]
    assert [len(sampler) for sampler in samplers] == [2, 2]
