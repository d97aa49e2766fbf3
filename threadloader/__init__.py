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
    from threadloader._fetch.handles import register
    from threadloader._order.token_batches import TokenBatches
    from threadloader._rng.streams import sample_rng, sample_seed
    from threadloader._session.session import Statistics
    from threadloader._threads.worker_info import get_worker_info
    from threadloader._trace.ranges import profile
    from threadloader.datasets._packing.packed import pack
    from threadloader.loader import ThreadLoader

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
    "Statistics": "threadloader._session.session",
    "ThreadLoader": "threadloader.loader",
    "TokenBatches": "threadloader._order.token_batches",
    "get_worker_info": "threadloader._threads.worker_info",
    "pack": "threadloader.datasets._packing.packed",
    "profile": "threadloader._trace.ranges",
    "register": "threadloader._fetch.handles",
    "sample_rng": "threadloader._rng.streams",
    "sample_seed": "threadloader._rng.streams",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = found = getattr(import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
