"""Mixture: exact shares of map-style datasets, the same whoever asks for which positions when."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections import Counter
from functools import partial
from itertools import chain
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from threadloader import StateError, ThreadLoader
from threadloader.datasets import Mixture
from threadloader.datasets._mixture.plan import Plan

if TYPE_CHECKING:
    from support.patience import Spawn


class Named:
    """Sample ``i`` is ``number + i``."""

    def __init__(self, number: int, length: int) -> None:
        self.number, self.length = number, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.number + index


class Whole(Named):
    """It counts calls for several samples."""

    calls = 0

    def __getitems__(self, indices: list[int]) -> list[int]:
        type(self).calls += 1
        return [self[index] for index in indices]


def mixture(*lengths: int, weights: Any = (3, 1, 0.5), kind: Any = Named, **options: Any) -> Any:
    sources = {
        "abcdefghij"[n]: (kind(1000_000 * n, length), weights[n])
        for n, length in enumerate(lengths)
    }
    return Mixture(sources, **options)


def all_of(mixed: Any) -> list[int]:
    return [mixed[position] for position in range(len(mixed))]


def sources_of(samples: list[int]) -> Counter[int]:
    return Counter(sample // 1_000_000 for sample in samples)


def joined(found: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(found))


def batches(loader: Any) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


def test_first_repeats_no_sample_and_uses_one_source_up() -> None:
    samples = all_of(mixture(600, 300, 2000))
    assert len(set(samples)) == len(samples)
    assert sources_of(samples)[0] == 600
    assert sources_of(samples)[1] in range(198, 203)
    assert sources_of(samples)[2] in range(98, 103)


def test_all_gives_every_sample_at_least_once() -> None:
    mixed = mixture(50, 300, 20, stop="all")
    samples = all_of(mixed)
    counts = Counter(samples)
    assert len(counts) == 370
    assert sources_of(samples)[1] == 300  # the one that takes longest
    assert {n for sample, n in counts.items() if sample < 50} <= {
        17,
        18,
    }  # whole passes, and a part


def test_once_gives_every_sample_exactly_once() -> None:
    samples = all_of(mixture(50, 300, 20, stop="once"))
    assert sorted(samples) == sorted(
        [*range(50), *range(10**6, 10**6 + 300), *range(2 * 10**6, 2 * 10**6 + 20)]
    )
    assert sources_of(samples[:60])[0] >= 35


def test_weights_of_whole_numbers_are_the_counts_where_the_length_is_their_sum() -> None:
    mixed = mixture(50, 300, 20, weights=(700, 200, 100), stop="repeat", length=1000)
    assert sources_of(all_of(mixed)) == {0: 700, 1: 200, 2: 100}
    assert mixed.counts() == {"a": 700, "b": 200, "c": 100}


def test_an_epoch_of_a_length_goes_on_where_the_one_before_ended() -> None:
    mixed = mixture(50, 300, 20, weights=(1, 1, 1), stop="repeat", length=100)
    seen: Counter[int] = Counter()
    for epoch in range(9):
        mixed.set_epoch(epoch)
        seen.update(all_of(mixed))
    assert {seen[10**6 + n] for n in range(300)} == {1}
    assert {seen[n] for n in range(50)} == {6}


@pytest.mark.parametrize("stop", ["first", "all", "once", "repeat"])
def test_an_epoch_has_another_order(stop: Any) -> None:
    mixed = mixture(60, 30, 20, stop=stop, **({"length": 90} if stop == "repeat" else {}))
    first = all_of(mixed)
    mixed.set_epoch(1)
    second = all_of(mixed)
    assert first != second
    mixed.set_epoch(0)
    assert all_of(mixed) == first
    other = mixture(60, 30, 20, stop=stop, seed=1, **({"length": 90} if stop == "repeat" else {}))
    assert all_of(other) not in (first, second)


def test_without_shuffle_each_source_is_in_order() -> None:
    samples = all_of(mixture(60, 30, 20, shuffle=False, stop="all"))
    assert [sample for sample in samples if sample >= 2 * 10**6][:20] == [
        2 * 10**6 + n for n in range(20)
    ]
    firsts = [sample for sample in samples if sample < 10**6]
    assert firsts == [n % 60 for n in range(len(firsts))]


def test_an_endless_mixture_is_read_anywhere() -> None:
    mixed = mixture(60, 10**6 - 1, 20, stop="repeat")
    assert len(mixed) == 2**62
    far = [mixed[10**15 + n] for n in range(1000)]
    assert [mixed[10**15 + n] for n in reversed(range(1000))][::-1] == far
    assert sources_of(far)[0] in range(640, 700)
    assert mixed[-1] == mixed[2**62 - 1]


def test_a_position_has_the_same_sample_in_any_order_of_access() -> None:
    mixed = mixture(5000, 3000, 200, stop="all")
    samples = all_of(mixed)
    rng = random.Random(0)
    for _ in range(2000):
        start = rng.randrange(len(samples))
        stop = min(len(samples), start + rng.choice([1, 1, 2, 40]))
        assert [mixed[position] for position in range(start, stop)] == samples[start:stop]


@pytest.mark.parallel
def test_a_position_has_the_same_sample_in_any_thread(spawn: Spawn) -> None:
    mixed = mixture(5000, 3000, 200, stop="all")
    samples = all_of(mixture(5000, 3000, 200, stop="all"))
    barrier = Barrier(4)

    def read(seed: int) -> bool:
        rng = random.Random(seed)
        barrier.wait()
        for _ in range(300):
            start = rng.randrange(len(samples))
            for position in range(start, min(len(samples), start + 20)):
                if mixed[position] != samples[position]:
                    return False
        return True

    calls = [spawn(read, seed) for seed in range(4)]
    assert [call.result() for call in calls] == [True] * 4


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("copies", ["auto", "shared", "deep"])
def test_a_loader_gives_the_same_order_on_any_threads(threads: int, copies: Any) -> None:
    mixed = mixture(500, 300, 2000)
    expected = all_of(mixed)
    with ThreadLoader(mixed, 32, num_workers=threads, dataset_copy=copies) as loader:
        assert joined(batches(loader)) == expected


@pytest.mark.parametrize("copies", ["auto", "shared", "deep"])
def test_kept_workers_see_a_new_epoch(copies: Any) -> None:
    mixed = mixture(50, 30, 200)
    with ThreadLoader(
        mixed, 8, num_workers=2, persistent_workers=True, dataset_copy=copies
    ) as loader:
        for epoch in range(3):
            mixed.set_epoch(epoch)
            expected = all_of(mixture_at(epoch))
            assert joined(batches(loader)) == expected


def mixture_at(epoch: int) -> Any:
    mixed = mixture(50, 30, 200)
    mixed.set_epoch(epoch)
    return mixed


@pytest.mark.parametrize(
    "shape", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_has_the_same_samples(shape: Any) -> None:
    mixed = mixture(500, 300, 2000)
    mixed.set_epoch(2)
    mixed[0]
    assert all_of(shape(mixed)) == all_of(mixed)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("stop", ["all", "repeat"])
def test_a_run_goes_on_in_the_middle_of_any_epoch(threads: int, stop: Any) -> None:
    def make() -> Any:
        return mixture(500, 300, 20, stop=stop, **({"length": 700} if stop == "repeat" else {}))

    mixed = make()
    with ThreadLoader(mixed, 16, num_workers=threads) as loader:
        mixed.set_epoch(3)
        expected = batches(loader)
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 500
    resumed = make()
    with ThreadLoader(resumed, 16, num_workers=threads) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == expected[9:]
        resumed.set_epoch(4)
        following = batches(loader)
    again = make()
    again.set_epoch(4)
    assert joined(following) == all_of(again)


@pytest.mark.parametrize("threads", [0, 3])
def test_weights_change_at_a_position_however_far_workers_are_ahead(threads: int) -> None:
    mixed = mixture(500, 300, 20, stop="repeat", length=4000)
    plain = all_of(mixed)
    mixed = mixture(500, 300, 20, stop="repeat", length=4000)
    with ThreadLoader(mixed, 10, num_workers=threads) as loader:
        iterator = iter(loader)
        got = [np.asarray(next(iterator)).tolist() for _ in range(20)]
        mixed.set_weights({"a": 0, "b": 1, "c": 1}, at=2345)
        state = loader.state_dict()
        got += [np.asarray(batch).tolist() for batch in iterator]
    samples = joined(got)
    assert samples[:2345] == plain[:2345]
    assert sources_of(samples[2345:])[0] == 0
    assert abs(sources_of(samples[2345:])[1] - (4000 - 2345) / 2) < 20
    assert len(json.dumps(state)) < 500
    resumed = mixture(500, 300, 20, stop="repeat", length=4000)
    with ThreadLoader(resumed, 10, num_workers=threads) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == got[20:]
    assert resumed.counts(2345) == dict(
        zip("abc", map(sources_of(plain[:2345]).get, range(3)), strict=True)
    )


def test_every_index_comes_once_in_a_pass_across_changes_of_the_weights() -> None:
    mixed = mixture(500, 300, 20, stop="repeat", length=5000)
    for at, weight in ((777, 5), (1234, 0.2), (3001, 9)):
        mixed.set_weights({"a": 1, "b": weight, "c": 0.01}, at=at)
    seconds = [sample for sample in all_of(mixed) if 10**6 <= sample < 2 * 10**6]
    for start in range(0, len(seconds) - 300, 300):
        assert len(set(seconds[start : start + 300])) == 300


@pytest.mark.parametrize("world", [2, 4, 8])
def test_ranks_that_share_out_positions_deliver_what_one_does(world: int) -> None:
    make = partial(mixture, 500, 300, 20, stop="repeat", length=1600)
    expected = all_of(make())
    ranks = [make() for _ in range(world)]
    in_turn = [ranks[position % world][position] for position in range(1600)]
    assert in_turn == expected
    blocks = [ranks[position // 16 % world][position] for position in range(1600)]
    assert blocks == expected
    # Whichever positions a rank has, it has all sources.
    for rank in range(world):
        assert abs(sources_of(expected[rank::world])[0] - 1600 / world * 2 / 3) < 30


def test_sequences_of_positions_in_turn_are_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = mixture(10**6, 10**6, 10**6, stop="repeat")
    asked: list[int] = []
    span = Plan.span

    def watched(plan: Plan, position: int, rows: int) -> Any:
        asked.append(rows)
        return span(plan, position, rows)

    monkeypatch.setattr(Plan, "span", watched)
    for position in range(2000):
        for thread in range(4):  # as where all threads have the same object
            mixed[10_000 * thread + position]
    assert len(asked) < 50


def test_weights_do_not_change_what_was_loaded() -> None:
    mixed = mixture(500, 300, 20, stop="repeat", length=4000)
    mixed[1000]
    with pytest.raises(ValueError, match="position 1000 was loaded already"):
        mixed.set_weights({"a": 1, "b": 1, "c": 1}, at=900)
    mixed.set_weights({"a": 1, "b": 1, "c": 1}, at=2000)
    with pytest.raises(ValueError, match="change at position 2000, which is after 1500"):
        mixed.set_weights({"a": 1, "b": 1, "c": 1}, at=1500)
    mixed.set_weights({"a": 2, "b": 1, "c": 1}, at=2000)


@pytest.mark.parametrize("stop", ["first", "all", "once"])
def test_weights_that_decide_the_length_do_not_change(stop: Any) -> None:
    with pytest.raises(ValueError, match="use stop='repeat'"):
        mixture(50, 30, 20, stop=stop).set_weights({"a": 1, "b": 1, "c": 1}, at=5)


def test_the_source_comes_with_the_sample() -> None:
    pairs = all_of(mixture(50, 30, 20, with_source=True))
    assert all(sample // 10**6 == number for sample, number in pairs)
    mixed = Mixture({"a": ([{"x": 1}], 1), "b": ([{"x": 2}], 1)}, stop="all", with_source="from")
    assert sorted(mixed[n]["from"] for n in range(2)) == [0, 1]
    assert mixed.names == ("a", "b")
    with pytest.raises(TypeError, match="this one is a int"):
        mixture(5, 5, 5, with_source="from")[0]


def test_the_source_of_a_position_and_the_counts_before_it_are_known() -> None:
    mixed = mixture(500, 300, 20, stop="all")
    mixed.set_epoch(2)
    counts = dict.fromkeys("abc", 0)
    for position, sample in enumerate(all_of(mixed)):
        if position % 37 == 0:
            assert mixed.counts(position) == counts
        name, index = mixed.source_of(position)
        assert "abc".index(name) * 10**6 + index == sample
        counts[name] += 1
    assert mixed.counts() == counts


def test_sources_with_whole_batches_are_asked_once_a_batch() -> None:
    Whole.calls = 0
    mixed = mixture(500, 300, 2000, kind=Whole)
    with ThreadLoader(mixed, 100, num_workers=2) as loader:
        assert joined(batches(loader)) == all_of(mixture(500, 300, 2000))
        assert Whole.calls <= 3 * len(loader)
    one = Mixture({"a": (Whole(0, 50), 1), "b": (Named(10**6, 50), 1)})
    assert one.__getitems__ is None


def test_a_source_may_be_a_mixture() -> None:
    inner = mixture(50, 30, 20, stop="once")
    mixed = Mixture({"inner": (inner, 1), "x": (Named(5 * 10**6, 100), 1)}, stop="all")
    assert len(set(all_of(mixed))) == 200
    with ThreadLoader(mixed, 7, num_workers=2, persistent_workers=True) as loader:
        for epoch in range(2):
            mixed.set_epoch(epoch)
            assert joined(batches(loader)) == all_of(mixed)


@pytest.mark.parametrize(
    ("sources", "error", "told"),
    [
        ({}, ValueError, "at least one source"),
        ([([1], 1)], TypeError, "takes a dict"),
        ({"a": [1, 2, 3]}, TypeError, "'a' must be a pair"),
        ({1: ([1], 1)}, TypeError, "must be a string"),
        ({"a": ([1], -1)}, ValueError, "weight of 'a' must be 0 or more"),
        ({"a": ([1], float("nan"))}, ValueError, "weight of 'a' must be 0 or more"),
        ({"a": ([1], float("inf"))}, ValueError, "weight of 'a' must be 0 or more"),
        ({"a": ([1], "1")}, TypeError, "weight of 'a' must be a number"),
        ({"a": ([1], 0), "b": ([1], 0.0)}, ValueError, "all weights are 0"),
        ({"a": ([], 1)}, ValueError, "'a' has a weight of 1, and no samples"),
        ({"a": (5, 1)}, TypeError, "'a' is no dataset"),
        ({"a": (list, 1)}, TypeError, "'a' is no dataset"),
    ],
)
def test_sources_that_can_not_be_mixed_are_refused(sources: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        Mixture(sources)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stop": "never"}, "stop must be one of"),
        ({"length": 5}, "is for stop='repeat'"),
        ({"length": 0, "stop": "repeat"}, "from 1"),
        ({"seed": -1}, "at least 0"),
    ],
)
def test_arguments_out_of_their_range_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        mixture(5, 5, 5, **options)


def test_an_empty_source_without_a_weight_is_left_out() -> None:
    assert sorted(all_of(Mixture({"a": ([], 0), "b": ([7, 8], 1)}))) == [7, 8]


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({"a": 1, "b": 1}, "'c' has no weight"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "no source 'd'"),
        ({"a": 0, "b": 0, "c": 0}, "all weights are 0"),
        ({"a": 0, "b": -1, "c": 0}, "0 or more"),
    ],
)
def test_weights_that_name_no_mixture_are_refused(weights: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        mixture(5, 5, 5, stop="repeat").set_weights(weights, at=1000)


def test_a_length_that_lies_is_told_by_the_error_of_the_source() -> None:
    source = Named(0, 50)
    mixed = Mixture({"liar": (source, 1)})
    source.length = 10
    with pytest.raises(IndexError) as caught:
        all_of(mixed)
    assert "'liar'" in caught.value.__notes__[0]
    assert "of 50" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="'liar' had 50 samples, and now has 10"):
        mixed.set_epoch(1)


def test_a_position_out_of_range_is_an_error() -> None:
    mixed = mixture(5, 5, 5)
    samples = all_of(mixed)
    assert [mixed[position] for position in range(-len(mixed), 0)] == samples
    assert [mixed[-1 - position] for position in range(len(mixed))] == samples[::-1]
    for position in (len(mixed), -len(mixed) - 1):
        with pytest.raises(IndexError, match="has none at"):
            mixed[position]
    assert mixed[np.int64(2)] == mixed[2]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: mixture(500, 300, 21, stop="repeat"), "'c': 21"),
        (lambda: mixture(500, 300, 20, stop="repeat", seed=1), "seed was 0 and is 1"),
        (lambda: mixture(500, 300, 20, stop="repeat", length=9), "length was None and is 9"),
        (lambda: mixture(500, 300, 20, weights=(3, 2, 0.5), stop="repeat"), "weight of 'b' was 1"),
        (lambda: mixture(500, 300, stop="repeat"), "'c' is missing"),
        (lambda: mixture(500, 300, 20, 5, weights=(3, 1, 0.5, 1), stop="repeat"), "'d' is new"),
    ],
)
def test_the_state_of_another_mixture_is_refused(other: Any, told: str) -> None:
    state = mixture(500, 300, 20, stop="repeat").state_dict()
    with pytest.raises(StateError, match=told):
        other().load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None, {"mixture": 2}, {"mixture": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="state"):
        mixture(5, 5, 5).load_state_dict(state)


def test_a_run_goes_on_with_a_new_source() -> None:
    old = mixture(500, 300, stop="repeat", length=3000)
    new = mixture(500, 300, 20, weights=(3, 1, 0), stop="repeat", length=3000)
    new.set_weights({"a": 1, "b": 1, "c": 1}, at=1000)
    new.load_state_dict(old.state_dict())
    assert all_of(new)[:1000] == all_of(old)[:1000]
    assert sources_of(all_of(new)[1000:])[2] in range(660, 674)


def test_a_state_keeps_changes_that_come_later_and_refuses_others() -> None:
    old = mixture(50, 30, stop="repeat")
    old.set_weights({"a": 1, "b": 2}, at=100)
    state = old.state_dict()
    new = mixture(50, 30, stop="repeat")
    new.set_weights({"a": 1, "b": 2}, at=100)
    new.set_weights({"a": 1, "b": 9}, at=200)
    before = new.state_dict()
    new.load_state_dict(state)
    assert new.state_dict() == before
    other = mixture(50, 30, stop="repeat")
    other.set_weights({"a": 1, "b": 2}, at=99)
    with pytest.raises(StateError, match="change at position 99"):
        other.load_state_dict(state)
