"""PyG: graphs of different sizes, made one batch by its own collater."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.loader.dataloader import Collater

from clients.points import Points
from threadloader import ThreadLoader


def ring(index: int) -> Data:
    """Return a ring of ``index + 2`` nodes."""
    nodes = torch.arange(index + 2)
    edges = torch.stack([nodes, nodes.roll(1)])
    return Data(x=nodes[:, None] + index / 10, edge_index=edges, y=torch.tensor([index]))


class GraphLoader(ThreadLoader):
    """PyG's loader does no more than this."""

    def __init__(self, dataset: Any, *args: Any, follow_batch: Any = None, **options: Any) -> None:
        super().__init__(dataset, *args, collate_fn=Collater(dataset, follow_batch), **options)


def test_batches_of_graphs_are_the_same_and_take_no_shared_memory() -> None:
    def plain(batches: Any) -> list[dict[str, Any]]:
        return [
            {name: part.tolist() for name, part in batch.to_dict().items()} for batch in batches
        ]

    rings, options = Points(10, ring), {"batch_size": 4, "shuffle": True, "follow_batch": ["x"]}
    torch.manual_seed(3)
    expected = plain(DataLoader(Points(10, ring), **options))
    torch.manual_seed(3)
    batches = list(GraphLoader(rings, **options, threads=2))
    assert plain(batches) == expected
    assert all(isinstance(batch, Batch) for batch in batches)
    # Each would keep a file handle open for as long as it is kept.
    assert not any(part.is_shared() for batch in batches for part in batch.to_dict().values())
    assert rings.by_workers
