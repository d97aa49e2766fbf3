"""threadloader: batches by threads, as a drop-in for torch.utils.data.DataLoader.

Importing the package alone loads neither torch nor Pillow; naming `ThreadLoader` loads what it
needs (PEP 562), torch where it is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from threadloader._version import __version__ as __version__
from threadloader.errors import (
    ClosedError,
    DataError,
    EmptyReplicaWarning,
    GilWarning,
    RankError,
    RemoteError,
    SampleError,
    SlowLoadingWarning,
    StateError,
    ThreadLoaderError,
    ThreadLoaderWarning,
)

if TYPE_CHECKING:
    from threadloader._loader.loader import ThreadLoader
    from threadloader._loader.session import Statistics
    from threadloader._order.token_batches import TokenBatches
    from threadloader._report.ranges import profile
    from threadloader._worker.handles import register
    from threadloader._worker.streams import sample_rng, sample_seed
    from threadloader._worker.worker_info import get_worker_info
    from threadloader.datasets._packing import pack

__all__ = [
    "ClosedError",
    "DataError",
    "EmptyReplicaWarning",
    "GilWarning",
    "RankError",
    "RemoteError",
    "SampleError",
    "SlowLoadingWarning",
    "StateError",
    "Statistics",
    "ThreadLoader",
    "ThreadLoaderError",
    "ThreadLoaderWarning",
    "TokenBatches",
    "get_worker_info",
    "pack",
    "profile",
    "register",
    "sample_rng",
    "sample_seed",
]

# Where each name is that is imported when it is first asked for.
_LAZY = {
    "Statistics": "threadloader._loader.session",
    "ThreadLoader": "threadloader._loader.loader",
    "TokenBatches": "threadloader._order.token_batches",
    "get_worker_info": "threadloader._worker.worker_info",
    "pack": "threadloader.datasets._packing",
    "profile": "threadloader._report.ranges",
    "register": "threadloader._worker.handles",
    "sample_rng": "threadloader._worker.streams",
    "sample_seed": "threadloader._worker.streams",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = found = getattr(import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
