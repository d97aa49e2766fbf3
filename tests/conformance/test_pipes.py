"""Data pipes: seeded and sharded as with torch, and whole where one thread reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE

from conformance.loading import batches, kinds, ours, processes, story
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_data_pipes_shuffle_and_shard_as_with_torch(workers: int, spawn: Spawn) -> None:
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")

    def build(loader: Callable[..., Any]) -> Any:
        return loader(pipes.IterableWrapper(range(11)).shuffle().sharding_filter(), 2)

    expected = kinds(story(build, processes(workers), epochs=3))
    assert kinds(spawn(story, build, ours(workers), 3).result(PATIENCE)) == expected
    assert len(batches(expected)) >= 3 * 6


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_a_transform_of_a_data_pipe_loses_no_sample(threads: int, spawn: Spawn) -> None:
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    pipe = pipes.IterableWrapper(range(12)).sharding_filter()
    loader = ThreadLoader(pipe, 4, threads=threads, transform=lambda row: 2 * row)
    got = spawn(list, loader).result(PATIENCE)
    assert torch.cat(got).tolist() == list(range(0, 24, 2)), threads
