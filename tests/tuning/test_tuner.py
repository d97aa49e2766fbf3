"""How many threads make the batches: found on models of data, with a clock that the test drives."""

# ruff: noqa: SLF001  # a limit that is noted and not taken has no public name

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest

from threadloader._threads.tuner import COST_SHARE, Limits, Tuner


class Load(NamedTuple):
    """What so many threads do with a kind of samples, if the loop always waits for them."""

    rate: float  # samples a second
    cores: float  # that they use


def holds_the_gil(threads: int) -> Load:
    """Pure Python of a millisecond: threads take turns, and that costs something."""
    return Load(1000 / (1.05 if threads else 1.0), 1.0)


def changes_hands(threads: int) -> Load:
    """Short operators: each release of the GIL wakes another thread."""
    return Load(1000 / (4.0 if threads > 1 else 1.0), 1.1)


def computes(threads: int) -> Load:
    """A decoder that releases the GIL, on two cores."""
    return Load(500.0 * max(1, min(threads, 2)), float(min(threads, 2)))


def waits(threads: int) -> Load:
    """Reads of 10 ms: threads wait side by side, up to what 100 of them get."""
    return Load(100.0 * max(1, min(threads, 100)), 0.002 * threads)


def half_releases(threads: int) -> Load:
    """Half of a sample's millisecond releases the GIL: two threads are 1.3 times as fast."""
    return Load(1000.0 * (1.3 if threads > 1 else 1.0), 1.3 if threads > 1 else 1.0)


def contends(threads: int) -> Load:
    """Microseconds without a GIL: threads are in each other's way."""
    return Load(400_000.0 / (1, 1.1, 2.5)[min(threads, 2)], float(min(threads, 2)))


def queues_for_the_gil(threads: int) -> Load:
    """Rows of 1 MiB, copied without the GIL: so many on 16 cores, as measured."""
    rates = {0: 9100, 1: 9100, 2: 24400, 4: 39700, 8: 18600, 16: 9300}
    cores = {0: 1.0, 1: 1.0, 2: 2.0, 4: 3.4, 8: 3.8, 16: 4.7}
    return Load(rates[threads], cores[threads])


class Simulation:
    """A loop over a loader, whose samples come as fast as a model says.

    Args:
        limits: How many threads there may be.
        outside: Seconds that the loop spends with each sample; threads work meanwhile.
        noise: Share by which the rate varies.
        told: Share of a sample's seconds that is told: less where a few take far longer.
        window: Samples that threads make ahead of a loop which does something else, too.
    """

    def __init__(
        self,
        limits: Limits,
        outside: float = 0.0,
        noise: float = 0.0,
        told: float = 1.0,
        window: float = 0.0,
    ) -> None:
        self.now = self.samples = self.loading = self.cpu = self.ready = 0.0
        self.outside, self.noise, self.told, self.window = outside, noise, told, window
        self.numbers: list[tuple[float, int]] = []  # when, and how many
        self.tuner = Tuner(lambda: self.now, lambda: self.cpu)
        self.tuner.serve(limits)
        self._rng = random.Random(0)

    def run(self, data: Callable[[int], Load], seconds: float) -> float:
        """Return the samples a second of that time."""
        end, began, first = self.now + seconds, self.now, self.samples
        step = 1e-3
        while self.now < end:
            number = self.tuner.number
            load = data(number)
            most = load.rate * (1 + self._rng.uniform(-self.noise, self.noise))
            if number:
                made = most + self.ready / step
                rate = min(made, 1 / self.outside) if self.outside else most
                loading = 1 - rate * self.outside
                self.ready = min(self.window, (made - rate) * step)
            else:
                rate = 1 / (1 / most + self.outside)
                loading = rate / most
            self.now += step
            self.samples += rate * step
            self.loading += max(0.0, loading) * step
            self.cpu += load.cores * step * rate / most if number else 0.0
            if self.now >= self.tuner.due:
                each = self.told * max(1, number) / load.rate
                self.tuner.look(int(self.samples), self.loading, each, 1 / data(1).rate)
            if self.tuner.number != number:
                self.numbers.append((self.now, self.tuner.number))
        return (self.samples - first) / (self.now - began)


def default(threads: int = 2, *, has_gil: bool = True) -> Limits:
    return Limits(threads, 256, has_gil)


