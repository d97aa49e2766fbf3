"""WebDataset's shards: TarShards has any sample at any time, TarStream one after the other.

`TarShards` reads samples at their offsets in the archives, and all threads through the same files.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from threadloader.datasets._files import read_spans
from threadloader.datasets._local_file import SeekableFile
from threadloader.datasets._shards.decoding import Fields, decoders, make_sample
from threadloader.datasets._shards.kept import IndexedFiles
from threadloader.datasets._shards.stream import ShardStream
from threadloader.datasets._tar import (
    SAMPLE_LIMIT,
    Archive,
    RawSample,
    SampleMember,
    TarReader,
    check_archive,
    compression_of,
    open_unpacked,
)
from threadloader.datasets._urls import is_url, shown_url

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from threadloader.datasets._files import File, Patterns
    from threadloader.datasets._shards.kept import Index


# The ends of keys and of members, (samples,); of each member the offset of its data in the shard,
# its size, and the place of its extension in a list; all keys, one after the other; that list.
_NUMBERS = ("key_ends", "member_ends", "offsets", "sizes", "kinds")
_NAMES = (*_NUMBERS, "keys", "extensions")
# Bytes that are read at a time of a shard behind a URL; longer members are passed over.
# Unmeasured, a choice: at 100 MB/s and 10 ms a request, they take as long as one.
_HEADERS = 1 << 20
_GAP = 64 << 10  # bytes between two members that are read, too, to save a second read


class TarShards(IndexedFiles):
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
    index_version, index_names = 7, _NAMES

    def __init__(
        self,
        pattern: Patterns,
        *,
        fields: Iterable[str] | None = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        transform: Callable[[Any], Any] | None = None,
        index_folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.transform = transform
        # An attribute, since copies of a dataset for each worker look for users' functions here.
        self.decoders = decoders(decode)
        self._fields = Fields.of(fields)
        super().__init__(pattern, index_folder, options)
        self.shards = self._files.paths

    @classmethod
    def samples_of(cls, index: Index) -> int:
        """Return the number of samples in a shard."""
        return len(index.key_ends)

    def check(self, path: str) -> None:
        """Refuse what is no archive, or compressed."""
        check_archive(path)
        if compression_of(path):
            msg = (
                f"{shown_url(path)} is compressed: its samples come one after the other, by "
                "TarStream; random access needs a .tar"
            )
            raise ValueError(msg)

    def build_index(self, file: File) -> dict[str, Any]:
        """Return the index of a shard, by one pass over its headers.

        Of a shard behind a URL, members of more than a MiB are not transferred.
        """
        keys, extensions = bytearray(), dict[str, int]()
        found: dict[str, list[int]] = {name: [] for name in _NUMBERS}
        size = file.size()
        buffer = _HEADERS if is_url(file.path) else io.DEFAULT_BUFFER_SIZE
        with io.BufferedReader(SeekableFile(file.read_at, size), buffer) as stream:
            reader = TarReader(Archive(cast("BinaryIO", stream), size, ()), file.path, sys.maxsize)
            for key, members in reader.samples(()):
                for extension, member in members.items():
                    found["kinds"].append(extensions.setdefault(extension, len(extensions)))
                    found["offsets"].append(member.offset)
                    found["sizes"].append(member.size)
                keys += key.encode("utf-8", "surrogateescape")
                found["key_ends"].append(len(keys))
                found["member_ends"].append(len(found["offsets"]))
        arrays = {name: np.array(values, np.int64) for name, values in found.items()}
        return {"extensions": [*extensions], "keys": np.frombuffer(bytes(keys), np.uint8), **arrays}

    def __repr__(self) -> str:
        return f"TarShards: {len(self):,} samples in {self._files}"

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            DataError: The sample lacks a field, or can't be decoded; or its shard changed after the
                index was made, and the dataset must be made anew.
            IndexError: There is no such sample.
        """
        file, table, row = self._find(index, "samples")
        key, members = _key_of(table, row), _members_of(table, row)
        chosen = self._fields.chosen(key, members, file.path)
        wanted = {extension: members[extension] for extension in chosen if extension in members}
        members.update(_read(file, wanted))
        sample = RawSample(key, members)
        return make_sample(sample, file.path, self._fields, self.decoders, self.transform)

    @property
    def keys(self) -> list[str]:
        """The samples' keys in order, as a new list."""
        rows = ((each, row) for each in self._indexes for row in range(self.samples_of(each)))
        return [_key_of(each, row) for each, row in rows]


def _key_of(index: Index, row: int) -> str:
    """Return a sample's key."""
    ends = index.key_ends
    found = index.keys[ends[row - 1] if row else 0 : ends[row]]
    return str(found.tobytes().decode("utf-8", "surrogateescape"))


def _members_of(index: Index, row: int) -> dict[str, SampleMember]:
    """Return a sample's members by extension, without their data."""
    key, ends, names = _key_of(index, row), index.member_ends, index.extensions
    some = slice(ends[row - 1] if row else 0, ends[row])
    columns = [each[some].tolist() for each in (index.kinds, index.offsets, index.sizes)]
    return {
        names[kind]: SampleMember(f"{key}.{names[kind]}", offset, size, None)
        for kind, offset, size in zip(*columns, strict=True)
    }


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
        pattern: Patterns,
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
        file: File = self._shared.files.files[number]
        with open_unpacked(file) as archive:
            reader = TarReader(archive, file.path, self.sample_limit)
            yield from reader.samples(self.fields.wanted)

    def make(self, sample: RawSample, path: str) -> Any:
        """Return a sample for the user; see `make_sample`."""
        return make_sample(sample, path, self.fields, self.decoders, self.transform)
