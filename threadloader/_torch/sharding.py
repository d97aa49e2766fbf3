"""How data is shared out: ranks that train together, and the shards of torch's data pipes."""

from __future__ import annotations

import os
from datetime import timedelta
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import IterDataPipe, dataloader, graph_settings

from threadloader._lifetime.exit_and_fork import in_forked_child

__all__ = [
    "draw_shared_seed",
    "open_rank_store",
    "prepare_pipe",
    "rank_and_world",
    "unwrapped",
]

# torch walks through a pipe by a hook on its class, and refuses a second walk at the same time.
_walking = Lock()
_inherited: Any = None  # the ranks' store of the process that this one was forked from


@in_forked_child
def _forget() -> None:
    """In a forked child, make the lock anew, and leave the store to the parent.

    Another thread may have held the lock; and parent and child would mix their requests up on the
    store's one connection.
    """
    global _walking, _inherited  # noqa: PLW0603  # of the process, and this is a new one
    _walking = Lock()
    _inherited = None if rank_and_world() is None else _default_store()


def _default_store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()  # no public name has it


def rank_and_world() -> tuple[int, int] | None:
    """Return this process's rank and the number of ranks; None if none were set up."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


def open_rank_store() -> Any:
    """Return the store that all ranks of torch.distributed have in common; None for none.

    A child that a rank has forked is no rank: it has none until it sets up a group of its own.

    Through it ranks can agree without a collective, which would need a device with NCCL, and all
    ranks at the same place of a program.  A TCPStore has a connection of its own here: a thread
    that waits in it keeps all others from using that connection, torch's own code, too.
    """
    if rank_and_world() is None:
        return None
    store = _default_store()
    if store is _inherited:
        return None
    distributed: Any = torch.distributed
    prefixed = distributed.distributed_c10d.PrefixStore
    while isinstance(store, prefixed):  # another connection has not this prefix
        store = store.underlying_store
    if isinstance(store, distributed.TCPStore):
        # It answers other connections: else its process has just ended, and no trying again helps.
        soon = timedelta(seconds=30)
        store = distributed.TCPStore(
            store.host, store.port, is_master=False, wait_for_workers=False, timeout=soon
        )
    # torchrun's store may outlive the ranks, and have what those before a restart have set.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return prefixed(f"threadloader/{attempt}", store)


def _is_pipe(dataset: object) -> bool:
    """Whether ``dataset`` is an iterable data pipe."""
    return isinstance(dataset, IterDataPipe)


def unwrapped(dataset: Any) -> Any:
    """Return a pipe without DataLoader's wrapper for pickling, which threads do not need."""
    return getattr(dataset, "_datapipe", dataset) if _is_pipe(dataset) else dataset


def draw_shared_seed(dataset: object, generator: Any) -> int | None:
    """Draw the seed of all workers' shuffling pipes, one for all ranks; None if there is no pipe.

    Drawn before the base seed.  Source: ``_BaseDataLoaderIter.__init__`` in
    torch/utils/data/dataloader.py.
    """
    if not _is_pipe(dataset):
        return None
    if isinstance(generator, np.random.Generator):
        generator = torch.Generator().manual_seed(int(generator.integers(1 << 63)))
    group = None
    if rank_and_world() is not None:
        group = torch.distributed.new_group(backend="gloo")
    return int(dataloader._share_dist_seed(generator, group))  # type: ignore[no-untyped-call]


def prepare_pipe(pipe: Any, seed: int, workers: int, number: int) -> None:
    """Seed a worker's replica of a pipe and give it its shard, among all ranks' workers.

    Args:
        pipe: The replica; changed in place.
        seed: The shared seed.
        workers: Workers of this rank, at least 1.
        number: This worker.
    """
    with _walking:
        graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(seed))
        ranks, rank = dataloader._get_distributed_settings()  # type: ignore[no-untyped-call]
        graph_settings.apply_sharding(pipe, workers * ranks, number * ranks + rank)
