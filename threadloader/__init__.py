"""threadloader: batches by threads, as a drop-in for torch.utils.data.DataLoader.

Importing the package alone loads neither torch nor Pillow; naming `ThreadLoader` loads what it
needs (PEP 562), torch where it is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader.errors import (
    ClosedError,
    DataError,
    DeviceError,
    RemoteError,
    SampleError,
    StateError,
    ThreadLoaderError,
)

if TYPE_CHECKING:
    from threadloader.loader import ThreadLoader
    from threadloader.rng import sample_rng, sample_seed
    from threadloader.running import Statistics
    from threadloader.worker import get_worker_info

__all__ = [
    "ClosedError",
    "DataError",
    "DeviceError",
    "RemoteError",
    "SampleError",
    "StateError",
    "Statistics",
    "ThreadLoader",
    "ThreadLoaderError",
    "get_worker_info",
    "sample_rng",
    "sample_seed",
]

__version__ = "0.1.0"

_LAZY = frozenset({"Statistics", "ThreadLoader", "get_worker_info", "sample_rng", "sample_seed"})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from threadloader import loader, rng, running, worker

    globals().update(
        Statistics=running.Statistics,
        ThreadLoader=loader.ThreadLoader,
        get_worker_info=worker.get_worker_info,
        sample_rng=rng.sample_rng,
        sample_seed=rng.sample_seed,
    )
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
