"""Hugging Face datasets: maps with whole batches, and streams that share out their shards."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets.arrow_dataset")  # "datasets" may be a folder of tests

import datasets
import torch
from torch.utils.data import DataLoader, default_collate

from clients.points import WORKER
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = {"x": [[i, i + 0.5] for i in range(22)], "y": list(range(22))}


def plain(batches: Any) -> list[dict[str, Any]]:
    return [{name: value.tolist() for name, value in batch.items()} for batch in batches]


def noted(visitors: list[str]) -> Any:
    def note(rows: dict[str, Any]) -> dict[str, Any]:
        visitors.append(threading.current_thread().name)
        return {name: torch.as_tensor(values) for name, values in rows.items()}

    return note


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_a_map_are_the_same(shuffle: bool) -> None:
    visitors: list[str] = []
    rows = datasets.Dataset.from_dict(ROWS)
    loaders = {"batch_size": 4, "shuffle": shuffle}
    torch.manual_seed(3)
    expected = plain(DataLoader(rows.with_format("torch"), **loaders))
    torch.manual_seed(3)
    assert plain(ThreadLoader(rows.with_format("torch"), threads=2, **loaders)) == expected
    torch.manual_seed(3)
    noting = ThreadLoader(rows.with_transform(noted(visitors)), threads=2, **loaders)
    assert plain(noting) == expected
    assert visitors
    assert all(map(WORKER.fullmatch, visitors))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stream_shares_out_its_shards(workers: int) -> None:
    visitors: list[str] = []

    def rows(firsts: list[int]) -> Iterator[dict[str, Any]]:
        for first in firsts:
            for y in range(first, 22, 4):
                yield {"x": y + 0.5, "y": y}

    def stream() -> Any:
        made = datasets.IterableDataset.from_generator(rows, gen_kwargs={"firsts": [0, 1, 2, 3]})
        return made.shuffle(seed=3, buffer_size=5).with_format("torch")

    def note(samples: list[Any]) -> Any:
        visitors.append(threading.current_thread().name)  # its streams read in threads of theirs
        return default_collate(samples)

    expected = plain(DataLoader(stream(), batch_size=4, num_workers=workers))
    loader = ThreadLoader(stream(), batch_size=4, num_workers=workers, collate_fn=note)
    assert plain(loader) == expected
    assert sorted(y for batch in expected for y in batch["y"]) == ROWS["y"]
    assert len(set(visitors)) == workers
    assert all(map(WORKER.fullmatch, visitors))


def test_another_epoch_shuffles_a_stream_anew() -> None:
    def epochs(kind: type) -> list[Any]:
        rows = datasets.Dataset.from_dict(ROWS).to_iterable_dataset(num_shards=4)
        rows = rows.shuffle(seed=3, buffer_size=5).with_format("torch")
        loader = kind(rows, batch_size=4, num_workers=2)
        batches = []
        for epoch in range(2):
            rows.set_epoch(epoch)
            batches += plain(loader)
        return batches

    assert epochs(ThreadLoader) == epochs(DataLoader)
