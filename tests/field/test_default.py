"""Without a number of threads a loader gives what one with a number gives, and finds the number."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader

SLOW = 0.002  # seconds: samples that threads load, where they can


def load(dataset: Any, **given: Any) -> list[Any]:
    given.setdefault("batch_size", 8)
    return [sample for batch in ThreadLoader(dataset, collate_fn=list, **given) for sample in batch]


class Slow:
    """Samples that tell which thread has made them."""

    length = 64

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        return index, self.value(index), threading.current_thread() is threading.main_thread()

    def value(self, index: int) -> Any:
        return index


# What samples and loops set.


class Curriculum:
    """A sampler that follows the loop."""

    def __init__(self) -> None:
        self.level = [0]

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(12):
            yield [self.level[0]] * 4


@pytest.mark.parametrize("given", [{"threads": 0}, {}, {"threads": 2}], ids=str)
def test_a_sampler_of_the_users_is_drawn_as_far_ahead_as_threads_need(
    given: dict[str, Any],
) -> None:
    sampler, drawn = Curriculum(), []
    for batch in ThreadLoader(range(64), batch_sampler=sampler, collate_fn=list, **given):
        drawn.append(batch[0])
        sampler.level[0] += 1
    in_turn = list(range(12))
    assert drawn == in_turn if given.get("threads") == 0 else drawn < in_turn


# What fails.


# What the first samples load and open.


class LoadsData(Slow):
    data: Any = None
    loads = 0

    def value(self, index: int) -> int:
        if self.data is None:
            type(self).loads += 1
            self.data = np.arange(1 << 18)  # more than 1 MiB
        return int(self.data[index])


@pytest.mark.parametrize(
    "given", [{}, {"threads": 8}, {"threads": 8, "persistent_workers": True}], ids=str
)
def test_data_that_is_loaded_on_first_use_is_loaded_once(
    given: dict[str, Any],
) -> None:
    LoadsData.loads = 0
    with ThreadLoader(LoadsData(), 8, collate_fn=list, **given) as loader:
        for _ in range(4):
            samples = [sample for batch in loader for sample in batch]
            assert [value for _, value, _ in samples] == list(range(64))
    assert LoadsData.loads == 1


class OpensFile(Slow):
    file: Any = None
    opened = 0

    def __init__(self, path: Path) -> None:
        self.path = path

    def value(self, index: int) -> int:
        if self.file is None:
            type(self).opened += 1
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(index)
        time.sleep(SLOW / 10)
        return int(self.file.read(1)[0])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # as users leave files to the collector
def test_threads_that_open_something_each_are_at_most_two_a_core(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 4)
    OpensFile.opened = 0

    class Many(OpensFile):
        length = 1024

    assert [value for _, value, _ in load(Many(path))] == [n % 256 for n in range(1024)]
    assert Many.opened <= 2 * (os.cpu_count() or 1) + 1  # and the calling thread


# Objects of which workers can't have copies


# Iterable datasets


def test_an_iterable_of_torchs_is_read_by_the_calling_thread() -> None:
    class Epochs(pytest.importorskip("torch.utils.data").IterableDataset):  # type: ignore[misc]
        """Counts its epochs, and follows what the loop sets."""

        epoch = level = 0

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            for _ in range(8):
                yield self.epoch, self.level

    stream = Epochs()
    loader = ThreadLoader(stream, 2, collate_fn=list)
    for epoch in (1, 2):
        for step, batch in enumerate(loader):
            assert batch == [(epoch, step)] * 2
            stream.level = step + 1
        stream.level = 0
    assert ThreadLoader(stream, 2, timeout=120).num_workers == 1
    assert ThreadLoader(iter(stream), 2).num_workers == 1


# A sampler that gives one object again and again.


@pytest.mark.parametrize("threads", [0, 2, None])
@pytest.mark.parametrize("form", ["itself", "in a tuple", "in a dict"])
@pytest.mark.parametrize("kind", ["numpy", "array"])
def test_an_array_that_a_sampler_refills_is_copied(
    threads: int | None, form: str, kind: str
) -> None:
    class Refills:
        def __iter__(self) -> Iterator[Any]:
            indices: Any = np.zeros(2, int) if kind == "numpy" else array("l", [0, 0])
            forms = {"itself": indices, "in a tuple": (indices, 1), "in a dict": {0: indices}}
            for n in range(20):
                indices[0], indices[1] = n, n + 1
                yield forms[form]

    class Rows:
        def __getitem__(self, indices: Any) -> list[int]:
            time.sleep(SLOW)
            return [int(n) for n in (indices[0] if isinstance(indices, (tuple, dict)) else indices)]

    loader: Any = ThreadLoader(
        Rows(), None, sampler=Refills(), threads=threads, prefetch=4, output="numpy"
    )
    assert list(loader) == [[n, n + 1] for n in range(20)]


# What is a worker's own all the same.


def test_samples_that_meet_at_an_object_of_the_dataset_begin_at_once(spawn: Spawn) -> None:
    class Meeting(Slow):
        def __init__(self) -> None:
            self.together = threading.Barrier(2)

        def value(self, index: int) -> int:
            self.together.wait(PATIENCE)
            return index

    given = {"batch_size": 1, "threads": 2, "timeout": PATIENCE}
    loaded = spawn(lambda: load(Meeting(), **given)).result(PATIENCE)
    assert [value for _, value, _ in loaded] == list(range(64))
