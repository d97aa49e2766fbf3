"""torch's `get_worker_info()` and `initial_seed()`, made to see threads.

torch keeps the worker info in a global of its module, and user code may have imported the function
long ago.  So its code is exchanged, not the function.  Outside worker threads, and in process
workers, it answers as before.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker

__all__ = ["get_worker_info", "make_worker_info", "teach_worker_info"]


# In a worker they would take shared memory, and a file handle with it, for each batch.
_COLLATING = ("torch.utils.data._utils.collate", "torch_geometric.data.collate")


def teach_worker_info(here: Any) -> None:
    """Let torch's functions answer for the calling thread first.

    Call once, before there are workers.

    Args:
        here: A `threading.local`; its ``info`` is the thread's WorkerInfo, or None.
    """
    names: dict[str, Any] = {
        "_threadloader_here": here,
        "_threadloader_frame": sys._getframe,
        "_threadloader_hide": _COLLATING,
    }
    vars(worker).update(names)
    vars(torch.random).update(names)
    worker.get_worker_info.__code__ = _get_worker_info.__code__
    torch.random.initial_seed.__code__ = _initial_seed.__code__


def make_worker_info(number: int, workers: int, seed: int, dataset: Any, rng: Any) -> Any:
    """Return torch's own description of a worker.

    Args:
        number: The worker, from 0.
        workers: How many there are.
        seed: The worker's own.
        dataset: The worker's copy.
        rng: An object with the attributes of torch's container of generators.
    """
    kind: Any = worker.WorkerInfo
    return kind(
        id=number,
        num_workers=workers,
        seed=seed,
        dataset=dataset,
        rng=rng,
        worker_method="thread",
    )


# What follows runs with the globals of torch's modules.


def _get_worker_info() -> Any:
    info = _threadloader_here.info  # type: ignore[name-defined]  # noqa: F821
    if info is None:
        return _worker_info  # type: ignore[name-defined]  # noqa: F821
    if _threadloader_frame(1).f_globals.get("__name__") in _threadloader_hide:  # type: ignore[name-defined]  # noqa: F821
        return None
    return info


def _initial_seed() -> int:
    streams = globals().get("_threadloader_streams")
    stream = streams and streams.stream
    seed = None if stream is None else stream.initial_seed()
    if seed is not None:
        return seed  # type: ignore[no-any-return]
    info = _threadloader_here.info  # type: ignore[name-defined]  # noqa: F821
    if info is None:
        return default_generator.initial_seed()  # type: ignore[name-defined,no-any-return]  # noqa: F821
    return info.seed  # type: ignore[no-any-return]
