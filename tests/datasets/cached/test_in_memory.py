"""Cached in memory: one copy for all threads, which nobody can spoil, within its budget."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.child import run_child
from support.patience import PATIENCE, Spawn, becomes
from support.process_random import HAS_TORCH
from support.shared import SharedCounter

from threadloader import ThreadLoader
from threadloader.datasets import Cached

SAMPLES = 40


class Loaded:
    """Counts how often each sample was loaded."""

    def __init__(self, nbytes: int = 10_000) -> None:
        self.nbytes, self.times = nbytes, SharedCounter()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        self.times[index] += 1
        return np.full(self.nbytes, index, np.uint8), index


def batches_of(loader: Any) -> list[bytes]:
    return [np.asarray(batch[0]).tobytes() for batch in loader]


@pytest.mark.parametrize("how", ["auto", "deep", "shared"])
def test_all_threads_epochs_and_loaders_have_one_copy(how: Any) -> None:
    source = Loaded()
    dataset = Cached(source, memory="1MiB", checks=0)
    wanted = batches_of(ThreadLoader(Loaded(), 8, seed=1, shuffle=True, threads=0))
    for threads in (0, 1, 2, 7):
        loader = ThreadLoader(dataset, 8, threads=threads, dataset_copy=how, seed=1, shuffle=True)
        assert batches_of(loader) == wanted
        list(loader)
    if how == "deep":  # a copy of the dataset has loaded
        assert loader.statistics().cache.found >= SAMPLES
    else:
        assert source.times == Counter(range(SAMPLES))


def test_a_sample_that_several_threads_ask_for_at_once_is_loaded_once(spawn: Spawn) -> None:
    class Slow(Loaded):
        def __getitem__(self, index: int) -> Any:
            asked[0].result(PATIENCE)  # another thread was started, which asks for it, too
            return super().__getitem__(index)

    source = Slow()
    dataset = Cached(source, memory="1MiB", checks=0)
    asked = [spawn(int)]
    found = [spawn(dataset.__getitem__, 3) for _ in range(5)]
    assert [each.result(PATIENCE)[1] for each in found] == [3] * 5
    assert source.times == {3: 1}


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass
class Box:
    values: Any


def tensor(**options: Any) -> Any:
    return pytest.importorskip("torch").arange(6.0, **options).reshape(2, 3)


def image(mode: str) -> Any:
    made = pytest.importorskip("PIL.Image").new(mode, (5, 3))
    made.info["dpi"] = 300
    return made


def spoil_image(made: Any) -> None:
    made.putpixel((0, 0), 1)
    made.info.clear()


def add_one(made: Any) -> None:
    made += 1


class Made:
    """Makes its sample each time."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.make()


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {  # and what changes them
    "list": (lambda: [1, "a", b"c", None, 2.5, 1j], lambda made: made.append(7)),
    "dict": (lambda: {"a": (1, {2: [3]})}, lambda made: made["a"][1][2].clear()),
    "named": (lambda: Pair([1], np.float32(2)), lambda made: made.image.clear()),
    "object": (lambda: Box([1, {2}]), lambda made: made.values[1].clear()),
    "objects": (lambda: np.array([[1], "a"], object), lambda made: made[0].clear()),
    "masked": (lambda: np.ma.array([1, 2], mask=[0, 1]), lambda made: made.__setitem__(0, 9)),
    "array": (lambda: np.arange(6.0).reshape(2, 3).T, add_one),
    "tensor": (tensor, add_one),
    "leaf": (lambda: tensor().requires_grad_(), lambda made: made.data.add_(1)),
    "bfloat16": (lambda: tensor(dtype=sys.modules["torch"].bfloat16), add_one),
    "image": (lambda: image("RGB"), spoil_image),
    "palette": (lambda: image("P"), spoil_image),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_to_a_sample_does_not_change_what_is_kept(kind: str) -> None:
    if kind == "bfloat16":
        pytest.importorskip("torch")
    make, spoil = KINDS[kind]
    dataset = Cached(Made(make), memory="1MiB", checks=9)
    for _ in range(3):  # the comparison fails, too, if it was changed
        found = dataset[0]
        assert type(found) is type(make())
        assert repr(found) == repr(make()) or kind in {"image", "palette"}
        assert getattr(found, "strides", None) == getattr(make(), "strides", None)
        spoil(found)
    assert dataset.cache_use().found == 2


@pytest.mark.skipif(not HAS_TORCH, reason="tensors")
def test_a_sample_that_a_loader_makes_a_tensor_of_may_be_written() -> None:
    dataset = Cached(Made(lambda: (np.zeros(3), {"a": [np.zeros(2)[:1]]})), memory="1MiB", checks=9)
    for _ in range(3):
        (found,) = ThreadLoader(dataset, batch_size=None, threads=0)
        found[0].add_(1)
        found[1]["a"][0].add_(1)


def test_the_budget_bounds_what_is_taken_and_the_rest_is_loaded_each_time() -> None:
    def taken() -> list[int]:
        return [each.size for each in tracemalloc.take_snapshot().traces if each.size >= 100_000]

    source = Loaded(nbytes=100_000)
    tracemalloc.start()
    try:
        dataset = Cached(source, memory="2 MB", checks=0)
        loader = ThreadLoader(dataset, 8, threads=8, shuffle=True, collate_fn=len)
        for _ in range(20):
            sum(loader)
        assert becomes(lambda: len(taken()) == 19)
        assert sum(taken()) <= dataset.cache_use().nbytes <= 2_000_000
    finally:
        tracemalloc.stop()
    use = loader.statistics().cache
    assert use is not None
    assert use == dataset.cache_use()
    assert (use.kept, use.samples, use.is_full) == (19, SAMPLES, True)
    assert source.times.total() == SAMPLES + 19 * (SAMPLES - 19)
    assert use.hit_rate == 19 * 19 / (20 * SAMPLES)


def test_never_more_is_taken_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 30]
    name = "threadloader.datasets._cached.in_memory.free_memory"
    monkeypatch.setattr(name, lambda: free[0])
    dataset = Cached(Loaded(nbytes=1 << 20), memory="1GiB", checks=0)
    for index in range(10):
        dataset[index]
    free[0] = 0
    assert [label for _, label in list(dataset)] == list(range(SAMPLES))
    use = dataset.cache_use()
    assert use.is_full
    assert 10 <= use.kept < SAMPLES


def test_the_verdict_says_what_the_cache_holds() -> None:
    dataset = Cached(Loaded(nbytes=100_000), memory="2 MB", checks=0)
    with ThreadLoader(dataset, 2, threads=0) as loader:
        list(loader)
        assert "The cache holds 48%: each epoch reads the rest again." in str(loader.verdict())


FORK = """
import os, sys
sys.modules["torch"] = None  # importing it takes seconds
from threadloader.datasets import Cached

dataset = Cached([bytes([i]) * 999 for i in range(20)], memory="1MiB")
dataset[3]
pid = os.fork()
if not pid:
    assert [sample[0] for sample in map(dataset.__getitem__, range(20))] == list(range(20))
    os._exit(dataset.cache_use().kept)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_reads_what_is_kept_and_adds_nothing() -> None:
    assert run_child(FORK) == (0, "1", "")
