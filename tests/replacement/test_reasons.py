"""Why a loader is left to torch, and what is no reason."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
)

from threadloader._replacement.reasons import why_torch

if TYPE_CHECKING:
    from pathlib import Path

RNG: Any = None
posix = os.name == "posix"


class Plain(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class ByProcess(Plain):
    def __getitem__(self, index: int) -> int:
        return index + self.handle()

    def handle(self) -> int:
        return os.getpid() * 0


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(8))


class StreamByProcess(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(int(multiprocessing.current_process().name[-1] == "1"), 8))


class Backwards:
    def __iter__(self) -> Any:
        return iter(range(7, -1, -1))

    def __len__(self) -> int:
        return 8


def seed_worker(worker_id: int) -> None:
    """Seed as torch's page on reproducibility does it."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)  # noqa: NPY002  # as that page does
    random.seed(seed + worker_id)


def move(_: int) -> None:
    os.chdir("/")


def change(_: int) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


def ask(_: int) -> None:
    assert os.environ.get("OMP_NUM_THREADS") != os.getpid()


def ignore_interrupts(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def bind(_: int) -> None:
    global RNG  # noqa: PLW0603
    RNG = 1


def call_another(worker: int) -> None:
    ignore_interrupts(worker)


def import_inside(_: int) -> None:
    import os as system  # noqa: PLC0415

    system.sched_setaffinity(0, {0})


class Initialiser:
    def __call__(self, worker: int) -> None:
        move(worker)


def reason(dataset: Any, *, overridden: bool = False, **options: Any) -> str | None:
    return why_torch(DataLoader(dataset, **options), overridden=overridden)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (move, "os.chdir"),
        (change, "os.environ"),
        (ignore_interrupts, "signal.signal"),
        (bind, "the global RNG"),
        (call_another, "signal.signal"),
        (import_inside, "os.sched_setaffinity"),
        (functools.partial(move), "os.chdir"),
        (Initialiser(), "os.chdir"),
        (lambda _: os.nice(1), "os.nice"),
    ],
)
def test_a_worker_init_fn_that_changes_the_process_is_a_reason(function: Any, named: str) -> None:
    found = reason(Plain(), num_workers=2, worker_init_fn=function)
    assert found is not None
    assert named in found


@pytest.mark.parametrize("function", [seed_worker, ask, functools.partial(seed_worker), print])
def test_a_worker_init_fn_that_seeds_or_reads_is_none(function: Any) -> None:
    assert reason(Plain(), num_workers=2, worker_init_fn=function) is None


@pytest.mark.parametrize(
    "dataset",
    [
        Plain(),
        Subset(Plain(), [1, 2]),
        [1, 2, 3],
        range(4),
        {0: 1},
        torch.utils.data.TensorDataset(torch.ones(3)),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataset_is_none(dataset: Any, workers: int) -> None:
    assert reason(dataset, num_workers=workers) is None


@pytest.mark.parametrize(
    "dataset", [ByProcess(), Subset(ByProcess(), [1]), ConcatDataset([Plain(), ByProcess()])]
)
def test_a_dataset_that_asks_for_the_process_is_a_reason(dataset: Any) -> None:
    assert reason(dataset, num_workers=2) == (
        "ByProcess uses os.getpid, which concerns the whole process"
    )


def test_an_iterable_dataset_is_none_if_workers_share_it_out_by_their_numbers() -> None:
    assert reason(Stream(), num_workers=2) is None
    assert "own thread" in str(reason(Stream()))
    assert "current_process" in str(reason(StreamByProcess(), num_workers=2))


def test_a_context_that_is_given_is_a_reason() -> None:
    found = reason(Plain(), num_workers=1, multiprocessing_context="spawn")
    assert found == "multiprocessing_context='spawn' asks for processes"


def test_a_sampler_of_the_programs_own_is_a_reason_without_workers_alone() -> None:
    assert "draw from its Backwards ahead" in str(reason(Plain(), sampler=Backwards()))
    assert reason(Plain(), sampler=Backwards(), num_workers=2) is None
    assert reason(Plain(), sampler=[3, 1]) is None


@pytest.mark.parametrize(("often", "expected"), [(True, "RandomSampler ahead"), (False, "None")])
def test_a_generator_that_is_drawn_from_piece_by_piece_is_a_reason(
    often: bool, expected: str
) -> None:
    sampler = RandomSampler(Plain(), replacement=often, generator=torch.Generator())
    assert expected in str(reason(Plain(), sampler=sampler))
    assert reason(Plain(), sampler=RandomSampler(Plain(), replacement=often)) is None


def test_a_class_that_makes_its_own_iterators_is_a_reason() -> None:
    assert reason(Plain(), overridden=True) == "DataLoader makes iterators of its own"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_open_file_is_a_reason(workers: int, tmp_path: Path) -> None:
    class Lines(Plain):
        def __init__(self, file: Any) -> None:
            self.parts = [file]

    path = tmp_path / "lines"
    path.write_text("a")
    with path.open() as file:
        assert "Lines.parts[0] is an open file" in str(reason(Lines(file), num_workers=workers))
    assert reason(Lines(file), num_workers=workers) is None
    database = sqlite3.connect(":memory:")
    assert "Connection, which is for one thread" in str(reason(Lines(database)))
    database.close()
