"""Where batches are made is decided by how long the consumer waits for a sample."""

from __future__ import annotations

import math

import pytest

from threadloader._threads.inline_choice import (
    FIRST_PAUSE,
    LONG_BATCHES,
    MOST_BATCHES,
    InlineChoice,
    Waited,
    is_slower,
)

MILLI = 1e-3
ROWS = 32


class Trace:
    """A loop, its threads and its calling thread, on clocks that are set by hand.

    Args:
        here: Seconds of a sample in the calling thread.
        waited: Seconds that the consumer waits for a sample of threads.
        cpu: CPU seconds of a sample in threads.
    """

    def __init__(self, here: float, waited: float, cpu: float) -> None:
        self.here, self.waited, self.cpu = here, waited, cpu
        self.now = self.all_waited = self.all_cpu = 0.0
        self.choice = InlineChoice(lambda: self.now, lambda: self.all_cpu)
        self.choice.threads_begin(here, 0.0)

    def batch_of_threads(self, *, settled: bool = True) -> bool:
        self.now += ROWS * self.waited
        self.all_waited += ROWS * self.waited
        self.all_cpu += ROWS * self.cpu
        return self.choice.delivered(ROWS, self.all_waited, settled=settled)

    def batch_here(self) -> bool:
        self.now += ROWS * self.here
        return self.choice.goes_on(ROWS, ROWS * self.here)

    def threads_until(self, batches: int, *, settled: bool = True) -> int:
        """Return how many batches threads make until the calling thread goes on."""
        for number in range(batches):
            if self.batch_of_threads(settled=settled):
                return number + 1
        return batches

    def load(self, seconds: float) -> tuple[int, int]:
        """Return how many batches are made by threads, and how many here."""
        made, until = [0, 0], self.now + seconds
        while self.now < until:
            if self.choice.preferred:
                made[1] += 1
                if not self.batch_here():
                    self.choice.threads_begin(self.here, self.all_waited)
            else:
                made[0] += 1
                self.batch_of_threads()
        return made[0], made[1]


def contended() -> Trace:
    """Samples that take a hundred times their time in other threads."""
    return Trace(0.03 * MILLI, 3 * MILLI, 3 * MILLI)


def test_threads_that_are_in_their_own_way_are_found_by_one_batch() -> None:
    assert contended().threads_until(100, settled=False) == 1


def test_the_calling_thread_goes_on_for_long_where_threads_are_far_slower() -> None:
    by_threads, here = contended().load(600.0)
    assert by_threads < 12
    assert here > 500_000


def test_threads_that_are_far_slower_cost_a_hundredth_of_the_time() -> None:
    trace = contended()
    trace.load(600.0)
    assert trace.all_waited < 0.012 * trace.now


def test_samples_that_wait_longer_than_the_first_ones_are_left_to_threads() -> None:
    """The first ones came from a cache, say; those that wait take no CPU time."""
    trace = Trace(0.03 * MILLI, 3 * MILLI, 0.03 * MILLI)
    assert trace.threads_until(200, settled=False) == 200


def test_threads_that_are_little_slower_are_found_by_many_batches() -> None:
    trace = Trace(1 * MILLI, 1.3 * MILLI, 1 * MILLI)
    assert LONG_BATCHES <= trace.threads_until(200) < 200


def test_threads_that_are_little_slower_are_kept_while_their_number_is_sought() -> None:
    trace = Trace(1 * MILLI, 1.3 * MILLI, 1 * MILLI)
    assert trace.threads_until(200, settled=False) == 200


def test_first_samples_that_took_long_do_not_hide_that_threads_are_slower() -> None:
    trace = Trace(1 * MILLI, 1.3 * MILLI, 1 * MILLI)
    trace.choice.threads_begin(10 * trace.here, 0.0)
    assert LONG_BATCHES <= trace.threads_until(200) < 200


@pytest.mark.parametrize(("waited", "cpu"), [(0.0, 1.1), (0.5, 1.1), (0.9, 1.1), (1.1, 2.2)])
def test_threads_that_are_as_fast_are_kept(waited: float, cpu: float) -> None:
    trace = Trace(1 * MILLI, waited * MILLI, cpu * MILLI)
    assert trace.threads_until(5000) == 5000


