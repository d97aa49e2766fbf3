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
    DeviceError,
    EmptyReplicaWarning,
    GilWarning,
    InProcessWarning,
    RankError,
    RemoteError,
    SampleError,
    SlowLoadingWarning,
    StateError,
    ThreadLoaderError,
    ThreadLoaderWarning,
)

if TYPE_CHECKING:
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
    "DeviceError",
    "EmptyReplicaWarning",
    "GilWarning",
    "InProcessWarning",
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
    "sample_rng",
    "sample_seed",
]

_LAZY = frozenset({"Statistics", "ThreadLoader", "get_worker_info", "sample_rng", "sample_seed"})
# What a loader has no need of: where each name is.
_APART = {
    "TokenBatches": "threadloader._order.token_batches",
    "pack": "threadloader.datasets._packing.packed",
    "profile": "threadloader._trace.ranges",
}


def __getattr__(name: str) -> Any:
    if name in _APART:
        return getattr(import_module(_APART[name]), name)
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from threadloader import loader
    from threadloader._rng import streams
    from threadloader._session import session
    from threadloader._threads import worker_info

    globals().update(
        Statistics=session.Statistics,
        ThreadLoader=loader.ThreadLoader,
        get_worker_info=worker_info.get_worker_info,
        sample_rng=streams.sample_rng,
        sample_seed=streams.sample_seed,
    )
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_APART})
