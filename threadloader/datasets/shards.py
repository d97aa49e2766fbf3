"""TarShards: WebDataset's shards as a map-style dataset, any sample at any time.

Samples are read by their offsets in the archives, and all threads read through the same files.
"""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._threads.cores import usable_cores
from threadloader.datasets.assembly import Fields, assemble
from threadloader.datasets.files import open_files
from threadloader.datasets.members import decoders
from threadloader.datasets.patterns import find_shards, told_shards
from threadloader.datasets.tar_headers import BLOCK
from threadloader.datasets.tar_index import open_index
from threadloader.datasets.tar_samples import SAMPLE_LIMIT, RawSample
from threadloader.errors import DataError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from threadloader.datasets.files import File
    from threadloader.datasets.tar_samples import Part

    Dataset = _torch.Dataset[Any]
else:
    Dataset = _torch.Dataset

__all__ = ["TarShards"]

_GAP = 64 << 10  # bytes between two members that are rather read than left out


class TarShards(Dataset):
    """Samples of tar archives, by their number.

    Files of one name up to the first dot, one after the other in an archive, are a sample:
    ``n01/0007.jpg`` and ``n01/0007.cls`` are ``{"__key__": "n01/0007", "jpg": ..., "cls": ...}``.

    Args:
        pattern: Paths or URLs of ``.tar`` files, with ``{000..123}`` and ``*``; one or several.
        fields: Extensions, for samples that are tuples: ``("jpg;png", "cls")``, where the first of
            the alternatives is taken that a sample has.  None: dicts of all members.
        decode: Whether members are decoded by their extension; False for bytes.  A dict of
            functions, by extension, is used beside `threadloader.datasets.members.DECODERS`.
        transform: Applied to each sample.
        index_folder: Where the indexes are kept; None for beside the shards, or where that can't
            be, in the user's cache folder.
        sample_limit: Bytes that the members of a sample that fields name may have together, as
            they are in the archive.
        options: Of URLs, see `threadloader.datasets.files.open_files`.

    Raises:
        DataError: A shard is damaged, or a key comes twice in it.
        FileNotFoundError: There is no such shard.
        ValueError: A shard is compressed, or no ``.tar``.

    Threads:
        all: shared.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        fields: Iterable[str] | None = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        transform: Callable[[Any], Any] | None = None,
        index_folder: str | os.PathLike[str] | None = None,
        sample_limit: int = SAMPLE_LIMIT,
        **options: Any,
    ) -> None:
        self.shards = find_shards(pattern, **options)
        self.transform = transform
        # Functions of the user's are found here by what copies a dataset for each worker.
        self.decoders = decoders(decode)
        self._fields = Fields.of(fields)
        self._limit = sample_limit
        self._files: tuple[File, ...] = tuple(open_files(self.shards, **options))
        opens = partial(open_index, folder=index_folder)
        with ThreadPoolExecutor(usable_cores() or 1, thread_name_prefix="tl-index") as pool:
            self._indexes = tuple(pool.map(opens, self._files, self.shards))
        for file, index in zip(self._files, self._indexes, strict=True):
            file.expect(index.stamp)  # another file under its name has other offsets
        self._ends = np.array(list(accumulate(map(len, self._indexes))), np.int64)

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"TarShards: {len(self):,} samples in {told_shards(self.shards)}"

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            DataError: It lacks a field, is too large, or can't be decoded; or its shard is not
                the one any more that the index is of, and the dataset is to be made anew.
            IndexError: There is no such sample.
        """
        shard, row = self._place(index)
        file, table = self._files[shard], self._indexes[shard]
        key, parts = table.key(row), table.parts(row)
        chosen = self._fields.chosen(key, parts, file.path)
        wanted = {extension: parts[extension] for extension in chosen if extension in parts}
        self._check_size(key, wanted, file)
        parts.update(_read(file, wanted))
        sample = RawSample(key, parts)
        return assemble(sample, file.path, self._fields, self.decoders, self.transform)

    @property
    def keys(self) -> list[str]:
        """The samples' keys in order: a new list at each use."""
        return [table.key(row) for table in self._indexes for row in range(len(table))]

    def close(self) -> None:
        """Let go of open files; reading afterwards opens them anew.  Connections end with this."""
        for file in self._files:
            file.close()

    def _place(self, index: int) -> tuple[int, int]:
        """Return the shard of a sample, and its row there."""
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            msg = f"index {index} is out of range: there are {len(self)} samples"
            raise IndexError(msg)
        shard = int(self._ends.searchsorted(number, "right"))
        return shard, number - (int(self._ends[shard - 1]) if shard else 0)

    def _check_size(self, key: str, parts: Mapping[str, Part], file: File) -> None:
        size = sum(part.size for part in parts.values())
        if size > self._limit:
            msg = f"it has {size:,} bytes, and sample_limit={self._limit:,}"
            offset = next(iter(parts.values())).offset
            raise DataError(msg, file.path, member=key, offset=offset)


def _read(file: File, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Return members with their data: by one read where they are close to each other."""
    if not parts:
        return {}
    start = min(part.offset for part in parts.values())
    stop = max(part.offset + part.size for part in parts.values())
    needed = sum(part.size + BLOCK for part in parts.values())
    if stop - start > needed + _GAP:
        return {
            extension: part._replace(data=file.read_at(part.offset, part.size))
            for extension, part in parts.items()
        }
    data = file.read_at(start, stop - start)
    return {
        extension: part._replace(data=data[part.offset - start : part.offset - start + part.size])
        for extension, part in parts.items()
    }
