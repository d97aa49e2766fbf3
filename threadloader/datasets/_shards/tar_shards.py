"""TarShards: WebDataset's shards as a map-style dataset, any sample at any time.

Samples are read at their offsets in the archives, and all threads read through the same files.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._tuning.machine import usable_cores
from threadloader.datasets._files import open_files
from threadloader.datasets._shards.decoding import Fields, decoders, make_sample
from threadloader.datasets._shards.index import open_index
from threadloader.datasets._shards.names import find_shards, place_of, told_shards
from threadloader.datasets._tar import BLOCK, RawSample

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from threadloader.datasets._files import File
    from threadloader.datasets._tar import SampleMember


_GAP = 64 << 10  # bytes between two members that are read, too, to save a second read


class TarShards(_torch.Dataset[Any]):
    """Samples of tar archives, by their number.

    Files of one name up to the first dot, one after the other in an archive, are a sample:
    ``n01/0007.jpg`` and ``n01/0007.cls`` are ``{"__key__": "n01/0007", "jpg": ..., "cls": ...}``.

    Args:
        pattern: Paths or URLs of ``.tar`` files, with ``{000..123}`` and ``*``; one or several.
        fields: Extensions, for samples that are tuples: ``("jpg;png", "cls")`` takes the first of
            the alternatives that a sample has.  None: samples are dicts of all members.
        decode: Whether members are decoded by their extension; False for bytes.  A dict of
            functions, by extension, is added to the package's own.
        transform: Applied to each sample.
        index_folder: Folder of the indexes; None to keep them beside the shards or, if that can't
            be done, in the user's cache folder.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        DataError: A shard is damaged, or a key comes twice in it.
        FileNotFoundError: There is no such shard.
        ValueError: A shard is compressed, or no ``.tar``.

    Threads:
        all: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        fields: Iterable[str] | None = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        transform: Callable[[Any], Any] | None = None,
        index_folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.shards = find_shards(pattern, **options)
        self.transform = transform
        # An attribute, since copies of a dataset for each worker look for users' functions here.
        self.decoders = decoders(decode)
        self._fields = Fields.of(fields)
        self._files: tuple[File, ...] = tuple(open_files(self.shards, **options))
        opens = partial(open_index, folder=index_folder)
        with ThreadPoolExecutor(usable_cores() or 1, thread_name_prefix="tl-index") as pool:
            self._indexes = tuple(pool.map(opens, self._files, self.shards))
        for file, index in zip(self._files, self._indexes, strict=True):
            file.expect(index.stamp)  # another version of the file has other offsets
        self._ends = np.array(list(accumulate(map(len, self._indexes))), np.int64)

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"TarShards: {len(self):,} samples in {told_shards(self.shards)}"

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            DataError: The sample lacks a field, or can't be decoded; or its shard changed after the
                index was made, and the dataset must be made anew.
            IndexError: There is no such sample.
        """
        shard, row = place_of(index, self._ends, "samples")
        file, table = self._files[shard], self._indexes[shard]
        key, members = table.key(row), table.members(row)
        chosen = self._fields.chosen(key, members, file.path)
        wanted = {extension: members[extension] for extension in chosen if extension in members}
        members.update(_read(file, wanted))
        sample = RawSample(key, members)
        return make_sample(sample, file.path, self._fields, self.decoders, self.transform)

    @property
    def keys(self) -> list[str]:
        """The samples' keys in order, as a new list."""
        return [table.key(row) for table in self._indexes for row in range(len(table))]

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        for file in self._files:
            file.close()


def _read(file: File, members: Mapping[str, SampleMember]) -> dict[str, SampleMember]:
    """Return members with their data, by one read if they are close to each other."""
    if not members:
        return {}
    start = min(member.offset for member in members.values())
    stop = max(member.offset + member.size for member in members.values())
    needed = sum(member.size + BLOCK for member in members.values())
    if stop - start > needed + _GAP:
        return {
            extension: member._replace(data=file.read_at(member.offset, member.size))
            for extension, member in members.items()
        }
    data = file.read_at(start, stop - start)
    return {
        extension: member._replace(
            data=data[member.offset - start : member.offset - start + member.size]
        )
        for extension, member in members.items()
    }
