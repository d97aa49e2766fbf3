"""What is drawn in a sample after its first words, and after its state was set or asked for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from threadloader._rng.isolation import isolated
from threadloader._rng.streams import WorkerStream, enter_sample_streams, leave_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

legacy = np.random  # its old functions are what is tested


@pytest.fixture(autouse=True)
def in_sample() -> Iterator[Callable[[int], None]]:
    """Have this thread load sample 0; what is given goes to another one."""
    stream = WorkerStream(3, 0)
    with isolated(stream):
        enter_sample_streams(5, 0, ())
        yield lambda position: enter_sample_streams(5, position, ())
        leave_streams()


def draws(number: int) -> list[Any]:
    values: list[Any] = [random.random() for _ in range(number)]
    values += [random.getrandbits(k) for k in (1, 31, 32, 33, 64, 65, 300)]
    values += [random.gauss(0, 1), random.choice("abcdef"), random.sample(range(99), 9)]
    values += [float(legacy.rand()), float(legacy.normal()), int(legacy.randint(1 << 40))]
    return values


@pytest.mark.parametrize("number", [0, 1, 11, 12, 13, 700])
def test_a_sample_draws_the_same_each_time(number: int, in_sample: Callable[[int], None]) -> None:
    first = draws(number)
    in_sample(1)
    other = draws(number)
    in_sample(0)
    assert draws(number) == first != other


@pytest.mark.parametrize("before", [0, 1, 11, 12, 13])
def test_a_seed_gives_python_s_and_numpy_s_own_numbers(before: int) -> None:
    for _ in range(before):
        random.random()
        legacy.rand()
    for seed in (5, 6, 5):
        random.seed(seed)
        legacy.seed(seed)
        own, own_legacy = random.Random(seed), legacy.RandomState(seed)
        assert [random.random() for _ in range(20)] == [own.random() for _ in range(20)]
        assert random.gauss(0, 1) == own.gauss(0, 1)
        assert random.getrandbits(70) == own.getrandbits(70)
        assert legacy.rand(20).tolist() == own_legacy.rand(20).tolist()
        assert legacy.normal() == own_legacy.normal()


@pytest.mark.parametrize("before", [0, 1, 11, 12, 13])
def test_a_state_that_is_taken_and_set_again_gives_the_same_numbers(before: int) -> None:
    for _ in range(before):
        random.gauss(0, 1)
        legacy.normal()
    states = random.getstate(), legacy.get_state()
    first = draws(30)
    random.setstate(states[0])
    legacy.set_state(states[1])
    assert draws(30) == first
    own, own_legacy = random.Random(), legacy.RandomState()
    own.setstate(states[0])
    own_legacy.set_state(states[1])
    assert own.random() == first[0]
    random.setstate(states[0])
    legacy.set_state(states[1])
    assert own_legacy.normal() == legacy.normal()


def test_to_ask_for_numpy_s_state_twice_is_to_ask_once() -> None:
    legacy.rand()
    one, other = legacy.get_state(), legacy.get_state()
    assert one[1].tolist() == other[1].tolist()
    assert one[2:] == other[2:]


def test_a_seeded_sample_leaves_nothing_to_the_next(in_sample: Callable[[int], None]) -> None:
    in_sample(1)
    expected = draws(12)
    in_sample(0)
    random.seed(4)
    legacy.seed(4)
    random.gauss(0, 1)
    legacy.normal()
    in_sample(1)
    assert draws(12) == expected


@pytest.mark.parametrize("bits", [-1, 1.5, "3"])
def test_a_wrong_number_of_bits_is_python_s_own_error(bits: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as expected:
        random.Random(1).getrandbits(bits)
    with pytest.raises(expected.type, match=str(expected.value).replace("(", ".")):
        random.getrandbits(bits)


def test_no_bits_are_nought() -> None:
    assert random.getrandbits(0) == 0


def test_values_of_random_are_spread_over_their_range(in_sample: Callable[[int], None]) -> None:
    values, bits = [], []
    for position in range(4000):
        in_sample(position)
        values.append(random.random())
        bits.append(random.getrandbits(3))
    assert 0 <= min(values) < 0.01
    assert 0.99 < max(values) < 1
    assert abs(float(np.mean(values)) - 0.5) < 0.03
    assert max(np.bincount(bits, minlength=8)) < 650
    assert min(np.bincount(bits, minlength=8)) > 350
