"""PyG: graphs of different sizes, made one batch by its own collater."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import torch
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.loader.dataloader import Collater

from clients.points import Points
from threadloader import ThreadLoader


class Rings(Dataset):
    """Sample ``i`` is a ring of ``i + 2`` nodes."""

    by_workers = Points.by_workers

    def __init__(self) -> None:
        self.visitors: list[str] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Data:
        self.visitors.append(threading.current_thread().name)
        nodes = torch.arange(index + 2)
        return Data(
            x=nodes[:, None] + index / 10,
            edge_index=torch.stack([nodes, nodes.roll(1)]),
            y=torch.tensor([index]),
        )


def plain(batches: Any) -> list[dict[str, Any]]:
    return [{name: value.tolist() for name, value in batch.to_dict().items()} for batch in batches]


def test_batches_of_graphs_are_the_same() -> None:
    rings = Rings()
    torch.manual_seed(3)
    expected = plain(DataLoader(Rings(), batch_size=4, shuffle=True, follow_batch=["x"]))
    torch.manual_seed(3)
    loader = ThreadLoader(
        rings, batch_size=4, shuffle=True, threads=2, collate_fn=Collater(rings, ["x"])
    )
    assert plain(loader) == expected
    assert all(isinstance(batch, Batch) for batch in loader)
    assert rings.by_workers


def test_its_own_loader_can_be_given_threads() -> None:
    class GraphLoader(ThreadLoader):
        """PyG's loader does no more than this."""

        def __init__(self, dataset: Any, **arguments: Any) -> None:
            super().__init__(dataset, collate_fn=Collater(dataset), **arguments)

    rings = Rings()
    expected = plain(DataLoader(Rings(), batch_size=4))
    assert plain(GraphLoader(rings, batch_size=4, threads=2)) == expected
    assert rings.by_workers


def test_batches_made_by_workers_take_no_shared_memory() -> None:
    # Each would keep a file handle open for as long as it is kept.
    rings = Rings()
    kept = list(ThreadLoader(rings, batch_size=2, threads=2, collate_fn=Collater(rings)))
    tensors = [value for batch in kept for value in batch.to_dict().values()]
    assert rings.by_workers
    assert len(tensors) >= 3 * len(kept)
    assert not any(tensor.is_shared() for tensor in tensors if isinstance(tensor, torch.Tensor))
