"""Files with an index each, built once, then kept beside the file or in the user's cache folder.

    shard-000.tar ── one pass over it ──▶ arrays ──▶ shard-000.tar.tlindex

The file of an index is a record, whose checksum finds damage.  Processes may build it at the same
time: it is only replaced as a whole.  An index is built anew if it has another format, is damaged,
or is of another version of the file.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from threadloader._authors import Dataset
from threadloader.datasets._files import Files
from threadloader.datasets._local_file import write_whole
from threadloader.datasets._record import packed, unpacked
from threadloader.datasets._urls import is_url, unsigned
from threadloader.errors import checked_index

if TYPE_CHECKING:
    from threadloader.datasets._files import File, Patterns


class Index(SimpleNamespace):
    """The index of a file: arrays and lists, by name; workers share it, as they do no dict."""


class IndexedFiles(Dataset[Any]):
    """Samples of files by their number, found by an index of each file.

    Args:
        pattern: Paths or URLs.
        index_folder: Of the indexes' files; None for each file's own folder, or `cache_folder` for
            a URL and where that folder can't be written.  A URL has one index, however it is
            signed.
        options: For URLs.

    Threads:
        all: shared.
    """

    index_version: ClassVar[int]  # of its format
    index_names: ClassVar[tuple[str, ...]]  # of what it consists of

    def __init__(
        self,
        pattern: Patterns,
        index_folder: str | os.PathLike[str] | None,
        options: dict[str, Any],
    ) -> None:
        self._files = found = Files(pattern, options)
        for path in found.paths:
            self.check(path)
        places = [_places(path, index_folder) for path in found.paths]
        with ThreadPoolExecutor(thread_name_prefix="tl-index") as pool:
            # Taken first: if a file changes meanwhile, its index is built again.
            stamps = list(pool.map(lambda file: file.stamp(), found.files))
            self._indexes = tuple(pool.map(self._index, found.files, stamps, places))
        for file, stamp in zip(found.files, stamps, strict=True):
            file.expect(stamp)  # another version of the file has other offsets
        self._ends = np.array(list(accumulate(map(self.samples_of, self._indexes))), np.int64)

    @classmethod
    def samples_of(cls, index: Index) -> int:
        """Return the number of samples in a file, by its index."""
        raise NotImplementedError

    def check(self, path: str) -> None:
        """Refuse a file that has no random access, by its name.

        Raises:
            ValueError: It has none.
        """
        raise NotImplementedError

    def build_index(self, file: File) -> dict[str, Any]:
        """Return the index of a file: arrays, and lists of strings.

        Raises:
            DataError: The file is damaged.
            OSError: It can't be read.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._ends[-1])

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        self._files.close()

    def _find(self, index: int, what: str) -> tuple[File, Index, int]:
        """Return the file that has a sample, the file's index, and the sample's row there.

        Args:
            index: Of the sample; a negative one counts from the end.
            what: Samples in words, for the error.

        Raises:
            IndexError: There is no such sample.
        """
        number = checked_index(index, len(self), what)
        file = int(self._ends.searchsorted(number, "right"))
        row = number - (int(self._ends[file - 1]) if file else 0)
        return self._files.files[file], self._indexes[file], row

    def _index(self, file: File, stamp: str, places: list[Path]) -> Index:
        """Return a file's index: from its own file or, if there is none, built and kept there."""
        told = {"version": self.index_version, "stamp": stamp}
        for place in places:
            with suppress(Exception):  # there is none, or its bytes mean anything
                kept = unpacked(0, place.read_bytes())
                if told.items() <= kept.items():
                    return Index(**{name: kept[name] for name in self.index_names})
        index = self.build_index(file)
        record = packed(0, told | index)
        for place in places:
            with suppress(OSError):  # then the next place, or it is built again the next time
                write_whole(place, record)
                break
        return Index(**index)


def cache_folder() -> Path:
    """Return the folder for indexes in the user's cache folder.

    Source: XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "threadloader", "shards")


def _places(path: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Return the files that may have an index, the preferred one first."""
    url = is_url(path)
    whole = unsigned(path) if url else str(Path(path).resolve())
    # From the whole path: shards of one name in several folders have one index each.
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    name = f"{digest}.tlindex"
    if folder is not None:
        return [Path(folder) / name]
    beside = [] if url else [Path(f"{whole}.tlindex")]
    try:
        return [*beside, cache_folder() / name]
    except RuntimeError:  # a user without a home
        return beside
