"""Cached: a sample is loaded once, is the same ever after, and is never a wrong one."""

from __future__ import annotations

import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.child import run_child
from support.shared import SharedCounter

from threadloader import ThreadLoader, sample_rng
from threadloader.datasets import Cached
from threadloader.errors import DataError

SAMPLES = 20


class Loaded:
    """Counts how often each sample was loaded."""

    def __init__(self, shift: int = 0) -> None:
        self.shift, self.times = shift, SharedCounter()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        self.times[index] += 1
        return np.full((7, index % 5 + 1), index + self.shift, np.int32), index


def cached(dataset: Any, folder: Path, way: str = "folder", **options: Any) -> Cached:
    place: dict[str, Any] = {"folder": folder} if way == "folder" else {"memory": "1 MiB"}
    return Cached(dataset, **place, **{"key": "test", "checks": 0, **options})


def equal(found: Any, index: int, shift: int = 0) -> bool:
    array, label = found
    wanted = np.full((7, index % 5 + 1), index + shift, np.int32)
    return bool(np.array_equal(array, wanted)) and label == index


def test_a_sample_is_loaded_once_also_for_other_objects_and_copies(tmp_path: Path) -> None:
    source = Loaded()
    dataset = cached(source, tmp_path / "new")
    for _ in range(2):
        assert all(equal(dataset[index], index) for index in range(SAMPLES))
    assert equal(dataset[np.int64(-1)], SAMPLES - 1)
    for index in (SAMPLES, -SAMPLES - 1):
        with pytest.raises(IndexError, match="out of range: there are 20 samples"):
            dataset[index]
    assert source.times == Counter(range(SAMPLES))
    other = Loaded()
    again = pickle.loads(pickle.dumps(cached(other, tmp_path / "new")))
    assert len(again) == SAMPLES
    assert all(equal(found, index) for index, found in enumerate(again))
    assert not again.dataset.times


@pytest.mark.parametrize("way", ["folder", "memory"])
@pytest.mark.parametrize("threads", [0, 4])
def test_a_loader_gives_the_same_batches_with_a_cache(
    tmp_path: Path, threads: int, way: str
) -> None:
    def augmented(sample: Any) -> Any:
        return sample[0][:, :1] + random.randrange(10) + sample_rng().integers(10), sample[1]

    class Augmented(Loaded):
        def __getitem__(self, index: int) -> Any:
            return augmented(super().__getitem__(index))

    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5, "output": "numpy"}
    plain = ThreadLoader(Augmented(), threads=threads, **options)
    source = Loaded()
    dataset = cached(source, tmp_path, way, transform=augmented)
    loader = ThreadLoader(dataset, threads=threads, **options)
    for _ in range(3):
        for found, wanted in zip(loader, plain, strict=True):
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_array_equal(found[1], wanted[1])
    assert source.times == Counter(range(SAMPLES))


@pytest.mark.parametrize(
    "other",
    [{"key": "other"}, {"dataset": [1] * SAMPLES}, {"dataset": range(3)}],
    ids=["key", "class", "length"],
)
def test_another_key_class_or_length_finds_nothing(tmp_path: Path, other: Any) -> None:
    assert equal(cached(Loaded(), tmp_path)[1], 1)
    options = {"dataset": Loaded(7), **other}
    dataset = options.pop("dataset")
    found = cached(dataset, tmp_path, **options)[1]
    assert found == 1 if not isinstance(dataset, Loaded) else equal(found, 1, shift=7)


def test_some_samples_that_are_found_are_compared_with_what_the_dataset_returns(
    tmp_path: Path,
) -> None:
    list(cached(Loaded(), tmp_path))
    source = Loaded()
    list(cached(source, tmp_path, checks=3))
    assert source.times == Counter(range(3))
    with pytest.raises(DataError, match=r"another sample 1 .* 'test'.*new key"):
        cached(Loaded(7), tmp_path, checks=1)[1]
    dataset = cached(source, tmp_path, "memory", checks=1)
    assert equal(dataset[1], 1)
    source.shift = 7
    with pytest.raises(DataError, match=r"another sample 1 .* 'test'"):
        dataset[1]


