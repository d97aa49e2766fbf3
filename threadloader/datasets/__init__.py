"""Datasets over arrays, images and shards, in local files or behind URLs, and mixtures of them.

Importing this package loads no decoder and no client of a remote store: naming a class loads its
module (PEP 562), and the first sample loads what that module needs of other packages.  The names
here are public; all modules and folders below are internal and begin with an underscore.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadloader._threads.per_thread import PerThread
    from threadloader.datasets._arrays import ArrayDataset
    from threadloader.datasets._cached.cached import Cached
    from threadloader.datasets._files import open_files
    from threadloader.datasets._images.image_folder import ImageFolder
    from threadloader.datasets._mixture.mixture import Mixture
    from threadloader.datasets._mixture.mixture_stream import MixtureStream
    from threadloader.datasets._remote.remote_file import RemoteFile, list_remote
    from threadloader.datasets._remote.retries import Retries
    from threadloader.datasets._shards.tar_shards import TarShards
    from threadloader.datasets._shards.tar_stream import TarStream

__all__ = [
    "ArrayDataset",
    "Cached",
    "ImageFolder",
    "Mixture",
    "MixtureStream",
    "PerThread",
    "RemoteFile",
    "Retries",
    "TarShards",
    "TarStream",
    "list_remote",
    "open_files",
]

_MODULES = {
    "ArrayDataset": "._arrays",
    "Cached": "._cached.cached",
    "ImageFolder": "._images.image_folder",
    "Mixture": "._mixture.mixture",
    "MixtureStream": "._mixture.mixture_stream",
    "PerThread": "threadloader._threads.per_thread",
    "RemoteFile": "._remote.remote_file",
    "Retries": "._remote.retries",
    "TarShards": "._shards.tar_shards",
    "TarStream": "._shards.tar_stream",
    "list_remote": "._remote.remote_file",
    "open_files": "._files",
}

# Former modules that users' pickles and imports name: where the code is now, and the names that
# are still found.
_FORMER = {
    "arrays": ("._arrays", ("ArrayDataset",)),
    "assembly": ("._shards.make_sample", ("Fields",)),
    "decode": ("._images.decode", ("decode",)),
    "files": ("._files", ("LocalFile", "Shelf", "open_file", "open_files")),
    "images": ("._images.image_folder", ("ImageFolder",)),
    "index_file": ("._shards.index_file", ("ShardIndex",)),
    "members": (
        "._shards.member_decoders",
        ("DECODERS", "_array", "_arrays", "_image", "_json", "_number", "_text"),
    ),
    "per_thread": ("threadloader._threads.per_thread", ("PerThread",)),
    "remote": ("._remote.remote_file", ("RemoteFile", "RemoteStore", "list_remote")),
    "retries": ("._remote.retries", ("Retries",)),
    "shards": ("._shards.tar_shards", ("TarShards",)),
    "tar_stream": ("._shards.tar_stream", ("TarStream", "_Shared")),
}


class _FormerModule(ModuleType):
    """A former module, empty: looking up one of its names loads the module that has it now.

    All other names are an error at once.  Pickle asks every module for the name of an object that
    does not know its own module, and must not load decoders by that.
    """

    def __getattr__(self, name: str) -> Any:
        place, names = _FORMER[self.__name__.rpartition(".")[2]]
        if name not in names:
            msg = f"module {self.__name__!r} has no attribute {name!r}: see {__name__!r}"
            raise AttributeError(msg)
        return getattr(import_module(place, __package__), name)


# Python looks for a submodule in `sys.modules` before it looks for a file.
sys.modules.update(
    {path: _FormerModule(path) for path in (f"{__name__}.{name}" for name in _FORMER)}
)


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        return sys.modules[f"{__name__}.{name}"]
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_MODULES[name], __package__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
