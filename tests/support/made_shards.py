"""Shards made for tests, by the standard library's tarfile."""

from __future__ import annotations

import copy
import gzip
import io
import pickle
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from threadloader.datasets._tar import zstd_module

try:
    zstd_module()
    HAS_ZSTD = True
except ModuleNotFoundError:
    HAS_ZSTD = False

ENDINGS = [".tar", ".tar.gz", *([".tar.zst"] if HAS_ZSTD else [])]


def itself(dataset: Any) -> Any:
    return dataset


def pickled(dataset: Any) -> Any:
    return pickle.loads(pickle.dumps(dataset))


COPIES = [itself, copy.copy, copy.deepcopy, pickled]  # what a dataset may come to be in a worker


def tar_bytes(members: Iterable[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002  # tarfile's name
    """Return an archive of files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def compressed(archive: bytes, ending: str) -> bytes:
    if ending == ".tar.gz":
        return gzip.compress(archive, 1, mtime=0)
    if ending == ".tar.zst":
        return zstd_bytes(archive)
    return archive


def zstd_bytes(data: bytes) -> bytes:
    """Return a frame with a checksum, as the command line's have."""
    module = zstd_module()
    compressed: bytes = module.compress(
        data, options={module.CompressionParameter.checksum_flag: 1}
    )
    return compressed


def members_of(samples: Mapping[str, Mapping[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(f"{key}.{ext}", data) for key, parts in samples.items() for ext, data in parts.items()]


def write_shard(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> Path:
    """Write samples to an archive that is compressed as its name says."""
    ending = "." + path.name.partition(".")[2]
    path.write_bytes(compressed(tar_bytes(members_of(samples)), ending))
    return path


def numbered(start: int, stop: int) -> dict[str, dict[str, bytes]]:
    """Return samples that hold their number, as text and as a class, and a filler."""
    return {
        f"{number:05}": {
            "txt": f"sample {number}".encode(),
            "cls": str(number).encode(),
            "bin": bytes([number % 256]) * (number % 700),
        }
        for number in range(start, stop)
    }


def write_numbered(folder: Path, sizes: Iterable[int], ending: str = ".tar") -> list[Path]:
    """Write shards of so many samples each, numbered through."""
    paths, start = [], 0
    for shard, size in enumerate(sizes):
        path = folder / f"shard-{shard:03}{ending}"
        paths.append(write_shard(path, numbered(start, start + size)))
        start += size
    return paths
