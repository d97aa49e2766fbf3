"""Data pipes of torch's: they are seeded and sharded before they are read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from threadloader import _torch
from threadloader._threads.pool import SingleJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._fetch.fetcher import Cancellable
    from threadloader._settings import Settings
    from threadloader._work.copies import Worker
    from threadloader._work.workers import Workers


def prepare_pipes(
    settings: Settings, workers: Workers | None, shared_seed: int, *, new: bool
) -> Callable[[Cancellable], None] | None:
    """Seed and shard what is read of a data pipe.

    Args:
        settings: Of the loader.
        workers: Who reads it; None for the calling thread.
        shared_seed: Of all ranks and workers.
        new: Whether the workers are.  A kept worker may be reading, and prepares its pipe itself.

    Returns:
        Has each kept worker do so, unless the epoch is cancelled by then; None for no kept workers.
    """
    pipes = [_torch.unwrapped(settings.dataset)]
    if workers is not None:
        pipes = [replica.dataset for replica in workers.replicas]
        if settings.transform is not None:
            del pipes[1:]  # one reads
    prepares = [
        partial(_torch.prepare_pipe, pipe, shared_seed, len(pipes), number)
        for number, pipe in enumerate(pipes)
    ]
    if workers is not None and not new:
        return partial(_prepare_each, workers, prepares)
    for prepare in prepares:
        prepare()
    return None


def _prepare_each(
    workers: Workers, prepares: Sequence[Callable[[], None]], epoch: Cancellable
) -> None:
    """Have each worker prepare its pipe before it reads on."""
    for pool, prepare in zip(workers.pools, prepares, strict=False):
        pool.put(SingleJob(partial(_prepare, prepare, epoch)))


def _prepare(prepare: Callable[[], None], epoch: Cancellable, _: Worker) -> None:
    if not epoch.cancelled:  # or a later epoch reads by now
        prepare()
