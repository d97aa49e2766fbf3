"""The verdict of loaders that run, and the warning that ends an epoch, on a clock that is driven.

`test_verdict.py` asks for every cause, from figures that are made up; ``benches.verdicts`` asks
loads that are real, with threads.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from support.copies import Numbers, make
from support.fake_device import FakeDevice
from support.patience import PATIENCE
from support.slower_threads import (
    DearInThreads,
    let_no_batch_be_cheap,
    let_threads_be_far_slower,
    takes_cpu,
)

from threadloader import SlowLoadingWarning, ThreadLoader
from threadloader._threads.concurrency import gil_is_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.clock import DrivenClock
    from support.patience import Spawn


class Samples:
    """Sample ``i`` is ``i``, for which ``act`` is called first."""

    def __init__(self, size: int, act: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self.act = act

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.act()
        return index


def _kind(loader: ThreadLoader[Any], act: Callable[[], None] = lambda: None) -> str:
    with loader:
        for _ in loader:
            act()
        return loader.verdict().kind


def test_a_slow_loop_is_the_slower_one(clock: DrivenClock) -> None:
    samples = Samples(64, lambda: clock.idle(0.01))
    loader: ThreadLoader[Any] = ThreadLoader(samples, 1, threads=0)
    assert _kind(loader, lambda: clock.idle(1.0)) == "consumer-bound"


def test_samples_that_wait_are_waited_for(clock: DrivenClock) -> None:
    samples = Samples(64, lambda: clock.idle(1.0))
    assert _kind(ThreadLoader(samples, 4, threads=0)) == "waiting"


def test_samples_that_compute_are_bound_by_the_processor(clock: DrivenClock) -> None:
    samples = Samples(64, lambda: clock.compute(1.0))
    assert _kind(ThreadLoader(samples, 4, threads=0)) == "cpu-bound"


def test_a_sampler_that_is_slow_starves_the_loop(clock: DrivenClock) -> None:
    class SlowSampler:
        def __len__(self) -> int:
            return 16

        def __iter__(self) -> Iterator[list[int]]:
            for number in range(16):
                clock.compute(1.0)
                yield [number]

    loader: ThreadLoader[Any] = ThreadLoader(Samples(16), batch_sampler=SlowSampler(), threads=0)
    assert _kind(loader) == "sampler-bound"


def test_a_collate_function_that_is_slow_slows_the_loop(clock: DrivenClock) -> None:
    def collate(samples: list[Any]) -> Any:
        clock.compute(1.0)
        return samples

    loader: ThreadLoader[Any] = ThreadLoader(Samples(64), 4, threads=0, collate_fn=collate)
    assert _kind(loader) == "collate-bound"


def test_an_iterable_that_waits_is_waited_for(clock: DrivenClock) -> None:
    items = map(Samples(64, lambda: clock.idle(1.0)).__getitem__, range(64))
    assert _kind(ThreadLoader(items, 4, threads=0)) == "waiting"


def test_time_that_copying_takes_is_counted(clock: DrivenClock, spawn: Spawn) -> None:
    class Slow(FakeDevice):
        def begin(self, *arguments: Any) -> Any:
            clock.idle(1.0)
            return super().begin(*arguments)

    with make(Numbers(64), Slow()) as loader:
        copied = len(spawn(list, loader).result(PATIENCE))
        assert loader.statistics().epoch.stages.copy >= copied


def test_before_the_first_batch_nothing_is_known() -> None:
    verdict = ThreadLoader(Samples(64)).verdict()
    assert (verdict.kind, verdict.share) == ("unknown", 0.0)


def test_of_batches_that_the_calling_thread_makes_that_is_said(clock: DrivenClock) -> None:
    with ThreadLoader(Samples(64, lambda: clock.compute(1.0)), 16, threads=0) as loader:
        list(loader)
        verdict = loader.verdict()
    assert "the calling thread makes the batches itself" in verdict.sentence


def test_threads_that_were_tried_and_found_slower_are_told(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_no_batch_be_cheap(monkeypatch)
    let_threads_be_far_slower(monkeypatch)
    with ThreadLoader(DearInThreads(), 16, collate_fn=list) as loader:
        takes_cpu(loader)
        for _ in range(2):
            batches = spawn(list, loader).result(PATIENCE)
        assert not any(in_thread for batch in batches for _, in_thread in batch)
        verdict = loader.verdict()
    kinds = {"contention-bound", "gil-bound"} if gil_is_enabled() else {"contention-bound"}
    assert verdict.kind in kinds
    assert "threads were tried, and the loop waited " in verdict.sentence
    assert verdict.advice


def test_of_a_number_that_the_user_chose_nothing_is_told_that_was_not_measured(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_no_batch_be_cheap(monkeypatch)
    let_threads_be_far_slower(monkeypatch)
    with ThreadLoader(DearInThreads(256), 16, threads=2, collate_fn=list) as loader:
        takes_cpu(loader)
        spawn(list, loader).result(PATIENCE)
        assert "were tried" not in str(loader.verdict())


def _warned(loader: ThreadLoader[Any], loop: Callable[[], object], epochs: int = 1) -> list[Any]:
    with loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            loop()
    return list(caught)


def test_an_epoch_that_waited_ends_with_a_warning_once(clock: DrivenClock) -> None:
    samples = Samples(16, lambda: clock.idle(0.5))
    loader: ThreadLoader[Any] = ThreadLoader(samples, 4, threads=0)
    (warning,) = _warned(loader, lambda: list(loader), epochs=2)
    assert warning.category is SlowLoadingWarning
    assert str(warning.message).startswith("Loading took ")
    assert warning.filename == __file__


def test_a_short_epoch_ends_without_a_warning(clock: DrivenClock) -> None:
    samples = Samples(16, lambda: clock.idle(0.02))
    loader: ThreadLoader[Any] = ThreadLoader(samples, 4, threads=0)
    assert _warned(loader, lambda: list(loader), epochs=2) == []


def test_an_epoch_that_is_broken_off_is_no_warning(clock: DrivenClock) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(64, lambda: clock.idle(0.5)), 4, threads=0)

    def loop() -> None:
        for number, _ in enumerate(loader):
            if number == 8:
                break

    assert _warned(loader, loop) == []


@pytest.mark.parametrize("slow", [0, 9])
def test_one_slow_batch_alone_is_no_warning(slow: int, clock: DrivenClock) -> None:
    class OneWaits(Samples):
        def __getitem__(self, index: int) -> Any:
            clock.idle(50.0 * (index == slow))
            return index

    loader: ThreadLoader[Any] = ThreadLoader(OneWaits(64), 4, threads=0)

    def loop() -> None:
        for _ in loader:
            clock.compute(1.0)

    assert _warned(loader, loop) == []


def test_what_is_unknown_is_no_warning(clock: DrivenClock) -> None:
    class HalfWaits(Samples):
        def __getitem__(self, index: int) -> Any:
            clock.idle(0.4)
            clock.compute(0.6)
            return index

    loader: ThreadLoader[Any] = ThreadLoader(HalfWaits(64), 4, threads=0)
    assert _warned(loader, lambda: list(loader)) == []
    assert loader.verdict().kind == "unknown"


def test_a_warning_that_is_an_error_comes_behind_the_last_batch(clock: DrivenClock) -> None:
    samples = Samples(16, lambda: clock.idle(0.5))
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
