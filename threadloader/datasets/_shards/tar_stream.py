"""TarStream: WebDataset's shards, read from beginning to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader.datasets._shards.decoding import Fields, decoders, make_sample
from threadloader.datasets._shards.stream import ShardStream
from threadloader.datasets._tar import (
    SAMPLE_LIMIT,
    RawSample,
    TarReader,
    compression_of,
    open_archive,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from threadloader.datasets._files import File


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
            compression_of(path)  # raises at once what the first epoch would
        self.transform = transform
        # An attribute, since copies of a dataset for each worker look for users' functions here.
        self.decoders = decoders(decode)
        self.fields = Fields.of(fields)
        self.sample_limit = sample_limit

    def read_shard(self, number: int) -> Iterator[RawSample]:
        """Yield the samples of a shard, with the data of the members that fields name."""
        file: File = self._shared.files[number]
        with open_archive(file) as archive:
            reader = TarReader(archive, file.path, self.sample_limit)
            yield from reader.samples(self.fields.wanted)

    def make(self, sample: RawSample, path: str) -> Any:
        """Return a sample for the user; see `make_sample`."""
        return make_sample(sample, path, self.fields, self.decoders, self.transform)
