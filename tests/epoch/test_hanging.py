"""Of a batch that does not come it is said who is in which sample, and with the GIL also where."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np
import pytest
from support.acting import Gated
from support.patience import PATIENCE, Spawn
from support.streams import lists

from threadloader import ThreadLoader
from threadloader._engine import hanging
from threadloader._threads.tuner import gil_is_enabled


class Whole(Gated):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def _outcome(iterator: Any) -> Any:
    try:
        return np.asarray(next(iterator)).tolist()
    except RuntimeError as error:
        return str(error)


def _timed_out(loader: ThreadLoader[Any], dataset: Gated, spawn: Spawn, delivered: int) -> str:
    """Return the message of the first batch that does not come; the next call is past it.

    Args:
        loader: Its timeout is short: on a busy machine batches that come may be late, too.
        dataset: Of the loader.
        spawn: Calls in a thread.
        delivered: Batches before it.
    """
    try:
        iterator = iter(loader)
        for _ in range(delivered):
            while isinstance(spawn(_outcome, iterator).result(PATIENCE), str):
                pass
        assert dataset.entered.wait(PATIENCE)
        text, end = "", monotonic() + PATIENCE
        while " has been in " not in text and monotonic() < end:
            text = str(spawn(_outcome, iterator).result(PATIENCE))
        return text
    finally:
        dataset.gate.set()
        loader.close()


def collating(dataset: Gated) -> ThreadLoader[Any]:
    def collate(samples: list[int]) -> Any:
        return [dataset[index] if index == 4 else index for index in samples]

    return ThreadLoader(range(8), 2, threads=1, timeout=0.05, collate_fn=collate)


def of(dataset: Any, rows: int, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, rows, threads=1, timeout=0.05, dataset_copy="shared", **options)


# What waits for the gate, a loader over it, the batches before, what is said, a frame of the stack.
PLACES: dict[str, tuple[Any, Callable[[Any], Any], int, str, str]] = {
    "a row": (
        lambda: Gated(8, 5),
        lambda it: of(it, 1),
        5,
        "DataLoader timed out after 0.05 seconds: worker 0 has been in index 5 of batch 5 for ",
        "in _wait\n    assert self.gate.wait(PATIENCE)",
    ),
    "a ticket of many": (
        lambda: Gated(64, 61),
        lambda it: of(it, 32),
        1,
        "worker 0 has been in index 61 of batch 1 for ",
        "in _wait",
    ),
    "a whole batch": (
        lambda: Whole(8, 5),
        lambda it: of(it, 4),
        1,
        "worker 0 has been in batch 1, rows 0 to 3 for ",
        "in __getitems__",
    ),
    "an iterable": (
        lambda: Gated(8, 5),
        lambda it: of(map(it.__getitem__, range(8)), 2),
        2,
        "worker 0 has been in the iterable dataset, reading batch 2 for ",
        "in _wait",
    ),
    "a collate function": (
        lambda: Gated(8, 4),
        collating,
        2,
        "worker 0 has been in the collate function of batch 2 for ",
        "in _wait",
    ),
    "worker_init_fn": (
        lambda: Gated(8, 4),
        lambda it: of(it, 1, worker_init_fn=lambda _: it[4]),
        0,
        "worker 0 has been in worker_init_fn for ",
        "in _wait",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_where_a_worker_is_that_hangs_is_named(place: str, spawn: Spawn) -> None:
    make, load, delivered, named, frame = PLACES[place]
    dataset = make()
    text = _timed_out(load(dataset), dataset, spawn, delivered)
    assert named in text
    assert "each_sample" not in text  # no frame of ours
    assert (frame in text) == gil_is_enabled()


@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_without_a_batch_for_long_there_is_a_warning_once(
    timeout: float, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "WARNED_SECONDS", 0.05)
    dataset = Gated(8, 2, 5)
    loader = ThreadLoader(dataset, threads=1, timeout=timeout, dataset_copy="shared")
    told: list[str] = []

    def noted(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))
        dataset.gate.set()

    monkeypatch.setattr(warnings, "warn", noted)
    assert spawn(lists, loader).result(PATIENCE) == [[index] for index in range(8)]
    loader.close()
    (text,) = told
    assert text.startswith("no batch has come for 0 seconds; the loop waits on")


def test_a_warning_that_is_an_error_loses_no_batch(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "WARNED_SECONDS", 0.05)
    dataset = Gated(8, 0)
    with ThreadLoader(dataset, threads=1, dataset_copy="shared") as loader:
        iterator = iter(loader)
        assert dataset.entered.wait(PATIENCE)
        with pytest.raises(UserWarning, match="index 0 of batch 0"):
            spawn(next, iterator).result(PATIENCE)
        dataset.gate.set()
        assert spawn(lists, iterator).result(PATIENCE) == [[index] for index in range(8)]