CASES = {  # data, whether there is a GIL, the numbers that are right
    "holds the GIL": (holds_the_gil, True, {0}),
    "changes hands": (changes_hands, True, {0, 1}),
    "computes": (computes, True, {2}),
    "computes without a GIL": (computes, False, {2}),
    "waits": (waits, True, {64, 128, 256}),
    "waits without a GIL": (waits, False, {64, 128, 256}),
    "half releases": (half_releases, True, {2}),
    "contends": (contends, False, {0, 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_best_number_is_found_and_kept(case: str) -> None:
    data, has_gil, right = CASES[case]
    loop = Simulation(default(has_gil=has_gil), noise=0.04)
    loop.tuner.leave(1 / data(0).rate)
    loop.run(data, 3.0)
    assert loop.tuner.number in right
    best = max(data(number).rate for number in (0, 1, 2, 64, 128))
    assert loop.run(data, 40.0) >= (0.97 - 0.04) * best


@pytest.mark.parametrize("case", CASES)
def test_the_first_two_seconds_lose_little(case: str) -> None:
    data, has_gil, _ = CASES[case]
    if data is waits:
        pytest.skip("from 2 threads to 100 takes six steps")
    loop = Simulation(default(has_gil=has_gil))
    loop.tuner.leave(1 / data(0).rate)
    best = max(data(number).rate for number in (0, 1, 2))
    assert loop.run(data, 2.0) >= 0.95 * best


@pytest.mark.parametrize("case", CASES)
def test_pauses_of_the_loop_do_not_count(case: str) -> None:
    data, has_gil, right = CASES[case]
    loop, lasts = Simulation(default(has_gil=has_gil), noise=0.04), random.Random(0)
    loop.tuner.leave(1 / data(0).rate)
    for _ in range(60):
        loop.run(data, lasts.uniform(0.2, 0.6))
        pause = lasts.uniform(0.1, 0.6)
        loop.now += pause
        loop.cpu += 2 * pause  # of threads of others
        loop.tuner.leave_out(pause)
    assert loop.tuner.number in right


@pytest.mark.parametrize("case", CASES)
def test_a_number_that_was_chosen_is_the_most(case: str) -> None:
    data, has_gil, _ = CASES[case]
    loop = Simulation(Limits(4, 4, has_gil))
    loop.run(data, 10.0)
    assert all(number <= 4 for _, number in loop.numbers)
    best = max(data(number).rate for number in range(5))
    assert loop.run(data, 30.0) >= 0.97 * best


def test_tries_that_fail_take_a_bounded_share_of_the_time() -> None:
    loop = Simulation(default())
    loop.tuner.leave(1e-3)
    rate = loop.run(changes_hands, 300.0)
    assert rate >= (1 - COST_SHARE - 0.01) * 1000


def test_a_quarter_of_many_cores_is_found_where_threads_wait_for_the_gil() -> None:
    loop = Simulation(default(16))
    loop.tuner.leave(1 / 9100)
    loop.run(queues_for_the_gil, 1.0)
    assert loop.tuner.number == 4
    assert loop.run(queues_for_the_gil, 60.0) >= 0.97 * 39700


def test_on_a_hundred_cores_with_a_gil_a_few_begin_and_more_come_where_they_help() -> None:
    def computes_on_many(threads: int) -> Load:
        return Load(500.0 * max(1, min(threads, 128)), float(min(threads, 128)))

    loop = Simulation(default(128))
    assert loop.tuner.leave(2e-3) == 16
    loop.run(computes_on_many, 1.0)
    assert loop.tuner.number == 128


def computes_on_16(threads: int) -> Load:
    return Load(500.0 * max(1, min(threads, 16)), float(min(threads, 16)))


@pytest.mark.parametrize("has_gil", [True, False])
def test_a_loop_that_does_not_wait_has_as_few_threads_as_are_enough(has_gil: bool) -> None:
    loop = Simulation(default(16, has_gil=has_gil), outside=10e-3, noise=0.04)
    loop.tuner.leave(2e-3)
    assert loop.tuner.number == 16
    assert loop.run(computes_on_16, 2.0) >= 0.99 * 100
    assert [number for _, number in loop.numbers] == [8, 4, 2, 1]
    loop.outside = 1e-3  # it asks for more
    loop.run(computes_on_16, 3.0)
    assert loop.run(computes_on_16, 60.0) >= 0.98 * 1000
    assert 2 <= loop.tuner.number <= 8


def test_too_few_threads_are_tried_ever_more_rarely() -> None:
    loop = Simulation(default(16), outside=1 / 3000, noise=0.04, told=0.05, window=900)
    loop.tuner.leave(2e-3)
    rates = [loop.run(computes_on_16, 60.0) / 3000 for _ in range(3)]
    assert rates[0] >= 0.9
    assert rates[-1] >= 0.97


def test_threads_that_wait_for_a_network_stay_where_they_are_needed() -> None:
    loop = Simulation(default(), outside=1e-3, noise=0.04)
    loop.tuner.leave(1e-2)
    loop.run(waits, 5.0)
    assert loop.run(waits, 60.0) >= 0.98 * 1000
    assert 16 <= loop.tuner.number <= 64


@pytest.mark.parametrize("has_gil", [True, False])
def test_data_that_changes_is_noticed(has_gil: bool) -> None:
    loop = Simulation(default(has_gil=has_gil))
    loop.tuner.leave(1e-2)
    loop.run(waits, 5.0)
    assert loop.tuner.number >= 64
    loop.run(computes, 5.0)
    assert loop.tuner.number == 2
    loop.run(waits, 8.0)
    assert loop.tuner.number >= 64


def test_fewer_threads_than_there_are_do_not_wait_for_ever() -> None:
    loop = Simulation(Limits(4, 4, has_gil=True, least=1))
    loop.run(holds_the_gil, 2.0)
    assert loop.tuner.number == 1
    loop.run(lambda number: Load(1000.0 if number == 4 else 1e-9, 0.0), 3.0)
    assert loop.tuner.number == 4


def test_small_epochs_are_measured_together() -> None:
    loop = Simulation(default())
    loop.tuner.leave(1e-2)
    for _ in range(1000):
        loop.run(waits, 4e-3)
        loop.tuner.serve(default(), loop.now)
        loop.now += 1e-3
    assert loop.tuner.number >= 64


def test_another_choice_begins_anew() -> None:
    loop = Simulation(default())
    loop.tuner.leave(1e-2)
    loop.run(waits, 5.0)
    loop.tuner.serve(Limits(3, 3, has_gil=True))
    assert loop.tuner.number == 3
    loop.tuner.serve(default())
    assert loop.tuner.number == 0


def test_a_limit_that_two_consumers_see_is_taken_by_one() -> None:
    class Seen(deque[tuple[int, str]]):
        """Looks as it was before another consumer took what is in it."""

        def __bool__(self) -> bool:
            return True

    tuner = Tuner()
    tuner.serve(default())
    tuner._noted = Seen([(1, "each opens a file")])
    assert tuner.look(0, 0.0, 0.0) <= 1
