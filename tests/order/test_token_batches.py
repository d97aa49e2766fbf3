"""TokenBatches: every sample once, a bounded cost, little padding, balance, resumed anywhere."""

from __future__ import annotations

import array
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadloader import StateError, ThreadLoader, TokenBatches

LENGTHS = np.clip(np.random.default_rng(0).lognormal(5, 1, 60_000), 16, 1024).astype(np.int32)


def costs_of(batches: list[list[int]], lengths: Any, multiple: int | None = None) -> np.ndarray:
    longest = [max(lengths[index] for index in batch) for batch in batches]
    if multiple is not None:
        longest = [math.ceil(most / multiple) * multiple for most in longest]
    return np.array([len(batch) * most for batch, most in zip(batches, longest, strict=True)])


@st.composite
def samplers(draw: st.DrawFn) -> tuple[list[float], int, dict[str, Any]]:
    """Return lengths, max_tokens and options."""
    whole = st.integers(1, 60)
    part = st.floats(0.01, 60)
    lengths = draw(st.lists(draw(st.sampled_from([whole, part])), min_size=1, max_size=120))
    options = {
        "max_samples": draw(st.none() | st.integers(1, 10)),
        "group_size": draw(st.integers(1, 9)),
        "pool_size": draw(st.none() | st.integers(1, 130)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 1 << 40)),
    }
    return lengths, draw(st.integers(60, 400)), options


@given(samplers())
def test_every_sample_comes_once_and_no_batch_costs_more_than_max_tokens(
    case: tuple[list[float], int, dict[str, Any]],
) -> None:
    lengths, max_tokens, options = case
    sampler = TokenBatches(lengths, max_tokens, **options)
    count, batches = len(sampler), list(sampler)
    assert count == len(batches)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert costs_of(batches, lengths).max() <= max_tokens
    assert max(map(len, batches)) <= (options["max_samples"] or len(lengths))
    assert all(type(index) is int for batch in batches for index in batch)


@given(samplers(), st.data())
def test_a_pass_goes_on_from_any_batch(
    case: tuple[list[float], int, dict[str, Any]], data: st.DataObject
) -> None:
    lengths, max_tokens, options = case
    sampler = TokenBatches(lengths, max_tokens, **options)
    sampler.set_epoch(3)
    batches, following = list(sampler), list(sampler)
    sampler.set_epoch(3)
    stop = data.draw(st.integers(0, len(batches)))
    begun = iter(sampler)
    assert list(islice(begun, stop)) == batches[:stop]
    state = json.dumps(begun.state_dict())
    assert len(state) < 100

    resumed = TokenBatches(lengths, max_tokens, **options)
    rest = iter(resumed)
    rest.load_state_dict(json.loads(state))
    assert list(rest) == batches[stop:]
    assert list(resumed) == following


