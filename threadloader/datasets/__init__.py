"""Datasets over arrays, images, shards and rows, in files or behind URLs, and mixtures of them.

Importing this package loads no decoder and no client of a remote store: naming a class loads its
module (PEP 562), and the first sample loads what that module needs of other packages.  The names
here are public; all modules and folders below are internal and begin with an underscore.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadloader._authors import PerThread as PerThread
    from threadloader.datasets._arrays import ArrayDataset as ArrayDataset
    from threadloader.datasets._cached.cached import Cached as Cached
    from threadloader.datasets._files import open_files as open_files
    from threadloader.datasets._images.decode import decode_image as decode_image
    from threadloader.datasets._images.image_folder import ImageFolder as ImageFolder
    from threadloader.datasets._lines import Lines as Lines
    from threadloader.datasets._lines import LineStream as LineStream
    from threadloader.datasets._mixture.mixture import Mixture as Mixture
    from threadloader.datasets._mixture.stream import MixtureStream as MixtureStream
    from threadloader.datasets._parquet.rows import ParquetRows as ParquetRows
    from threadloader.datasets._remote.remote_file import RemoteFile as RemoteFile
    from threadloader.datasets._remote.remote_file import list_remote as list_remote
    from threadloader.datasets._remote.requests import Retries as Retries
    from threadloader.datasets._shards.tar import TarShards as TarShards
    from threadloader.datasets._shards.tar import TarStream as TarStream

_MODULES = {
    "ArrayDataset": "._arrays",
    "Cached": "._cached.cached",
    "ImageFolder": "._images.image_folder",
    "LineStream": "._lines",
    "Lines": "._lines",
    "Mixture": "._mixture.mixture",
    "MixtureStream": "._mixture.stream",
    "ParquetRows": "._parquet.rows",
    "PerThread": "threadloader._authors",
    "RemoteFile": "._remote.remote_file",
    "Retries": "._remote.requests",
    "TarShards": "._shards.tar",
    "TarStream": "._shards.tar",
    "decode_image": "._images.decode",
    "list_remote": "._remote.remote_file",
    "open_files": "._files",
}
__all__ = [*_MODULES]  # noqa: PLE0604  # its keys are strings


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_MODULES[name], __package__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
