"""torchdata's nodes: whole batches mapped by threads, as its guide replaces a DataLoader.

Source: https://docs.pytorch.org/data/0.11/migrate_to_nodes_from_utils.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import RandomSampler, SequentialSampler, default_collate
from torchdata import nodes

from benches.loaders.catalog import Loader, Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Rival"]


class Rival(Loader):
    """Load with a `ParallelMapper` of ``workers`` threads, in order, and two batches a thread."""

    def __init__(self, setup: Setup) -> None:
        dataset, collate = setup.dataset, setup.collate or default_collate

        def load(indices: Sequence[int]) -> Any:
            return collate([dataset[index] for index in indices])

        sampler = RandomSampler(dataset) if setup.shuffle else SequentialSampler(dataset)
        node = nodes.Batcher(nodes.SamplerWrapper(sampler), setup.batch_size, drop_last=False)
        node = nodes.ParallelMapper(node, load, num_workers=setup.workers, method="thread")
        self._loader: Any = nodes.Loader(nodes.Prefetcher(node, prefetch_factor=2 * setup.workers))