def test_threads_that_run_one_at_a_time_are_compared_whatever_the_first_samples_took() -> None:
    trace = Trace(0.9 * MILLI, 1 * MILLI, 1 * MILLI)
    trace.choice.threads_begin(100 * trace.here, 0.0)
    assert LONG_BATCHES <= trace.threads_until(5000) < 5000
    assert all(trace.batch_here() for _ in range(20))
    trace = Trace(1 * MILLI, 1 * MILLI, 1 * MILLI)
    assert trace.threads_until(5000) < 5000
    assert not all(trace.batch_here() for _ in range(20))


def test_one_batch_that_takes_long_by_chance_does_not_bring_threads_back() -> None:
    trace = Trace(0.9 * MILLI, 1 * MILLI, 1 * MILLI)
    trace.threads_until(5000)
    assert all(trace.batch_here() for _ in range(20))
    trace.here *= 100
    assert trace.batch_here()
    trace.here /= 100
    assert all(trace.batch_here() for _ in range(20))
    trace.here *= 100
    assert not all(trace.batch_here() for _ in range(20))


def test_samples_that_take_far_longer_are_given_to_threads_after_two_batches() -> None:
    trace = contended()
    trace.threads_until(100)
    for _ in range(100):
        assert trace.batch_here()
    trace.here = 5 * MILLI
    assert trace.batch_here()
    assert not trace.batch_here()


def test_samples_that_have_become_short_are_tried_here() -> None:
    trace = Trace(5 * MILLI, 0.1 * MILLI, 0.2 * MILLI)
    assert not any(trace.batch_of_threads() for _ in range(1000))
    trace.choice.changed(0.01 * MILLI, trace.all_waited)
    assert trace.threads_until(1000) < 1000


def test_a_slower_thread_that_is_ahead_of_the_consumer_is_kept() -> None:
    """The consumer computes as long as a sample takes, so it waits for a small part of that."""
    trace = Trace(1 * MILLI, 0.4 * MILLI, 1.4 * MILLI)
    assert trace.threads_until(5000) == 5000


def test_the_calling_thread_gives_up_where_it_is_no_faster() -> None:
    trace = contended()
    trace.batch_of_threads()
    assert trace.choice.preferred
    trace.here = trace.waited
    assert not all(trace.batch_here() for _ in range(20))
    assert not trace.choice.preferred


def test_it_is_not_tried_again_at_once() -> None:
    trace = contended()
    trace.batch_of_threads()
    trace.choice.give_up()
    trace.choice.threads_begin(trace.here, trace.all_waited)
    began = trace.now
    trace.threads_until(5000)
    assert trace.now - began >= FIRST_PAUSE


def test_a_first_batch_that_takes_far_longer_than_one_of_threads_is_not_finished_here() -> None:
    trace = contended()
    assert trace.choice.most_seconds(ROWS) == math.inf
    trace.batch_of_threads()
    assert trace.choice.most_seconds(ROWS) == pytest.approx(3 * ROWS * trace.waited)


def test_threads_are_tried_again_once_samples_take_longer_here() -> None:
    trace = contended()
    trace.batch_of_threads()
    for _ in range(100):
        assert trace.batch_here()
    trace.here = 2 * MILLI
    assert not all(trace.batch_here() for _ in range(20))


def test_threads_that_are_faster_now_stay() -> None:
    trace = contended()
    trace.load(1.0)
    trace.waited = trace.cpu = 0.01 * MILLI
    trace.load(600.0)
    assert not trace.choice.preferred


def test_nothing_is_compared_with_what_is_not_known() -> None:
    trace = contended()
    trace.choice = InlineChoice(lambda: trace.now, lambda: trace.all_cpu)
    trace.choice.threads_begin(math.inf, 0.0)
    assert trace.threads_until(2 * MOST_BATCHES) == 2 * MOST_BATCHES


def test_what_was_long_ago_does_not_count() -> None:
    trace = Trace(0.03 * MILLI, 0.0, 0.03 * MILLI)
    trace.threads_until(100 * MOST_BATCHES)
    trace.waited = trace.cpu = 3 * MILLI
    assert trace.threads_until(MOST_BATCHES + 1) <= MOST_BATCHES


def test_a_little_wait_says_nothing() -> None:
    assert not is_slower(Waited(1, ROWS, 0.001, 1.0), 1e-9, settled=True)
