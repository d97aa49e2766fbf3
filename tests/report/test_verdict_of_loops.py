"""The verdict on real loops, each built so that one cause is ten times all others together."""

from __future__ import annotations

import os
import threading
import time
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
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
from threadloader._report import ending
from threadloader._threads.concurrency import gil_is_enabled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.patience import Spawn

DATA = bytes(1 << 20)


class Samples:
    """Sample ``i`` is ``i``."""

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index


class Waits(Samples):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return index


class Computes(Samples):
    """Computes with the GIL released, until its thread has had so much CPU time."""

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            zlib.crc32(DATA)
        return index


class Python(Samples):
    """Holds the GIL, where there is one, until its thread has had so much CPU time."""

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            sum(range(1000))
        return index


class Large(Samples):
    """Samples of 16 MiB that are there already."""

    def __init__(self, size: int = 64) -> None:
        super().__init__(size)
        self.sample = np.ones(16 << 20, np.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.sample


class SlowSampler:
    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(16):
            time.sleep(0.02)
            yield [number]


def _slow_collate(samples: list[Any]) -> Any:
    time.sleep(0.02)
    return samples


def _kind(loader: ThreadLoader[Any], spawn: Spawn, pause: float = 0.0) -> str:
    def loop() -> None:
        for _ in loader:
            time.sleep(pause)

    until = time.monotonic() + PATIENCE
    with loader:
        spawn(loop).result(PATIENCE)
        # A machine that stops for a while hides the cause, but never shows another one.
        while (verdict := loader.verdict()).kind == "unknown" and time.monotonic() < until:
            spawn(loop).result(PATIENCE)
    return verdict.kind


def test_a_slow_loop_is_the_slower_one(spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(), 1, threads=1, prefetch=4)
    assert _kind(loader, spawn, 0.02) == "consumer-bound"


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_samples_that_sleep_are_waited_for(threads: int, spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Waits(), 4, threads=threads)
    assert _kind(loader, spawn) == "waiting"


def test_samples_that_wait_for_a_lock_are_waited_for(spawn: Spawn) -> None:
    lock = threading.Lock()

    class Locked(Waits):
        def __getitem__(self, index: int) -> Any:
            with lock:
                return super().__getitem__(index)

    loader: ThreadLoader[Any] = ThreadLoader(Locked(32), 4, threads=4, dataset_copy="shared")
    assert _kind(loader, spawn) == "waiting"


@pytest.mark.parametrize("threads", [0, 1])
def test_samples_that_compute_are_bound_by_the_processor(threads: int, spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Computes(), 4, threads=threads)
    assert _kind(loader, spawn) == "cpu-bound"


def test_samples_in_python_are_held_by_the_gil_where_there_is_one(spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Python(128), 4, threads=4)
    kind = _kind(loader, spawn)
    assert kind == ("gil-bound" if gil_is_enabled() else "cpu-bound")


def test_large_samples_that_are_there_are_bound_by_memory(spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Large(), 4, threads=1, dataset_copy="shared")
    assert _kind(loader, spawn) == "memory-bound"


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_a_sampler_that_sleeps_starves_the_loop(threads: int, spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(
        Samples(16), batch_sampler=SlowSampler(), threads=threads
    )
    assert _kind(loader, spawn) == "sampler-bound"


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_a_collate_function_that_sleeps_slows_the_loop(threads: int, spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(
        Samples(), 4, threads=threads, collate_fn=_slow_collate
    )
    assert _kind(loader, spawn) == "collate-bound"


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterable_that_sleeps_is_waited_for(threads: int, spawn: Spawn) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(
        map(Waits().__getitem__, range(32)), 4, threads=threads
    )
    assert _kind(loader, spawn) == "waiting"


def test_a_device_that_is_slow_slows_the_loop(spawn: Spawn) -> None:
    class Slow(FakeDevice):
        def begin(self, *arguments: Any) -> Any:
            time.sleep(0.02)
            return super().begin(*arguments)

    loader = make(Numbers(64), Slow())
    assert _kind(loader, spawn) == "copy-bound"
    assert loader.statistics().epoch.stages.copy > 0


def test_what_is_read_from_storage_for_the_first_time_is_a_cold_cache(
    spawn: Spawn, tmp_path: Path
) -> None:
    if not (hasattr(os, "posix_fadvise") and hasattr(os, "fdatasync")):
        pytest.skip("this system can't be asked to forget a file")
    path = tmp_path / "data"
    path.write_bytes(os.urandom(32 << 20))
    with path.open("rb+") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    class Reads(Samples):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.02)  # storage that takes its time
            with path.open("rb") as file:
                file.seek(index << 19)
                return np.frombuffer(file.read(1 << 19), np.uint8)

    with ThreadLoader(Reads(), 4, threads=1) as loader:
        spawn(list, loader).result(PATIENCE)
        first = loader.verdict()
        read = loader.statistics().epoch.read_nbytes
        spawn(list, loader).result(PATIENCE)
        second = loader.verdict()
    if read < 16 << 20:
        pytest.skip("this file system does not say what it reads, or does not forget it")
    assert (first.kind, second.kind) == ("cold-cache", "waiting")


def test_before_the_first_batch_nothing_is_known() -> None:
    verdict = ThreadLoader(Samples()).verdict()
    assert (verdict.kind, verdict.share) == ("unknown", 0.0)


def test_of_batches_that_the_calling_thread_makes_that_is_said(spawn: Spawn) -> None:
    with ThreadLoader(range(4000), 16, threads=0) as loader:
        spawn(list, loader).result(PATIENCE)
        verdict = loader.verdict()
    assert "the calling thread makes the batches itself" in verdict.sentence


def test_the_verdict_knows_how_many_threads_were_found(spawn: Spawn) -> None:
    with ThreadLoader(Waits(400), 4, max_threads=4) as loader:
        spawn(list, loader).result(PATIENCE)
        running, verdict = loader.statistics().running, loader.verdict()
    assert f"{running} threads run" in verdict.advice


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


def _warned(loader: ThreadLoader[Any], epochs: int, spawn: Spawn) -> list[Any]:
    def loop() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(epochs):
                list(loader)
        return caught

    with loader:
        return list(spawn(loop).result(PATIENCE))


def test_an_epoch_that_waited_ends_with_a_warning_once(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LEAST_SECONDS", 0.0)
    (warning,) = _warned(ThreadLoader(Waits(16), 4, threads=1), 2, spawn)
    assert warning.category is SlowLoadingWarning
    assert str(warning.message).startswith("Loading took ")
    assert warning.filename == __file__


def test_a_short_epoch_ends_without_a_warning(spawn: Spawn) -> None:
    assert _warned(ThreadLoader(Waits(16), 4, threads=1), 2, spawn) == []


def test_an_epoch_that_is_broken_off_is_no_warning(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LEAST_SECONDS", 0.0)

    def loop() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number, _ in enumerate(loader):
                if number == 2:
                    break
        return caught

    with ThreadLoader(Waits(16), 4, threads=1) as loader:
        assert spawn(loop).result(PATIENCE) == []


@pytest.mark.parametrize("slow", [0, 9])
def test_one_slow_batch_alone_is_no_warning(
    slow: int, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LEAST_SECONDS", 0.0)
    loaded = [threading.Event() for _ in range(64)]

    class OneWaits(Samples):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.5 * (index == slow))
            loaded[index].set()
            return index

    def loop() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number, _ in enumerate(loader, 1):
                # On a busy machine, too, it waits for no other batch than the slow one.
                if number != slow // 4 and number < 16:
                    loaded[4 * number + 3].wait(PATIENCE)
                time.sleep(0.1)
        return caught

    with ThreadLoader(OneWaits(64), 4, threads=1, prefetch=1) as loader:
        assert spawn(loop).result(PATIENCE) == []


def test_what_is_unknown_is_no_warning(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "LEAST_SECONDS", 0.0)

    def init(_: int) -> None:
        time.sleep(0.3)

    assert _warned(ThreadLoader(Samples(8), 4, threads=1, worker_init_fn=init), 1, spawn) == []


def test_a_warning_that_is_an_error_comes_behind_the_last_batch(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LEAST_SECONDS", 0.0)

    def loop() -> list[int]:
        found: list[int] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowLoadingWarning)
            iterator = iter(loader)
            for _ in range(4):
                found += next(iterator)
            with pytest.raises(SlowLoadingWarning):
                next(iterator)
            assert next(iterator, None) is None
        return found

    with ThreadLoader(Waits(16), 4, threads=1, collate_fn=list) as loader:
        assert spawn(loop).result(PATIENCE) == list(range(16))
        assert len(spawn(list, loader).result(PATIENCE)) == 4
