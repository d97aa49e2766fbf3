"""Datasets of what people have: arrays, images, shards, here or behind a URL.

Importing this package loads no decoder and no client of a remote store: naming a class loads its
module (PEP 562), and what that needs of other packages is loaded by the first sample.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadloader._threads.per_thread import PerThread
    from threadloader.datasets.arrays import ArrayDataset
    from threadloader.datasets.images import ImageFolder
    from threadloader.datasets.shards import TarShards
    from threadloader.datasets.tar_stream import TarStream

__all__ = ["ArrayDataset", "ImageFolder", "PerThread", "TarShards", "TarStream"]

_MODULES = {
    "ArrayDataset": "threadloader.datasets.arrays",
    "ImageFolder": "threadloader.datasets.images",
    "PerThread": "threadloader._threads.per_thread",
    "TarShards": "threadloader.datasets.shards",
    "TarStream": "threadloader.datasets.tar_stream",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
