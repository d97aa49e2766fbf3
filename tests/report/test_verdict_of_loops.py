"""The verdict of loaders that run, and the warning that ends an epoch, on a clock that is driven.

`test_verdict.py` asks for every cause, from figures that are made up; ``benches.verdicts`` asks
loads that are real, with threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.acting import Acting
from support.clock import DrivenClock

from threadloader import SlowLoadingWarning, ThreadLoader
from threadloader._torch import IterableDataset


def _half_waits(clock: DrivenClock) -> Acting:
    return Acting(16, lambda _: (clock.idle(0.4), clock.compute(0.6)))


def _with_slow_sampler(clock: DrivenClock) -> ThreadLoader[Any]:
    def drawn() -> Iterator[list[int]]:
        for number in range(16):
            clock.compute(1.0)
            yield [number]

    return ThreadLoader(Acting(16), batch_sampler=drawn(), threads=0)


def _with_slow_collating(clock: DrivenClock) -> ThreadLoader[Any]:
    def collate(samples: list[Any]) -> Any:
        clock.compute(1.0)
        return samples

    return ThreadLoader(Acting(16), 4, threads=0, collate_fn=collate)


# What is told of a loop that takes no time itself.
LOADERS: dict[str, Callable[[DrivenClock], Any]] = {
    "waiting": lambda clock: Acting(16, lambda _: clock.idle(1.0)),
    "cpu-bound": lambda clock: Acting(16, lambda _: clock.compute(1.0)),
    "unknown": _half_waits,
    "sampler-bound": _with_slow_sampler,
    "collate-bound": _with_slow_collating,
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loop_is_told_what_it_waits_for(kind: str, clock: DrivenClock) -> None:
    made = LOADERS[kind](clock)
    with made if isinstance(made, ThreadLoader) else ThreadLoader(made, 4, threads=0) as loader:
        verdict = loader.verdict()
        assert (verdict.kind, verdict.share) == ("unknown", 0.0)  # before the first batch
        list(loader)
        assert loader.verdict().kind == kind


def test_an_iterable_that_waits_is_waited_for(clock: DrivenClock) -> None:
    items = map(Acting(16, lambda _: clock.idle(1.0)).__getitem__, range(16))
    with ThreadLoader(items, 4, threads=0) as loader:
        list(loader)
        verdict = loader.verdict()
    assert verdict.kind == "waiting"
    assert "the calling thread makes the batches itself" in verdict.sentence


@pytest.mark.parametrize(
    ("kind", "options", "advice"),
    [
        (IterableDataset, {}, "Use more replicas, each with a thread: threads=4."),
        (object, {"threads": 0}, "One thread reads an iterable: move slow work into transform"),
        (object, {"threads": 0, "transform": int}, "Try more threads: threads=4."),
    ],
)
def test_the_advice_on_an_iterable_is_by_what_threads_have_of_it(
    kind: Any, options: dict[str, Any], advice: str, clock: DrivenClock
) -> None:
    class Items(kind):
        def __iter__(self) -> Iterator[int]:
            yield from map(Acting(16, lambda _: clock.idle(1.0)).__getitem__, range(16))

    with ThreadLoader(Items(), 4, **options) as loader:
        list(loader)
        assert loader.verdict().advice.startswith(advice)


def test_a_slow_loop_is_the_slower_one(clock: DrivenClock) -> None:
    with ThreadLoader(Acting(16, lambda _: clock.idle(0.01)), 1, threads=0) as loader:
        for _ in loader:
            clock.idle(1.0)
        assert loader.verdict().kind == "consumer-bound"


def _warned(
    clock: DrivenClock, act: Callable[[int], object], step: float = 0.0, leave: int = 16
) -> list[Any]:
    """Return the warnings of two epochs, whose steps take so many seconds."""
    with (
        ThreadLoader(Acting(16, act), 1, threads=0) as loader,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            for number, _ in enumerate(loader):
                clock.compute(step)
                if number == leave:
                    break
    return list(caught)


def test_an_epoch_that_waited_ends_with_a_warning_once(clock: DrivenClock) -> None:
    (warning,) = _warned(clock, lambda _: clock.idle(0.5))
    assert warning.category is SlowLoadingWarning
    assert str(warning.message).startswith("Loading took ")
    assert warning.filename == __file__


def test_an_epoch_that_is_short_or_left_or_waits_once_or_for_unknown_is_no_warning(
    clock: DrivenClock,
) -> None:
    assert _warned(clock, lambda _: clock.idle(0.02)) == []
    assert _warned(clock, lambda _: clock.idle(0.5), leave=8) == []
    for slow in (0, 9):
        assert _warned(clock, lambda i, slow=slow: clock.idle(50.0 * (i == slow)), step=1.0) == []
    assert _warned(clock, _half_waits(clock).act) == []


def test_a_warning_that_is_an_error_comes_behind_the_last_batch(clock: DrivenClock) -> None:
    samples = Acting(16, lambda _: clock.idle(0.5))
    with ThreadLoader(samples, 4, threads=0, collate_fn=list) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowLoadingWarning)
            iterator, found = iter(loader), []
            for _ in range(4):
                found += next(iterator)
            with pytest.raises(SlowLoadingWarning):
                next(iterator)
            assert next(iterator, None) is None
        assert found == list(range(16))
        assert len(list(loader)) == 4