# Looked up when they are called: those of a loader's workers are others.
DRAWS: dict[str, Callable[[], Any]] = {
    "random": lambda: random.random(),  # noqa: PLW0108
    "random.shuffle": lambda: random.shuffle([1, 2, 3]),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002, PLW0108
    "sample_rng": lambda: sample_rng().random(),
    "seed": lambda: random.seed(1),
    "torch": lambda: pytest.importorskip("torch").rand(3),
}


class Drawing:
    def __init__(self, draw: Callable[[], Any], *, swallows: bool) -> None:
        self.draw, self.swallows = draw, swallows

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        try:
            self.draw()
        except DataError:
            if not self.swallows:
                raise
        return index


@pytest.mark.parametrize("way", ["folder", "memory"])
@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_dataset_that_draws_random_numbers_in_a_loader_is_refused(
    tmp_path: Path, draw: str, threads: int, way: str, *, swallows: bool
) -> None:
    dataset = cached(Drawing(DRAWS[draw], swallows=swallows), tmp_path, way)
    with (
        ThreadLoader(dataset, 4, threads=threads, seed=1) as loader,
        pytest.raises(DataError, match=r"sample \d+ of 'test' drew random numbers"),
    ):
        next(iter(loader))


class Carrying(Loaded):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return self.generator.random()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_generator_that_the_dataset_has_is_found_out_in_the_next_epoch(threads: int) -> None:
    dataset = Cached(Carrying(), memory="1 MiB")
    with ThreadLoader(dataset, 4, threads=threads, seed=1) as loader:
        list(loader)
        with pytest.raises(DataError, match=r"another sample \d+ .* if it is random, .*transform="):
            list(loader)


@pytest.mark.parametrize("damage", ["a byte", "the end", "all of it", "another's"])
def test_a_damaged_folder_gives_right_samples(tmp_path: Path, damage: str) -> None:
    list(cached(Loaded(), tmp_path))
    paths = sorted(tmp_path.rglob("*.kept"))
    assert len(paths) == SAMPLES
    for path, other in zip(paths[::2], paths[1::2], strict=True):
        if damage == "another's":
            path.write_bytes(other.read_bytes())
            continue
        data = bytearray(path.read_bytes())
        data[random.Random(path.name).randrange(len(data))] ^= 255
        path.write_bytes({"a byte": data, "the end": data[:-1], "all of it": b""}[damage])
    source = Loaded()
    dataset = cached(source, tmp_path)
    for _ in range(2):  # they were mended
        assert all(equal(dataset[index], index) for index in range(SAMPLES))
        assert source.times.total() == SAMPLES // 2


def test_what_does_not_fit_is_loaded_each_time_with_one_warning(tmp_path: Path) -> None:
    class Large(Loaded):
        def __getitem__(self, index: int) -> Any:
            self.times[index] += 1
            return np.full(1 << 20, index, np.uint8)

    source = Large()
    dataset = cached(source, tmp_path, cache_bytes=9 << 20)
    with pytest.warns(RuntimeWarning, match="nothing more is kept.*9,437,184 bytes, the bound"):
        list(dataset)
    assert [int(sample[5]) for sample in dataset] == list(range(SAMPLES))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kept")) <= 9 << 20
    assert source.times[0] == 1
    assert source.times[SAMPLES - 1] == 2


FULL_DISK = """
import resource, sys, warnings
sys.modules["torch"] = None  # importing it takes seconds
from threadloader.datasets import Cached

resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))  # a write fails in its middle
dataset = Cached([bytes([i]) * 999 for i in range(20)], sys.argv[1], key="a")
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for _ in range(3):
        assert [sample[500] for sample in dataset] == list(range(20))
assert [warning.category for warning in warned] == [RuntimeWarning], warned
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files")
def test_a_full_disk_costs_one_warning_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    assert run_child(FULL_DISK.replace("sys.argv[1]", repr(str(tmp_path)))) == (0, "", "")
    assert not any(path.stat().st_size for path in tmp_path.rglob("*.*"))
