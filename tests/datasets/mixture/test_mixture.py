"""Mixture: map-style datasets as one, the same whoever asks for which positions when."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections import Counter
from itertools import chain
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from threadloader import StateError, ThreadLoader
from threadloader.datasets import Mixture

if TYPE_CHECKING:
    from support.patience import Spawn

MILLION = 10**6


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
        "abcd"[n]: (kind(MILLION * n, length), weights[n]) for n, length in enumerate(lengths)
    }
    return Mixture(sources, **options)


def all_of(mixed: Any) -> list[int]:
    return [mixed[position] for position in range(len(mixed))]


def sources_of(samples: list[int]) -> Counter[int]:
    return Counter(sample // MILLION for sample in samples)


def batches(loader: Any) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


def samples_of(loader: Any) -> list[int]:
    return list(chain.from_iterable(batches(loader)))


# Of sources with 50, 300 and 20 samples, whose weights are 3, 1 and 0.5.
ENDS = {"first": (50, 17, 8), "all": (900, 300, 150), "once": (50, 300, 20), "repeat": (60, 20, 10)}
each_stop = pytest.mark.parametrize("stop", ENDS)


def ending(stop: str, **options: Any) -> Any:
    if stop == "repeat":
        options["length"] = 90
    return mixture(50, 300, 20, stop=stop, **options)


@each_stop
def test_an_epoch_ends_where_the_user_chose(stop: str) -> None:
    samples = all_of(ending(stop))
    for source, expected in enumerate(ENDS[stop]):
        assert abs(sources_of(samples)[source] - expected) <= 2
        times = Counter(sample for sample in samples if sample // MILLION == source).values()
        assert max(times) - min(times) <= 1
    if stop in ("first", "once"):
        assert max(Counter(samples).values()) == 1
    if stop in ("all", "once"):
        assert len(set(samples)) == 370


@each_stop
def test_an_epoch_has_an_order_of_its_own_and_so_has_a_seed(stop: str) -> None:
    mixed = ending(stop)
    first = all_of(mixed)
    mixed.set_epoch(1)
    assert all_of(mixed) != first
    mixed.set_epoch(0)
    assert all_of(mixed) == first
    assert all_of(ending(stop, seed=1)) != first


def test_over_epochs_of_a_length_each_sample_comes_equally_often() -> None:
    mixed = mixture(50, 300, 20, weights=(1, 1, 1), stop="repeat", length=100)
    seen: Counter[int] = Counter()
    for epoch in range(9):
        mixed.set_epoch(epoch)
        seen.update(all_of(mixed))
    assert {seen[MILLION + n] for n in range(300)} == {1}
    assert {seen[n] for n in range(50)} == {6}


def test_an_endless_mixture_is_read_anywhere() -> None:
    mixed = mixture(60, MILLION - 1, 20, stop="repeat")
    assert len(mixed) == 2**62
    far = [mixed[10**15 + n] for n in range(1000)]
    assert [mixed[10**15 + n] for n in reversed(range(1000))][::-1] == far
    assert sources_of(far)[0] in range(640, 700)
    assert mixed[-1] == mixed[2**62 - 1]


@pytest.mark.parallel
def test_a_position_has_the_same_sample_in_any_order_and_thread(spawn: Spawn) -> None:
    mixed = mixture(5000, 3000, 200, stop="all")
    samples = all_of(mixture(5000, 3000, 200, stop="all"))
    barrier = Barrier(4)

    def read(seed: int) -> bool:
        rng = random.Random(seed)
        barrier.wait()
        for _ in range(300):
            start = rng.randrange(len(samples))
            stop = min(len(samples), start + rng.choice([1, 20, 100]))
            if [mixed[position] for position in range(start, stop)] != samples[start:stop]:
                return False
        return True

    calls = [spawn(read, seed) for seed in range(4)]
    assert [call.result() for call in calls] == [True] * 4


def test_a_position_out_of_range_is_an_error() -> None:
    mixed = mixture(5, 5, 5)
    assert [mixed[position] for position in range(-len(mixed), 0)] == all_of(mixed)
    for position in (len(mixed), -len(mixed) - 1):
        with pytest.raises(IndexError, match="has none at"):
            mixed[position]
    assert mixed[np.int64(2)] == mixed[2]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda mixed: pickle.loads(pickle.dumps(mixed))]
)
def test_a_copy_has_the_same_samples(copied: Any) -> None:
    mixed = mixture(500, 300, 2000)
    mixed.set_epoch(2)
    mixed[0]
    assert all_of(copied(mixed)) == all_of(mixed)


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("copies", ["auto", "shared", "deep"])
def test_a_loader_has_the_order_of_each_epoch_on_any_threads(threads: int, copies: Any) -> None:
    mixed, other = mixture(50, 30, 200), mixture(50, 30, 200)
    kept: dict[str, Any] = {"persistent_workers": threads > 0, "dataset_copy": copies}
    with ThreadLoader(mixed, 8, num_workers=threads, **kept) as loader:
        for epoch in range(3):
            mixed.set_epoch(epoch)
            other.set_epoch(epoch)
            assert samples_of(loader) == all_of(other)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("options", [{"stop": "all"}, {"stop": "repeat", "length": 700}])
def test_a_run_goes_on_in_the_middle_of_any_epoch(threads: int, options: Any) -> None:
    mixed = mixture(500, 300, 20, **options)
    with ThreadLoader(mixed, 16, num_workers=threads) as loader:
        mixed.set_epoch(3)
        expected = batches(loader)
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 500
    resumed = mixture(500, 300, 20, **options)
    with ThreadLoader(resumed, 16, num_workers=threads) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == expected[9:]
        resumed.set_epoch(4)
        following = samples_of(loader)
    mixed.set_epoch(4)
    assert following == all_of(mixed)


@pytest.mark.parametrize("threads", [0, 3])
def test_weights_change_at_a_position_however_far_workers_are_ahead(threads: int) -> None:
    def make() -> Any:
        return mixture(500, 300, 20, stop="repeat", length=4000)

    mixed, plain = make(), all_of(make())
    with ThreadLoader(mixed, 10, num_workers=threads) as loader:
        iterator = iter(loader)
        got = [np.asarray(next(iterator)).tolist() for _ in range(20)]
        mixed.set_weights({"a": 0, "b": 1, "c": 1}, at=2345)
        state = loader.state_dict()
        got += batches(iterator)
    samples = list(chain.from_iterable(got))
    assert samples[:2345] == plain[:2345]
    assert sources_of(samples[2345:])[0] == 0
    assert abs(sources_of(samples[2345:])[1] - (4000 - 2345) / 2) < 20
    resumed = make()
    with ThreadLoader(resumed, 10, num_workers=threads) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == got[20:]
    assert resumed.counts(2345) == dict(
        zip("abc", map(sources_of(plain[:2345]).get, range(3)), strict=True)
    )


def test_weights_do_not_change_what_was_loaded() -> None:
    even = {"a": 1, "b": 1, "c": 1}
    mixed = mixture(500, 300, 20, stop="repeat", length=4000)
    mixed[1000]
    with pytest.raises(ValueError, match="position 1000 was loaded already"):
        mixed.set_weights(even, at=900)
    mixed.set_weights(even, at=2000)
    with pytest.raises(ValueError, match="change at position 2000, which is after 1500"):
        mixed.set_weights(even, at=1500)
    mixed.set_weights(even | {"a": 2}, at=2000)
    for stop in ("first", "all", "once"):
        with pytest.raises(ValueError, match="use stop='repeat'"):
            mixture(50, 30, 20, stop=stop).set_weights(even, at=5)


def test_the_source_comes_with_the_sample() -> None:
    pairs = all_of(mixture(50, 30, 20, with_source=True))
    assert all(sample // MILLION == number for sample, number in pairs)
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
        assert "abc".index(name) * MILLION + index == sample
        counts[name] += 1
    assert mixed.counts() == counts


def test_sources_with_whole_batches_are_asked_once_a_batch() -> None:
    Whole.calls = 0
    mixed = mixture(500, 300, 2000, kind=Whole)
    with ThreadLoader(mixed, 100, num_workers=2) as loader:
        assert samples_of(loader) == all_of(mixture(500, 300, 2000))
        assert Whole.calls <= 3 * len(loader)
    one = Mixture({"a": (Whole(0, 50), 1), "b": (Named(MILLION, 50), 1)})
    assert one.__getitems__ is None


def test_a_source_may_be_a_mixture() -> None:
    inner = mixture(50, 30, 20, stop="once")
    mixed = Mixture({"inner": (inner, 1), "x": (Named(5 * MILLION, 100), 1)}, stop="all")
    assert len(set(all_of(mixed))) == 200
    with ThreadLoader(mixed, 7, num_workers=2, persistent_workers=True) as loader:
        for epoch in range(2):
            mixed.set_epoch(epoch)
            assert samples_of(loader) == all_of(mixed)


@pytest.mark.parametrize(
    ("sources", "error", "told"),
    [
        ({}, ValueError, "at least one source"),
        ([([1], 1)], TypeError, "takes a dict"),
        ({"a": [1, 2, 3]}, TypeError, "'a' must be a pair"),
        ({1: ([1], 1)}, TypeError, "must be a string"),
        ({"a": ([1], -1)}, ValueError, "weight of 'a' must be 0 or more"),
        ({"a": ([1], float("nan"))}, ValueError, "weight of 'a' must be 0 or more"),
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
    assert sorted(all_of(Mixture({"a": ([], 0), "b": ([7, 8], 1)}))) == [7, 8]


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
    for no_state in ({}, None, {"mixture": 2}, {"mixture": 1}, state | {"epoch": -1}):
        with pytest.raises(StateError, match="state"):
            mixture(500, 300, 20, stop="repeat").load_state_dict(no_state)


def test_a_run_goes_on_with_a_new_source() -> None:
    old = mixture(500, 300, stop="repeat", length=3000)
    new = mixture(500, 300, 20, weights=(3, 1, 0), stop="repeat", length=3000)
    new.set_weights({"a": 1, "b": 1, "c": 1}, at=1000)
    new.load_state_dict(old.state_dict())
    assert all_of(new)[:1000] == all_of(old)[:1000]
    assert sources_of(all_of(new)[1000:])[2] in range(660, 674)


def test_a_state_keeps_changes_that_come_later_and_refuses_others() -> None:
    old, new, other = (mixture(50, 30, stop="repeat") for _ in range(3))
    old.set_weights({"a": 1, "b": 2}, at=100)
    new.set_weights({"a": 1, "b": 2}, at=100)
    new.set_weights({"a": 1, "b": 9}, at=200)
    before = new.state_dict()
    new.load_state_dict(old.state_dict())
    assert new.state_dict() == before
    other.set_weights({"a": 1, "b": 2}, at=99)
    with pytest.raises(StateError, match="change at position 99"):
        other.load_state_dict(old.state_dict())
