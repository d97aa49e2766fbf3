"""The words of a position follow from seed, kind and position, whatever was asked for before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadloader._rng.words import RANDOM_WORDS, TORCH_WORDS, WIDTH, PositionWords

TAIL = 2 * (RANDOM_WORDS - TORCH_WORDS)  # words of 32 bits
seeds = st.integers(0, (1 << 64) - 1)
positions = st.one_of(st.integers(0, 600), st.integers(0, 1 << 62))


def words_at(table: PositionWords, seed: int, position: int) -> list[int]:
    row = table.row(seed, position)
    return list(table.values[row * WIDTH : (row + 1) * WIDTH])


@settings(max_examples=60)
@given(asked=st.lists(st.tuples(st.sampled_from([3, 1 << 63]), positions), max_size=30))
def test_words_of_a_position_are_the_same_after_any_other_positions(asked: Any) -> None:
    table = PositionWords(b"sample")
    for seed, position in asked:
        expected = words_at(PositionWords(b"sample"), seed, position)
        assert words_at(table, seed, position) == expected


def test_words_are_the_same_in_order_with_gaps_and_backwards() -> None:
    forwards, gaps, backwards = (PositionWords(b"sample") for _ in range(3))
    expected = [words_at(forwards, 5, position) for position in range(700)]
    for start in range(0, 700, 64):  # as one of two threads loads them
        for position in range(start, min(start + 32, 700)):
            assert words_at(gaps, 5, position) == expected[position]
    for position in reversed(range(700)):
        assert words_at(backwards, 5, position) == expected[position]


@given(seed=seeds, position=positions)
def test_seeds_positions_and_kinds_have_words_of_their_own(seed: int, position: int) -> None:
    samples, batches = PositionWords(b"sample"), PositionWords(b"batch")
    told = [
        words_at(samples, seed, position),
        words_at(samples, seed, position + 1),
        words_at(samples, seed ^ 1, position),
        words_at(batches, seed, position),
    ]
    assert len({word for words in told for word in words}) == 4 * WIDTH


@pytest.mark.parametrize("position", [0, 7, 300])
def test_tempered_words_are_what_a_mersenne_twister_draws_from_the_others(position: int) -> None:
    table = PositionWords(b"sample")
    for before in range(position):
        table.row(9, before)
    at = table.row(9, position) * TAIL
    twister = np.random.MT19937(0)
    state: Any = twister.state
    state["state"]["key"][-TAIL:] = table.tails[at : at + TAIL]
    state["state"]["pos"] = 624 - TAIL
    twister.state = state
    assert twister.random_raw(TAIL).tolist() == list(table.tempered[at : at + TAIL])


def test_more_rows_are_computed_at_once_the_more_are_used() -> None:
    table, rows = PositionWords(b"sample"), []
    table.expected = 20
    for first in range(0, 40 * 50, 40):  # as one of two threads loads them
        table.row(5, first)
        table.row(5, first + 19)
        table.used += 20
        rows.append(table.rows)
    assert rows[0] == 20
    assert rows[-1] == 256
    for first in range(10**6, 10**7, 10**6):  # as one of many
        table.row(5, first)
        table.used += 20
    assert 20 <= table.rows <= 80


def test_what_is_interrupted_is_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    table = PositionWords(b"sample")
    words_at(table, 5, 0)
    with monkeypatch.context() as patched:

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        patched.setattr("threadloader._rng.words.memoryview", interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            table.row(5, 8)
    for position in (8, 0, 20):
        expected = words_at(PositionWords(b"sample"), 5, position)
        assert words_at(table, 5, position) == expected
