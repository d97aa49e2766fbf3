"""WebDataset's shards: TarShards has any sample at any time, TarStream one after the other.

`TarShards` reads samples at their offsets in the archives, and all threads through the same files.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._authors import Dataset
from threadloader.datasets._files import open_files, read_spans
from threadloader.datasets._shards.decoding import Fields, decoders, make_sample
from threadloader.datasets._shards.index import open_index
from threadloader.datasets._shards.names import find_shards, place_of, told_shards
from threadloader.datasets._shards.stream import ShardStream
from threadloader.datasets._tar import (
    SAMPLE_LIMIT,
    RawSample,
    TarReader,
    check_archive,
    open_unpacked,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from threadloader.datasets._files import File
    from threadloader.datasets._tar import SampleMember


_GAP = 64 << 10  # bytes between two members that are read, too, to save a second read


class TarShards(Dataset[Any]):
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
        with ThreadPoolExecutor(thread_name_prefix="tl-index") as pool:
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
    """Return members with their data."""
    spans = [(member.offset, member.offset + member.size) for member in members.values()]
    read_at = read_spans(file, spans, _GAP)
    return {
        extension: member._replace(data=read_at(member.offset, member.size))
        for extension, member in members.items()
    }


class TarStream(ShardStream[RawSample]):
    """Samples of tar archives, one after the other; `TarShards` says what a sample is.

    Each rank, and each worker of a rank, reads shards of its own, so each should have several.
    Ranks are those of torch.distributed, or of the environment's ``RANK`` and ``WORLD_SIZE``.
    After an error the stream goes on: after a sample that can't be decoded with the next sample,
    after damage in an archive with the next shard.

    Args:
        pattern: Paths or URLs of ``.tar``, ``.tar.gz`` and ``.tar.zst`` files, with ``{000..123}``
            and ``*``; one or several.
        shuffle: Samples in the shuffle buffer, not decoded; 0 reads all in order, 1 shuffles only
            the shards.
        seed: Decides the order, together with the number given to `set_epoch`; the same for all
            ranks.  None: the loader's seed decides, each rank always reads the same shards, and
            each epoch has another order.
        fields: See `TarShards`, also for `decode` and `transform`.
        decode: Whether members are decoded by their extension, or a dict of functions.
        transform: Applied to each sample.
        sample_limit: Most bytes of a sample: the members that ``fields`` name, and all headers.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        FileNotFoundError: There is no such shard.
        ValueError: An argument is out of its range, or a shard is no archive.

    Threads:
        set_epoch: consumer, between two epochs; close: shared; all else: one thread, the worker
        that owns it.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        shuffle: int = 0,
        seed: int | None = None,
        fields: Iterable[str] | None = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        transform: Callable[[Any], Any] | None = None,
        sample_limit: int = SAMPLE_LIMIT,
        **options: Any,
    ) -> None:
        super().__init__(pattern, shuffle, seed, options)
        for path in self.shards:
            check_archive(path)  # raises at once what the first epoch would
        self.transform = transform
        # An attribute, since copies of a dataset for each worker look for users' functions here.
        self.decoders = decoders(decode)
        self.fields = Fields.of(fields)
        self.sample_limit = sample_limit

    def read_shard(self, number: int) -> Iterator[RawSample]:
        """Yield the samples of a shard, with the data of the members that fields name."""
        file: File = self._shared.files[number]
        with open_unpacked(file) as archive:
            reader = TarReader(archive, file.path, self.sample_limit)
            yield from reader.samples(self.fields.wanted)

    def make(self, sample: RawSample, path: str) -> Any:
        """Return a sample for the user; see `make_sample`."""
        return make_sample(sample, path, self.fields, self.decoders, self.transform)
