"""Photos in compressed archives, read as a stream: ``.tar.zst`` files of JPEGs and classes."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from benches.workloads.photo_files import cache_folder, photo_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Shards", "make_shards"]

SHARDS, PHOTOS = 8, 64  # photos in each


class Shards:
    """The archives, and a loop over their samples as one writes it with the standard library.

    Args:
        length: Samples; there are as many as the archives have.

    Raises:
        FileNotFoundError: The photos have not been made yet.
    """

    def __init__(self, length: int) -> None:
        if length != SHARDS * PHOTOS:
            raise ValueError(f"{length} samples wanted, {SHARDS * PHOTOS} made")
        self.paths = make_shards()

    def __len__(self) -> int:
        """Return the number of samples."""
        return SHARDS * PHOTOS

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Yield whole photos, (375, 500, 3), and their labels."""
        from PIL import Image

        for path in self.paths:
            command = ["zstd", "-dcq", path]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking:
                photo = None
                for extension, data in _members(unpacking.stdout):
                    if extension == ".jpg":
                        photo = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
                    elif photo is not None:
                        yield photo, int(data)


def _members(stream: IO[bytes] | None) -> Iterator[tuple[str, bytes]]:
    """Yield the extension and the content of each file of an archive."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            yield Path(member.name).suffix, file.read() if file else b""


def make_shards() -> list[str]:
    """Make the archives where they are missing; return their paths.

    Raises:
        CalledProcessError: The command ``zstd`` failed.
        FileNotFoundError: There is no such command, or the photos have not been made yet.
    """
    folder = cache_folder() / f"tar-zst-{SHARDS}x{PHOTOS}-v2"
    paths = [folder / f"photos-{shard:03}.tar.zst" for shard in range(SHARDS)]
    if all(path.exists() for path in paths):
        return list(map(str, paths))
    photos = [path.read_bytes() for path in photo_files()]
    folder.mkdir(parents=True, exist_ok=True)
    for shard, path in enumerate(paths):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            plain = Path(scratch) / "photos.tar"
            with tarfile.open(plain, "w") as archive:
                for photo in range(PHOTOS):
                    number = shard * PHOTOS + photo
                    _add(archive, f"{number:06}.jpg", photos[number % len(photos)])
                    _add(archive, f"{number:06}.cls", str(number % 100).encode())
            packed = f"{plain}.zst"
            subprocess.run(["zstd", "-q", "-3", str(plain), "-o", packed], check=True)  # noqa: S607
            Path(packed).replace(path)
    return list(map(str, paths))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