@pytest.mark.parametrize(("max_tokens", "most"), [(2048, 1.04), (8192, 1.025), (65_536, 1.01)])
def test_little_is_padding_and_ranks_in_turn_have_about_equal_costs_and_lengths(
    max_tokens: int, most: float
) -> None:
    for group_size in (1, 8):
        batches = list(TokenBatches(LENGTHS, max_tokens, group_size=group_size))
        costs = costs_of(batches, LENGTHS)
        assert 1 - LENGTHS.sum() / costs.sum() < 0.01
    for ranks in (2, 4, 8):
        steps = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
        assert (steps.max(axis=1) / steps.mean(axis=1)).mean() < most
    longest = np.array([LENGTHS[batch].max() for batch in batches])
    steps = longest[: len(longest) // 8 * 8].reshape(-1, 8)
    together = (steps.max(axis=1) - steps.min(axis=1)).mean()
    assert together < np.ptp(np.sort(longest)[::8]) / 10


def test_each_epoch_has_an_order_of_its_own() -> None:
    sampler = TokenBatches(LENGTHS, 8192)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(TokenBatches(LENGTHS, 8192, seed=1)) != first
    batches = iter(sampler)
    sampler.set_epoch(1)  # a pass that is not begun has the epoch that is set last
    assert list(batches) == second


def test_without_shuffling_pools_are_spans_of_the_dataset_and_longest_comes_first() -> None:
    lengths = [3, 9, 5, 1, 8, 2]
    sampler = TokenBatches(lengths, 10, shuffle=False, pool_size=3)
    assert list(sampler) == [[1], [2, 0], [4], [5, 3]]
    assert list(sampler) == list(sampler)


def test_lengths_are_rounded_up_where_they_will_be_padded() -> None:
    lengths = np.array([1, 9, 10, 16], np.uint8)
    batches = list(TokenBatches(lengths, 32, pad_to_multiple_of=8, pool_size=4))
    assert costs_of(batches, lengths, 8).max() <= 32
    assert sorted(map(len, batches)) == [2, 2]


def test_lengths_may_be_of_many_kinds(tmp_path: Path) -> None:
    expected = list(TokenBatches([4, 3, 2, 1], 5))
    mapped = np.memmap(tmp_path / "lengths", np.int32, "w+", shape=4)
    mapped[:] = [4, 3, 2, 1]
    kinds: list[Any] = [(4, 3, 2, 1), array.array("i", [4, 3, 2, 1]), mapped, Column()]
    kinds += [np.array([4, 3, 2, 1], dtype) for dtype in ("u1", "u8", "i1", "f2", ">i4")]
    for lengths in kinds:
        assert list(TokenBatches(lengths, 5)) == expected
    torch = pytest.importorskip("torch")
    assert list(TokenBatches(torch.tensor([4, 3, 2, 1]), 5)) == expected


class Column:
    """A column of a table, as that of Hugging Face's datasets."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: slice) -> list[int]:
        return [4, 3, 2, 1][key]


def test_samples_that_are_too_long_are_an_error_or_left_out_or_stand_alone() -> None:
    with pytest.raises(
        ValueError, match=r"sample 2 has length 30: .* more than max_tokens=20: .*drop"
    ):
        TokenBatches([3, 20, 30], 20)
    with pytest.raises(ValueError, match=r"sample 1 has length 18: with padding that is more than"):
        TokenBatches([3, 18], 20, pad_to_multiple_of=8)
    lengths = [3, 20, 30, 40]
    dropped = list(TokenBatches(lengths, 20, too_long="drop"))
    assert sorted(index for batch in dropped for index in batch) == [0, 1]
    alone = list(TokenBatches(lengths, 20, too_long="alone"))
    assert sorted(alone) == [[0], [1], [2], [3]]
    assert list(TokenBatches([30, 40], 20, too_long="drop")) == []


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        *(
            (np.array([5, wrong, 3]), ValueError, "sample 1 has length .*: it must be positive")
            for wrong in (0, -1, float("nan"), float("inf"), 1 << 60)
        ),
        ([], ValueError, r"have shape \(0,\)"),
        ([[1, 2], [3, 4]], ValueError, r"one number for each sample, but have shape \(2, 2\)"),
        ([[1], [2, 3]], TypeError, "with one number for each sample"),
        ([True, False], TypeError, "lengths must be numbers, but have type bool"),
        ({1: 2}, TypeError, "lengths must be an array or a list.* not this dict"),
    ],
)
def test_what_are_no_lengths_is_refused(lengths: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TokenBatches(lengths, 10)


@pytest.mark.parametrize(
    "other",
    [
        *(TokenBatches(LENGTHS + 1, 8192), TokenBatches(LENGTHS, 8193)),
        *(TokenBatches(LENGTHS, 8192, seed=1), TokenBatches(LENGTHS, 8192, group_size=4)),
    ],
)
def test_the_state_of_another_order_is_refused(other: TokenBatches) -> None:
    state = iter(other).state_dict()
    with pytest.raises(StateError, match="with other lengths, another seed or argument"):
        iter(TokenBatches(LENGTHS, 8192)).load_state_dict(state)
    for change in ({"epoch": -1}, {"pool": "0"}, {"more": 1}):
        with pytest.raises(StateError, match="no state of a TokenBatches"):
            iter(other).load_state_dict(state | change)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="no state of a TokenBatches"):
        iter(other).load_state_dict({})


def test_more_samples_than_can_be_counted_at_once_have_no_len(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_COUNTED", "_CHECKED"):
        monkeypatch.setattr(f"threadloader._order.token_batches.{name}", 4096)
    many = np.ones(4097, np.uint8)
    many[-1] = 3
    with pytest.raises(TypeError, match="the number of batches follows from all of 4,097"):
        len(TokenBatches(many, 4096))
    with pytest.raises(ValueError, match="sample 4096 has length 3"):
        TokenBatches(many, 2)


@pytest.mark.parametrize("samples", [49, 51])  # of 51 one would be left out, and nobody told
def test_lengths_of_another_dataset_are_refused(samples: int) -> None:
    loader = ThreadLoader(range(samples), batch_sampler=TokenBatches([3] * 50, 12))
    with pytest.raises(ValueError, match=f"of 50 samples, and the dataset has {samples}"):
        iter(loader)
